#include "card/kernels/matmul.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "card/engine/engine.h"
#include "card/error.h"
#include "card/kernels/scratch.h"
#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_ops.h"
#include "card/program/step_ops.h"

namespace spyre {
namespace {

// How a product is blocked. Columns of C are taken a panel at a time; k in blocks whose panel of B, decoded to fp32,
// stays in the L2 cache while all rows use it; rows in blocks that bound the decoded A.
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

struct MatmulTable {
  const char* name;
  void (*multiply)(const Panel&);
  bool (*decode_scaled)(const RowsOfA& rows);  // times 2^96; false where a result is not finite
  void (*settle)(float* sums, int64_t count);  // gives every NaN the same bits
  void (*add_products)(int64_t* sums, const int64_t* a, const int64_t* b, int64_t k);
  int64_t transposed_rows;  // up to so many a transposed B is not decoded first
};

#define SPYRE_SIMD_BODY "card/kernels/matmul_simd.inc"
#include "card/numeric/for_each_isa.inc"
#undef SPYRE_SIMD_BODY

constexpr const MatmulTable* kTables[] = SPYRE_EACH_ISA(kTable);

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

// Visits rows [begin, begin + count) of all as runs, counted from row 0.
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

// Calls visit(row, address, column, count) for the runs within sticks that hold columns [begin, end), stick by stick.
template <class Visit>
void each_stick_run(const StickMatrix& matrix, RowRun::Rows rows, int64_t count, int64_t begin, int64_t end,
                    Visit visit) {
  const int64_t stick = elements_per_stick(matrix.format);
  for (int64_t column = begin; column < end; column += stick)
    for (int64_t row = 0; row < count; ++row)
      visit(row, address(matrix, rows.at + row * rows.stride, column), column, size_t(std::min(stick, end - column)));
}

void multiply(const MatmulTable& table, const StickMatrix& c, const StickMatrix& a, const StickMatrix& b,
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
  // A transposed B is contiguous along sticks of k. With few rows reading it is most of the work, so sticks go
  // outermost and the sums of all columns are kept; otherwise all of k is summed for a panel before the next.
  const bool by_stick = shape.transposed_b && height <= table.transposed_rows;
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
          scaled &= table.decode_scaled({.to = decoded_at(first, column),
                                         .from = address(a, run.a.at, column),
                                         .format = a.format,
                                         .stride = run.a.stride * element_bytes(a.format),
                                         .count = run.count,
                                         .length = std::min(stick, shape.k - column)});
      });
    if (!scaled)
      each_run(all_rows, top, rows, [&](int64_t first, const RowRun& run) {
        each_stick_run(a, run.a, run.count, 0, shape.k,
                       [&](int64_t row, std::byte* from, int64_t column, size_t count) {
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
            each_stick_run(c, run.c, run.count, left, right,
                           [&](int64_t row, std::byte* at, int64_t column, size_t count) {
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
          table.multiply(
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
        table.settle(sums, rows * kPanel);
        each_of_c([&](std::byte* at, float* sums, size_t count) { round(at, sums, count); });
      }
  }
}

}  // namespace

void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape,
            std::span<const RowRun> rows) {
  multiply(chosen_table<kTables>(), c, a, b, shape, rows);
}

void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape) {
  const RowRun rows = even_rows(c, a, shape);
  matmul(c, a, b, shape, {&rows, 1});
}

void add_products(int64_t* sums, const int64_t* a, const int64_t* b, int64_t k) {
  chosen_table<kTables>().add_products(sums, a, b, k);
}

// For tests: the routines of one instruction set, which the machine must have.
namespace detail {
void matmul(const char* simd, const StickMatrix& c, const StickMatrix& a, const StickMatrix& b,
            const MatmulShape& shape) {
  const RowRun rows = even_rows(c, a, shape);
  multiply(table_of(kTables, simd), c, a, b, shape, {&rows, 1});
}
}  // namespace detail

}  // namespace spyre
