#include "card/kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "card/engine/engine.h"
#include "card/kernels/matmul.h"
#include "card/kernels/operand_access.h"
#include "card/kernels/scratch.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_math.h"
#include "card/program/axis_stride.h"
#include "card/program/core_split.h"

namespace spyre {
namespace {

using namespace attention;

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
  const float* mask;  // added, -inf where a key takes no part; null: none
  int64_t limit;      // keys from here on take no part
  float *top, *sums, *results;
  int64_t width;
};

struct AttentionTable {
  const char* name;
  void (*multiply)(const Product&);
  void (*add_attended)(const Product&, const float* scores);
  void (*transpose)(float* to, const float* from, int64_t pitch, int64_t depth);
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

constexpr int64_t kMostRows = 256;  // of a task: they share decoded keys and values
constexpr int64_t kTileRows = 24;   // whose scores stay in the first cache until they are used
constexpr int64_t kFewRows = 8;     // do not pay for decoding keys and values apart from using them

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// An operand: where its points are, and how their elements are read and written.
class OperandRows {
 public:
  OperandRows(const Step& step, size_t index, std::byte* base)
      : step_(step), operand_(step.operands[index]), access_(operand_, base), points_(points_per_core(step)) {
    for (size_t i = 0; i < step.extents.size() && !operand_.is_constant(); ++i)
      strides_.emplace_back(operand_.strides[i], operand_.format, operand_.stick == static_cast<int>(i));
  }
  bool moves(size_t axis) const {
    return !operand_.is_constant() && (operand_.strides[axis] != 0 || operand_.stick == static_cast<int>(axis));
  }
  // The address of a point, of which the dimensions behind those given are 0; in LX, that of its core.
  int64_t at(const Dims& point) const {
    int64_t address = 0, core = 0;
    for (size_t i = 0; i < step_.extents.size(); ++i) {
      const int64_t p = i < point.size() ? point[i] : 0, slice = p / points_[i];
      core = core * step_.slices[i] + slice;
      address += strides_[i].at(operand_.in_lx() ? p - slice * points_[i] : p);
    }
    return operand_.in_lx() ? address + core * operand_.core_bytes : address;
  }
  int64_t moved(size_t axis, int64_t by) const { return strides_[axis].at(by); }
  // From an address on, over the rows of one dimension and the sticks of another.
  StickMatrix matrix(int64_t at, size_t rows) const {
    const int64_t element = element_bytes(operand_.format);
    return {access_.address + at, operand_.format, operand_.strides[rows] / element,
            operand_.strides[static_cast<size_t>(operand_.stick)] / element};
  }
  void decode(float* to, int64_t at, size_t axis, int64_t first, int64_t count) const {
    even_runs(first, count, count, {&strides_[axis]}, [&](int64_t point, int64_t run) {
      access_.decode(to + point - first, at + strides_[axis].at(point), run, strides_[axis].step());
    });
  }
  void encode(const float* from, int64_t at, size_t axis, int64_t count) const {
    even_runs(0, count, count, {&strides_[axis]}, [&](int64_t point, int64_t run) {
      access_.encode(from + point, at + strides_[axis].at(point), run, strides_[axis].step());
    });
  }

 private:
  const Step& step_;
  const Operand& operand_;
  const OperandAccess access_;
  const Dims points_;
  std::vector<AxisStride> strides_;
};

// The rows of one task.
class Rows {
 public:
  Rows(const AttentionTable& table, const Step& step, const std::vector<std::byte*>& bases, const Dims& begin,
       const Dims& count)
      : table_(table),
        step_(step),
        out_(step, kOut, bases[kOut]),
        query_(step, kQuery, bases[kQuery]),
        key_(step, kKey, bases[kKey]),
        value_(step, kValue, bases[kValue]),
        mask_(step, kMask, bases[kMask]),
        rows_(product(count)),
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
    std::fill_n(tops_, rows_, -std::numeric_limits<float>::infinity());
    place(begin, count);
    key_at_ = key_.at(begin);
    value_at_ = value_.at(begin);
  }

  void run() {
    const int64_t last = *std::max_element(met_.begin(), met_.end());
    for (int64_t first = 0; first < last; first += kKeys) {
      end_if_stopped();
      const int64_t count = std::min(kKeys, length_ - first);
      if (masked_ && !decode_masks(first, count)) continue;
      if (rows_ <= kFewRows) {
        add_few(first, count);
        continue;
      }
      decode_keys(first, count);
      const bool finite = decode_values(first, count);
      for (int64_t row = 0; row < rows_; row += kTileRows)
        add(row, std::min(kTileRows, rows_ - row), first, count, finite);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      table_.finish(results_ + row * width_pitch_, width_, sums_ + row * kSumLanes);
      out_.encode(results_ + row * width_pitch_, out_at_[row], width_axis(), width_);
    }
  }

