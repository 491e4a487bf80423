#include "card/kernels/attention_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "card/engine/engine.h"
#include "card/kernels/scratch.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_math.h"
#include "card/program/attention_step.h"

namespace spyre {
namespace {

// c[row][column] += a[row][i] * b[i][column] in ascending i, a multiple of kUnit columns.
constexpr int64_t kUnit = 16;
struct Product {
  float* c;
  const float* a;
  const float* b;
  int64_t c_pitch, a_pitch, b_pitch;
  int64_t rows, columns, depth;
};

// The scores of a row with a block of keys, which are masked, and their weights.
struct Scores {
  float *row, *weights;
  const float* mask;    // added, -inf where a key takes no part; null: none
  int64_t from, limit;  // keys before and from here on take no part
  float *top, *sums, *results;
  int64_t width;
};

struct AttentionTable {
  const char* name;
  void (*multiply)(const Product&);
  void (*add_attended)(const Product&, const float* scores);
  void (*transpose)(float* to, const float* from, int64_t pitch, int64_t depth);
  void (*adjust)(float* row, float cap, float slope, float first);
  void (*weigh)(const Scores&);
  void (*finish)(float* results, int64_t width, const float* sums);
  bool (*all_finite)(const float* values, int64_t count);
};

#pragma GCC push_options
#pragma GCC optimize("no-trapping-math,no-thread-jumps,no-math-errno")

#define SPYRE_SIMD_BODY "card/kernels/attention_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY
#pragma GCC pop_options

constexpr const AttentionTable* kTables[] = SPYRE_EACH_ISA(kTable);

constexpr int64_t kTileRows = 24;  // whose scores stay in the first cache until they are used
constexpr int64_t kFewRows = 8;    // do not pay for decoding keys and values apart from using them

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The arithmetic of one task.
class Rows {
 public:
  Rows(const AttentionTable& table, const AttentionOperands& operands, const QueriesAndKeys& given)
      : table_(table),
        at_(operands),
        given_(given),
        rows_(static_cast<int64_t>(given.rows.size())),
        free_(scratch().floats(floats())) {
    queries_ = take(rows_ * depth_pitch_);
    results_ = take(rows_ * width_pitch_);
    sums_ = take(rows_ * kSumLanes);
    tops_ = take(rows_);
    masks_ = take(rows_ * kKeys);
    keys_ = take(kKeys * depth_pitch_);
    columns_ = take(kKeys * depth_pitch_);
    values_ = take(kKeys * width_pitch_);
    scores_ = take(kTileRows * kKeys);
    weights_ = take(kTileRows * kKeys);
    before_ = take(kFewRows * width_pitch_);
    std::fill_n(results_, rows_ * width_pitch_, 0.0f);
    std::fill_n(sums_, rows_ * kSumLanes, 0.0f);
    for (int64_t row = 0; row < rows_; ++row) begin(row);
  }

  void run() {
    const std::vector<QueryRow>& rows = given_.rows;
    int64_t first = given_.length, last = 0;
    for (const QueryRow& row : rows) {
      if (row.begin >= row.end) continue;
      first = std::min(first, row.begin);
      last = std::max(last, row.end);
    }
    for (first = first / kKeys * kKeys; first < last; first += kKeys) {
      end_if_stopped();
      const int64_t count = std::min(kKeys, given_.length - first);
      if (masked_ && !decode_masks(first, count)) continue;
      if (rows_ <= kFewRows && first / given_.page == (first + count - 1) / given_.page) {
        add_few(first, count);
        continue;
      }
      decode_keys(first, count);
      const bool finite = decode_values(first, count);
      for (int64_t row = 0; row < rows_; row += kTileRows)
        add(row, std::min(kTileRows, rows_ - row), first, count, finite);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      float* const result = results_ + row * width_pitch_;
      table_.finish(result, width_, sums_ + row * kSumLanes);
      if (given_.factor != 1)
        for (int64_t i = 0; i < width_; ++i) result[i] *= given_.factor;
      at_.out.encode(result, rows[static_cast<size_t>(row)].out, at_.width, width_);
    }
  }

 private:
  static Scratch& scratch() {
    thread_local Scratch memory;
    return memory;
  }
  float* take(int64_t floats) { return std::exchange(free_, free_ + round_up(floats, kLine)); }
  static constexpr int64_t kLine = 16;  // floats of a cache line

  int64_t floats() const {
    const int64_t slack = 16 * kLine;  // each of eleven arrays begins with a cache line
    return rows_ * (depth_pitch_ + width_pitch_ + kSumLanes + 1 + kKeys) + kKeys * (2 * depth_pitch_ + width_pitch_) +
           2 * kTileRows * kKeys + kFewRows * width_pitch_ + slack;
  }

  // Decodes and scales the queries of a row; its sink is a weight that no value belongs to.
  void begin(int64_t row) {
    const QueryRow& which = given_.rows[static_cast<size_t>(row)];
    float* const to = queries_ + row * depth_pitch_;
    at_.query.decode(to, which.query, at_.depth, 0, depth_);
    for (int64_t i = 0; i < depth_; ++i) to[i] *= given_.scale;
    tops_[row] = which.sink;
    if (which.sink != -std::numeric_limits<float>::infinity()) sums_[row * kSumLanes] = 1;
  }

