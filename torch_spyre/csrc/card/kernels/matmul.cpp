#include "card/kernels/matmul.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "card/engine/engine.h"
#include "card/error.h"
#include "card/numeric/tile_ops.h"

#define SPYRE_INLINE inline __attribute__((always_inline))

namespace spyre {
namespace {

// How a product is cut. Columns of C are taken a panel at a time; k in blocks whose panel of B, decoded to fp32, stays
// in the L2 cache while all rows use it; rows in blocks that bound the decoded A.
constexpr int64_t kBlock = 512;
constexpr int64_t kPitch = kBlock + 16;  // floats between rows of decoded A: a power of two would share cache sets
constexpr int64_t kDecodedA = 2 << 20;   // floats
constexpr int64_t kTallest = 512;        // rows whose sums stay in the L2 cache beside the panel

// One panel: sums[row][column] += A B over all of k. A is decoded, as [block of k][row][kPitch].
struct Panel {
  float* sums;  // [rows][kPanel]; columns past `columns` may end as anything
  const float* a;
  const std::byte* b;
  float* decoded_b;  // scratch of kBlock * kPanel
  DataFormat format;
  int64_t row_stride, stick_stride;
  int64_t rows, columns, k;
  bool transposed;
  bool scaled;  // A is larger by 2^96
};

// Rows of A, of one stick, to be decoded.
struct RowsOfA {
  float* to;  // [count][kPitch]
  const std::byte* from;
  DataFormat format;
  int64_t stride, count, length;  // bytes from row to row; rows; elements of each
};

struct Level {
  const char* name;
  void (*multiply)(const Panel&);
  bool (*decode_scaled)(const RowsOfA& rows);  // times 2^96; false where a result is not finite
  void (*settle)(float* sums, int64_t count);  // gives every NaN the same bits
  void (*add_products)(int64_t* sums, const int64_t* a, const int64_t* b, int64_t k);
  int64_t transposed_rows;  // up to so many a transposed B is not decoded first
};

namespace portable {
constexpr const char* kName = "portable";
constexpr int kLanes = 4, kSums = 24;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) {
  for (int i = 0; i < kLanes; ++i) sum[i] = __builtin_fmaf(x[i], y[i], sum[i]);
  return sum;
}
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Words widen(const int8_t* from) { return Words{from[0], from[1], from[2], from[3]}; }
#include "card/kernels/matmul_simd.inc"
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#pragma GCC push_options
#pragma GCC target("avx2,fma")
constexpr const char* kName = "avx2";
constexpr int kLanes = 8, kSums = 12;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) { return _mm256_fmadd_ps(x, y, sum); }
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Words widen(const int8_t* from) {
  return Words(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#include "card/kernels/matmul_simd.inc"
#pragma GCC pop_options
}  // namespace avx2

namespace avx512 {
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
constexpr const char* kName = "avx512";
constexpr int kLanes = 16, kSums = 24;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Floats fma(Floats x, Floats y, Floats sum) { return _mm512_fmadd_ps(x, y, sum); }
typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
SPYRE_INLINE Words widen(const int8_t* from) {
  // All lanes by a mask: g++ 12 warns of its own plain intrinsic.
  return Words(_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#include "card/kernels/matmul_simd.inc"
#pragma GCC pop_options
}  // namespace avx512
#endif

#if defined(__x86_64__)
constexpr const Level* kLevels[] = {&avx512::kLevel, &avx2::kLevel, &portable::kLevel};
#else
constexpr const Level* kLevels[] = {&portable::kLevel};
#endif

const Level& level_named(const char* name) {
  for (const Level* level : kLevels)
    if (!std::strcmp(level->name, name)) return *level;
  return portable::kLevel;
}

// Grows to the largest product of its thread and is used again by the next: the hot path does not allocate.
class Scratch {
 public:
  ~Scratch() { release(); }
  float* floats(int64_t count) {
    if (count > size_) {
      release();
      size_ = 0;
      data_ = static_cast<float*>(::operator new(size_t(count) * sizeof(float), kAlignment));
      size_ = count;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  void release() {
    if (data_) ::operator delete(std::exchange(data_, nullptr), kAlignment);
  }
  float* data_ = nullptr;
  int64_t size_ = 0;
};

HostType type_of(const StickMatrix& matrix, const char* which) {
  if (matrix.format == DataFormat::SEN169_FP16) return HostType::F16;
  if (matrix.format == DataFormat::IEEE_FP32) return HostType::F32;
  throw InvalidProgram(std::string("matmul: operand ") + which + " is " + name(matrix.format) +
                       "; the matrix unit takes SEN169_FP16 and IEEE_FP32 there. Convert it first.");
}

// Column `column` of the row that begins at element `row`.
std::byte* address(const StickMatrix& matrix, int64_t row, int64_t column) {
  const int64_t stick = elements_per_stick(matrix.format);
  const int64_t element = column / stick * matrix.stick_stride + row + column % stick;
  return matrix.base + element * element_bytes(matrix.format);
}

// Rows [begin, begin + count) of all, as runs; they begin at row 0 for whoever visits them.
template <class Visit>
void each_run(std::span<const RowRun> rows, int64_t begin, int64_t count, Visit visit) {
  int64_t first = -begin;
  for (const RowRun& run : rows) {
    const int64_t from = std::max<int64_t>(first, 0), to = std::min(first + run.count, count), skipped = from - first;
    if (from < to)
      visit(from, RowRun{to - from,
                         {run.a.at + skipped * run.a.stride, run.a.stride},
                         {run.c.at + skipped * run.c.stride, run.c.stride}});
    first += run.count;
  }
}

RowRun even_rows(const StickMatrix& c, const StickMatrix& a, const MatmulShape& shape) {
  return {shape.m, {0, a.row_stride}, {0, c.row_stride}};
}

// Calls visit(row, address, column, count) for the pieces of sticks that hold columns [begin, end), stick by stick.
template <class Visit>
void each_piece(const StickMatrix& matrix, RowRun::Side rows, int64_t count, int64_t begin, int64_t end, Visit visit) {
  const int64_t stick = elements_per_stick(matrix.format);
  for (int64_t column = begin; column < end; column += stick)
    for (int64_t row = 0; row < count; ++row)
      visit(row, address(matrix, rows.at + row * rows.stride, column), column, size_t(std::min(stick, end - column)));
}

void multiply(const Level& level, const StickMatrix& c, const StickMatrix& a, const StickMatrix& b,
              const MatmulShape& shape, std::span<const RowRun> all_rows) {
  const Convert decode = device_cast(type_of(a, "A"), HostType::F32),
                round = device_cast(HostType::F32, type_of(c, "C"));
  if (!is_weight_format(b.format))
    throw InvalidProgram(std::string("matmul: operand B is ") + name(b.format) + ", which does not meet reals.");
  if (shape.accumulate && c.format != DataFormat::IEEE_FP32)
    throw InvalidProgram("matmul: partial sums are kept in IEEE_FP32, and C is " + std::string(name(c.format)) + ".");

  const int64_t pitch = (shape.k + kBlock - 1) / kBlock * kPitch;  // decoded A: floats per row
  const int64_t tallest = std::clamp<int64_t>(kDecodedA / pitch, 48, kTallest);
  const int64_t blocks = (shape.m + tallest - 1) / tallest, height = (shape.m + blocks - 1) / blocks;
  // A transposed B lies together by sticks of k. With few rows reading it is most of the work, so sticks go outermost
  // and the sums of all columns are kept; otherwise all of k is summed for a panel before the next.
  const bool by_stick = shape.transposed_b && height <= level.transposed_rows;
  const bool in_wide = shape.wide && shape.k > kChain;
  const int64_t deep = !by_stick ? shape.k : in_wide ? kChain : elements_per_stick(b.format);
  const int64_t chain = in_wide ? kChain : deep;
  const int64_t wide = by_stick ? (shape.n + kPanel - 1) / kPanel * kPanel : kPanel;
  thread_local Scratch scratch;
  thread_local std::vector<double> wide_sums;
  float* const decoded_b = scratch.floats(kBlock * kPanel + height * (wide + pitch));
  float* const all_sums = decoded_b + kBlock * kPanel;
  float* const decoded_a = all_sums + height * wide;
  if (in_wide) wide_sums.resize(std::max(wide_sums.size(), size_t(height * wide)));

  for (int64_t top = 0; top < shape.m; top += height) {
    const int64_t rows = std::min(height, shape.m - top);
    const auto decoded_at = [&](int64_t row, int64_t column) {
      return decoded_a + (column / kBlock * rows + row) * kPitch + column % kBlock;
    };
    // If B is SEN169, its elements are decoded smaller by 2^96, and those of A larger: the products are the same.
    bool scaled = b.format == DataFormat::SEN169_FP16;
    if (scaled)
      each_run(all_rows, top, rows, [&](int64_t first, const RowRun& run) {
        const int64_t stick = elements_per_stick(a.format);
        for (int64_t column = 0; column < shape.k; column += stick)
          scaled &= level.decode_scaled({.to = decoded_at(first, column),
                                         .from = address(a, run.a.at, column),
                                         .format = a.format,
                                         .stride = run.a.stride * element_bytes(a.format),
                                         .count = run.count,
                                         .length = std::min(stick, shape.k - column)});
      });
    if (!scaled)
      each_run(all_rows, top, rows, [&](int64_t first, const RowRun& run) {
        each_piece(a, run.a, run.count, 0, shape.k, [&](int64_t row, std::byte* from, int64_t column, size_t count) {
          decode(decoded_at(first + row, column), from, count);
        });
      });
    for (int64_t k = 0; k < shape.k; k += deep)
      for (int64_t left = 0; left < shape.n; left += kPanel) {
        end_if_stopped();
        const int64_t right = std::min(left + kPanel, shape.n);
        float* const sums = all_sums + left % wide * rows;
        const auto each_of_c = [&](const auto& visit) {  // visit(address, sums, count)
          each_run(all_rows, top, rows, [&](int64_t first, const RowRun& run) {
            each_piece(c, run.c, run.count, left, right, [&](int64_t row, std::byte* at, int64_t column, size_t count) {
              visit(at, sums + (first + row) * kPanel + column - left, count);
            });
          });
        };
        double* const totals = in_wide ? wide_sums.data() + left % wide * rows : nullptr;
        const auto count = size_t(rows * kPanel);
        if (k == 0) std::fill_n(sums, count, 0.0f);
        if (k == 0 && in_wide) std::fill_n(totals, count, 0.0);
        if (k == 0 && shape.accumulate)
          each_of_c([](std::byte* at, float* sums, size_t count) { std::memcpy(sums, at, count * sizeof(float)); });
        for (int64_t at = k; at < std::min(k + deep, shape.k); at += chain) {
          level.multiply(
              {.sums = sums,
               .a = decoded_a + at / kBlock * rows * kPitch + at % kBlock,
               .b = shape.transposed_b ? address(b, left * b.row_stride, at) : address(b, at * b.row_stride, left),
               .decoded_b = decoded_b,
               .format = b.format,
               .row_stride = b.row_stride,
               .stick_stride = b.stick_stride,
               .rows = rows,
               .columns = right - left,
               .k = std::min(chain, shape.k - at),
               .transposed = shape.transposed_b,
               .scaled = scaled});
          if (!in_wide) continue;
          add_wide(totals, sums, count);
          std::fill_n(sums, count, 0.0f);
        }
        if (k + deep < shape.k) continue;
        if (in_wide) std::transform(totals, totals + count, sums, narrowed);
        level.settle(sums, rows * kPanel);
        each_of_c([&](std::byte* at, float* sums, size_t count) { round(at, sums, count); });
      }
  }
}

}  // namespace

bool is_weight_format(DataFormat format) {
  constexpr DataFormat known[] = {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32, DataFormat::SENINT8,
                                  DataFormat::SEN143_FP8, DataFormat::SEN152_FP8};
  return std::find(std::begin(known), std::end(known), format) != std::end(known);
}

void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape,
            std::span<const RowRun> rows) {
  static const Level& level = level_named(simd_level());
  multiply(level, c, a, b, shape, rows);
}

void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape) {
  const RowRun rows = even_rows(c, a, shape);
  matmul(c, a, b, shape, {&rows, 1});
}

void add_products(int64_t* sums, const int64_t* a, const int64_t* b, int64_t k) {
  static const Level& level = level_named(simd_level());
  level.add_products(sums, a, b, k);
}

// For tests: the routines of one instruction set, which the machine must have.
namespace detail {
void matmul(const char* simd, const StickMatrix& c, const StickMatrix& a, const StickMatrix& b,
            const MatmulShape& shape) {
  const RowRun rows = even_rows(c, a, shape);
  multiply(level_named(simd), c, a, b, shape, {&rows, 1});
}
}  // namespace detail

}  // namespace spyre
