// Matrix products over operands in sticks, as one core of the card computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "card/numeric/formats.h"

namespace spyre {

// Element (row, column) is at base + (column / S) * stick_stride + row * row_stride + column % S, counted in
// elements, where S of them make a stick of the format. A stick is there as a whole, whatever its padding holds.
struct StickMatrix {
  std::byte* base;
  DataFormat format;     // SEN169_FP16 or IEEE_FP32; of B any weight format
  int64_t row_stride;    // in elements; 0 repeats one row
  int64_t stick_stride;  // in elements
};

struct MatmulShape {
  int64_t m, n, k;            // each at least 1, none a multiple of anything
  bool transposed_b = false;  // B is given as rows n, columns k
  bool accumulate = false;    // start from what C, in fp32, holds instead of zero
  bool wide = false;          // add up chains of kChain in fp64; not with `accumulate`
};

// Rows of A and their rows of C at even distances, in elements from the bases of both.
struct RowRun {
  struct Rows {
    int64_t at, stride;
  };
  int64_t count;
  Rows a, c;
};

constexpr int64_t kPanel = 64;  // columns of C that are taken at a time
constexpr int64_t kChain = 64;  // products that are added up in fp32 before their sum is added in fp64

// C[m, n] = A[m, k] B[k, n]. Every element of C is one chain of fp32 fma in ascending k, rounded once into C's format,
// so its bits depend on neither instruction set, blocking, split of m and n nor orientation of B; and a split of k into
// calls that accumulate gives the bits of one call. A `wide` product has the sum of such chains of kChain each. A NaN
// is the positive quiet one whatever it came from. Padding of A and B is not used, padding of C not written. C overlaps
// neither A nor B.
void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape);
// The same for several runs of rows, m in all.
void matmul(const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape& shape,
            std::span<const RowRun> rows);

// Integers: sums[j] += a[0] * b[0][j] + ... + a[k - 1] * b[k - 1][j] in 64 bits, for the kIntegerPanel columns of b.
constexpr int64_t kIntegerPanel = 64;
void add_products(int64_t* sums, const int64_t* a, const int64_t* b, int64_t k);

}  // namespace spyre