  // False where no row attends to any of these keys.
  bool decode_masks(int64_t first, int64_t count) {
    constexpr float kOff = -std::numeric_limits<float>::infinity();
    bool any = false;
    for (size_t row = 0; row < given_.masks.size(); ++row) {
      float* const to = masks_ + static_cast<int64_t>(row) * kKeys;
      at_.mask.decode(to, given_.masks[row], at_.mask_axis, first, count);
      for (int64_t i = 0; i < count; ++i) {
        if (given_.mask_chooses) to[i] = to[i] != 0 ? 0 : kOff;
        any |= to[i] != kOff;
      }
      std::fill(to + count, to + kKeys, kOff);
    }
    return any;
  }

  int64_t place(const OperandRows& operand, const std::vector<int64_t>& pages, int64_t key) const {
    return pages[static_cast<size_t>(key / given_.page)] + operand.moved(at_.key_axis, key % given_.page);
  }
  int64_t key_at(int64_t key) const { return place(at_.key, given_.key_pages, key); }
  int64_t value_at(int64_t key) const { return place(at_.value, given_.value_pages, key); }

  // As columns of the first product.
  void decode_keys(int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      at_.key.decode(keys_ + i * depth_pitch_, key_at(first + i), at_.depth, 0, depth_);
    table_.transpose(columns_, keys_, depth_pitch_, round_up(depth_, 8));
  }

  // False where one is no number.
  bool decode_values(int64_t first, int64_t count) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      float* const to = values_ + i * width_pitch_;
      at_.value.decode(to, value_at(first + i), at_.width, 0, width_);
      finite &= table_.all_finite(to, width_);
    }
    return finite;
  }

  void weigh(int64_t top, int64_t rows, int64_t first, int64_t count) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = top + i;
      const QueryRow& which = given_.rows[static_cast<size_t>(row)];
      if (given_.soft_cap != 0 || which.slope != 0)
        table_.adjust(scores_ + i * kKeys, given_.soft_cap, which.slope, static_cast<float>(first - which.position));
      table_.weigh({.row = scores_ + i * kKeys,
                    .weights = weights_ + i * kKeys,
                    .mask = masked_ ? masks_ + static_cast<int64_t>(which.mask) * kKeys : nullptr,
                    .from = which.begin - first,
                    .limit = std::min(count, which.end - first),
                    .top = tops_ + row,
                    .sums = sums_ + row * kSumLanes,
                    .results = results_ + row * width_pitch_,
                    .width = width_pitch_});
    }
  }

  Product onto_results(int64_t top, int64_t rows, int64_t count) const {
    return {.c = results_ + top * width_pitch_,
            .a = weights_,
            .b = values_,
            .c_pitch = width_pitch_,
            .a_pitch = kKeys,
            .b_pitch = width_pitch_,
            .rows = rows,
            .columns = width_pitch_,
            .depth = count};
  }

  // Whether one of the rows attends to one of the keys.
  bool any_attends(int64_t top, int64_t rows, int64_t first, int64_t count) const {
    const auto begin = given_.rows.begin() + top;
    return std::any_of(begin, begin + rows,
                       [&](const QueryRow& row) { return row.begin < first + count && first < row.end; });
  }

  void add(int64_t top, int64_t rows, int64_t first, int64_t count, bool finite) {
    if (!any_attends(top, rows, first, count)) return;
    std::fill_n(scores_, rows * kKeys, 0.0f);
    table_.multiply({.c = scores_,
                     .a = queries_ + top * depth_pitch_,
                     .b = columns_,
                     .c_pitch = kKeys,
                     .a_pitch = depth_pitch_,
                     .b_pitch = kKeys,
                     .rows = rows,
                     .columns = kKeys,
                     .depth = depth_});
    weigh(top, rows, first, count);
    const Product onto = onto_results(top, rows, count);
    finite ? table_.multiply(onto) : table_.add_attended(onto, scores_);
  }

  // Products that decode as they go, which is all that few rows wait for. They sum in the same order.
  void add_few(int64_t first, int64_t count) {
    const auto plain = [](float* from, int64_t pitch) {
      return StickMatrix{reinterpret_cast<std::byte*>(from), DataFormat::IEEE_FP32, pitch,
                         elements_per_stick(DataFormat::IEEE_FP32)};
    };
    matmul(plain(scores_, kKeys), plain(queries_, depth_pitch_), at_.key.matrix(key_at(first), at_.key_axis),
           {rows_, count, depth_, true, false});
    weigh(0, rows_, first, count);
    std::copy_n(results_, rows_ * width_pitch_, before_);
    matmul(plain(results_, width_pitch_), plain(weights_, kKeys), at_.value.matrix(value_at(first), at_.key_axis),
           {rows_, width_, count, false, true});
    if (table_.all_finite(results_, rows_ * width_pitch_)) return;
    std::copy_n(before_, rows_ * width_pitch_, results_);  // a value was none, perhaps one that takes no part
    decode_values(first, count);
    table_.add_attended(onto_results(0, rows_, count), scores_);
  }

  const AttentionTable& table_;
  const AttentionOperands& at_;
  const QueriesAndKeys& given_;
  const int64_t depth_ = given_.depth, width_ = given_.width;
  // Floats from row to row; powers of two would share cache sets.
  const int64_t depth_pitch_ = round_up(depth_, 16) + 16, width_pitch_ = round_up(width_, kUnit);
  const bool masked_ = !given_.masks.empty();
  const int64_t rows_;
  float* free_;  // the rest of the thread's scratch memory
  float *queries_, *results_, *sums_, *tops_, *masks_, *keys_, *columns_, *values_, *scores_, *weights_, *before_;
};

}  // namespace

void attend(const AttentionOperands& operands, const QueriesAndKeys& given, const char* simd) {
  Rows(simd ? table_of(kTables, simd) : chosen_table<kTables>(), operands, given).run();
}

}  // namespace spyre