 private:
  static Scratch& scratch() {
    thread_local Scratch memory;
    return memory;
  }
  float* take(int64_t floats) { return std::exchange(free_, free_ + round_up(floats, kLine)); }
  static constexpr int64_t kLine = 16;  // floats of a cache line

  size_t rank() const { return step_.extents.size(); }
  size_t depth_axis() const { return rank() - kDepth; }
  size_t length_axis() const { return rank() - kLength; }
  size_t width_axis() const { return rank() - kWidth; }
  int64_t floats() const {
    const int64_t slack = 16 * kLine;  // each of eleven arrays begins with a cache line
    return rows_ * (depth_pitch_ + width_pitch_ + kSumLanes + 1 + kKeys) + kKeys * (2 * depth_pitch_ + width_pitch_) +
           2 * kTileRows * kKeys + kFewRows * width_pitch_ + slack;
  }

  // Finds the addresses of each row, and decodes and scales its queries.
  void place(const Dims& begin, const Dims& count) {
    const auto scale = static_cast<float>(step_.constants[kScale]);
    Dims point = begin;
    std::vector<int64_t> known;  // of masks that several rows share
    for (int64_t row = 0; row < rows_; ++row) {
      out_at_.push_back(out_.at(point));
      position_.push_back(point.back());
      met_.push_back(keys_met(step_, point.back()));
      float* const to = queries_ + row * depth_pitch_;
      query_.decode(to, query_.at(point), depth_axis(), 0, depth_);
      for (int64_t i = 0; i < depth_; ++i) to[i] *= scale;
      if (masked_) {
        const int64_t at = mask_.at(point);
        const auto found = std::find(known.begin(), known.end(), at);
        mask_of_.push_back(found - known.begin());
        if (found == known.end()) known.push_back(at);
      }
      for (size_t i = point.size(); i-- > 0;) {
        if (++point[i] < begin[i] + count[i]) break;
        point[i] = begin[i];
      }
    }
    mask_at_ = std::move(known);
  }

  // False where no row attends to any of these keys.
  bool decode_masks(int64_t first, int64_t count) {
    constexpr float kOff = -std::numeric_limits<float>::infinity();
    const bool chooses = step_.constants[kChooses] != 0;
    bool any = false;
    for (int64_t row = 0; row < static_cast<int64_t>(mask_at_.size()); ++row) {
      float* const to = masks_ + row * kKeys;
      mask_.decode(to, mask_at_[row], length_axis(), first, count);
      for (int64_t i = 0; i < count; ++i) {
        if (chooses) to[i] = to[i] != 0 ? 0 : kOff;
        any |= to[i] != kOff;
      }
      std::fill(to + count, to + kKeys, kOff);
    }
    return any;
  }

  int64_t key_at(int64_t key) const { return key_at_ + key_.moved(length_axis(), key); }
  int64_t value_at(int64_t key) const { return value_at_ + value_.moved(length_axis(), key); }

  // As columns of the first product.
  void decode_keys(int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      key_.decode(keys_ + i * depth_pitch_, key_at(first + i), depth_axis(), 0, depth_);
    table_.transpose(columns_, keys_, depth_pitch_, round_up(depth_, 8));
  }

  // False where one is no number.
  bool decode_values(int64_t first, int64_t count) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      float* const to = values_ + i * width_pitch_;
      value_.decode(to, value_at(first + i), width_axis(), 0, width_);
      finite &= table_.all_finite(to, width_);
    }
    return finite;
  }

  void weigh(int64_t top, int64_t rows, int64_t first, int64_t count) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = top + i, seen = causal_ ? position_[row] - first + 1 : kKeys;
      table_.weigh({.row = scores_ + i * kKeys,
                    .weights = weights_ + i * kKeys,
                    .mask = masked_ ? masks_ + mask_of_[row] * kKeys : nullptr,
                    .limit = std::min(count, seen),
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

  void add(int64_t top, int64_t rows, int64_t first, int64_t count, bool finite) {
    if (*std::max_element(&met_[top], &met_[top] + rows) <= first) return;
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
    matmul(plain(scores_, kKeys), plain(queries_, depth_pitch_), key_.matrix(key_at(first), length_axis()),
           {rows_, count, depth_, true, false});
    weigh(0, rows_, first, count);
    std::copy_n(results_, rows_ * width_pitch_, before_);
    matmul(plain(results_, width_pitch_), plain(weights_, kKeys), value_.matrix(value_at(first), length_axis()),
           {rows_, width_, count, false, true});
    if (table_.all_finite(results_, rows_ * width_pitch_)) return;
    std::copy_n(before_, rows_ * width_pitch_, results_);  // a value was none, perhaps one that takes no part
    decode_values(first, count);
    table_.add_attended(onto_results(0, rows_, count), scores_);
  }

  const AttentionTable& table_;
  const Step& step_;
  const OperandRows out_, query_, key_, value_, mask_;
  const int64_t depth_ = step_.extents[depth_axis()], length_ = step_.extents[length_axis()],
                width_ = step_.extents[width_axis()];
  // Floats from row to row; powers of two would share cache sets.
  const int64_t depth_pitch_ = round_up(depth_, 16) + 16, width_pitch_ = round_up(width_, kUnit);
  const bool causal_ = step_.constants[kCausal] != 0, masked_ = !step_.operands[kMask].is_constant();
  const int64_t rows_;
  float* free_;  // the rest of the thread's scratch memory
  float *queries_, *results_, *sums_, *tops_, *masks_, *keys_, *columns_, *values_, *scores_, *weights_, *before_;
  int64_t key_at_, value_at_;
  std::vector<int64_t> out_at_, position_, met_, mask_of_, mask_at_;
};

}  // namespace

AttentionTasks::AttentionTasks(const Step& step, const std::vector<std::byte*>& bases) : step_(step), bases_(bases) {
  const Dims points = points_per_core(step);
  const size_t outer = step.extents.size() - kWidth;
  // Keys in LX are those of one core; elsewhere rows that share keys may be of any cores.
  const bool own = step.operands[kKey].in_lx() || step.operands[kValue].in_lx();
  for (int core = 0; core < (own ? step.cores() : 1); ++core) {
    Dims begin(outer, 0), count(step.extents.begin(), step.extents.begin() + static_cast<ptrdiff_t>(outer));
    for (size_t i = outer, rest = static_cast<size_t>(core); own && i-- > 0;) {
      const auto slices = static_cast<size_t>(step.slices[i]);
      begin[i] = static_cast<int64_t>(rest % slices) * points[i];
      count[i] = std::clamp<int64_t>(step.extents[i] - begin[i], 0, points[i]);
      rest /= slices;
    }
    if (product(count) > 0) split(std::move(begin), std::move(count));
  }
  // The last rows of causal attention take longest, so they begin.
  std::stable_sort(tasks_.begin(), tasks_.end(),
                   [](const QueryBlock& a, const QueryBlock& b) { return a.begin.back() > b.begin.back(); });
}

// One point of each dimension that moves the keys; of the others the innermost together, up to kMostRows.
void AttentionTasks::split(Dims begin, Dims count) {
  const auto moves = [&](size_t axis) {
    for (size_t operand : {kKey, kValue})
      if (step_.operands[operand].strides[axis] != 0) return true;
    return false;
  };
  const size_t rows = begin.size() - 1;
  Dims unit(begin.size(), 1);
  int64_t room = kMostRows;
  for (size_t i = rows; i-- > 0;)  // heads first, then rows
    if (!moves(i)) {
      unit[i] = std::min(count[i], room);
      room /= unit[i];
    }
  constexpr int64_t kMostPositions = 128;  // causal rows far apart attend to different keys
  unit[rows] = std::clamp<int64_t>(room, 1, std::min(count[rows], kMostPositions));
  QueryBlock task{begin, unit};
  for (bool more = true; more;) {
    for (size_t i = 0; i < begin.size(); ++i) task.count[i] = std::min(unit[i], begin[i] + count[i] - task.begin[i]);
    tasks_.push_back(task);
    more = false;
    for (size_t i = begin.size(); i-- > 0 && !more;) {
      task.begin[i] += unit[i];
      more = task.begin[i] < begin[i] + count[i];
      if (!more) task.begin[i] = begin[i];
    }
  }
}

void AttentionTasks::run(int64_t task) const {
  const QueryBlock& which = tasks_[static_cast<size_t>(task)];
  Rows(chosen_table<kTables>(), step_, bases_, which.begin, which.count).run();
}

// For tests: the routines of one instruction set, which the machine must have, on so many points of each dimension but
// the last three at a time; only one of those that move the keys.
namespace detail {
void attention(const char* simd, const Step& step, const std::vector<std::byte*>& bases, const Dims& points) {
  Dims begin(points.size(), 0);
  for (bool more = true; more;) {
    Dims count;
    for (size_t i = 0; i < points.size(); ++i) count.push_back(std::min(points[i], step.extents[i] - begin[i]));
    Rows(table_of(kTables, simd), step, bases, begin, count).run();
    more = false;
    for (size_t i = points.size(); i-- > 0 && !more;) {
      begin[i] += points[i];
      more = begin[i] < step.extents[i];
      if (!more) begin[i] = 0;
    }
  }
}
}  // namespace detail

}  // namespace spyre
