// Matrix products bit for bit against the plain loop that defines them, for every instruction set this machine has.
#include "card/kernels/matmul.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "card/error.h"
#include "testing.h"

namespace spyre::detail {  // of matmul.cpp and formats.cpp
void matmul(const char* simd, const StickMatrix& c, const StickMatrix& a, const StickMatrix& b, const MatmulShape&);
Convert host_to_device(const char* simd, HostType);
}  // namespace spyre::detail

using namespace spyre;

namespace {

constexpr DataFormat kHalf = DataFormat::SEN169_FP16, kSingle = DataFormat::IEEE_FP32;

std::vector<const char*> levels() {
  std::vector<const char*> usable;
  for (const char* level : {"portable", "avx2", "avx512"}) {
    try {
      detail::host_to_device(level, HostType::F16);
      usable.push_back(level);
    } catch (const ConfigurationError&) {
    }
  }
  return usable;
}

std::mt19937& generator() {
  static std::mt19937 engine(7);
  return engine;
}
int64_t pick(int64_t below) { return int64_t(generator()() % uint64_t(below)); }

// A matrix in sticks inside memory that holds nothing but NaN wherever no element lies. The rows of a stick are `gap`
// elements further apart than a stick, and sticks two rows further than they need be.
struct Matrix {
  int64_t rows, columns, stick, row_stride, stick_stride;
  DataFormat format;
  std::vector<std::byte> bytes;

  Matrix(DataFormat format, int64_t rows, int64_t columns, int64_t gap = 0)
      : rows(rows), columns(columns), stick(elements_per_stick(format)), format(format) {
    row_stride = stick + gap;
    stick_stride = (rows + 2) * row_stride;
    bytes.resize(size_t((columns + stick - 1) / stick * stick_stride * element_bytes(format)));
    for (size_t i = 0; i < bytes.size(); i += size_t(element_bytes(format)))
      put(i, std::numeric_limits<float>::quiet_NaN());
  }
  StickMatrix view() { return {bytes.data(), format, row_stride, stick_stride}; }
  size_t at(int64_t row, int64_t column) const {
    return size_t((column / stick * stick_stride + row * row_stride + column % stick) * element_bytes(format));
  }
  void put(size_t at, float value) {
    const uint16_t code = sen169_from_float(value);
    format == kHalf ? std::memcpy(&bytes[at], &code, 2) : std::memcpy(&bytes[at], &value, 4);
  }
  void set(int64_t row, int64_t column, float value) { put(at(row, column), value); }
  float get(int64_t row, int64_t column) const {
    uint16_t code;
    float value;
    std::memcpy(&code, &bytes[at(row, column)], 2);
    if (format == kHalf) return sen169_to_float(code);
    std::memcpy(&value, &bytes[at(row, column)], 4);
    return value;
  }
  Matrix&& random() && {
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) set(row, column, pick(16) ? normal(generator()) : -0.0f);
    return std::move(*this);
  }
  Matrix transposed() const {
    Matrix result(format, columns, rows);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) result.set(column, row, get(row, column));
    return result;
  }
};

// The definition.
void reference(Matrix& c, const Matrix& a, const Matrix& b, bool accumulate, bool wide = false) {
  std::vector<float> left(size_t(a.columns)), right(size_t(b.rows));
  for (int64_t column = 0; column < c.columns; ++column) {
    for (int64_t k = 0; k < b.rows; ++k) right[size_t(k)] = b.get(k, column);
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t k = 0; k < a.columns; ++k) left[size_t(k)] = a.get(row, k);
      float sum = accumulate ? c.get(row, column) : 0;
      double total = 0;
      for (size_t k = 0; k < left.size(); ++k) {
        if (wide && k % kChain == 0) total += std::exchange(sum, 0.0f);
        sum = std::fma(left[k], right[k], sum);
      }
      if (wide) sum = static_cast<float>(total + sum);
      c.set(row, column, std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum);
    }
  }
}

// Checks values and untouched padding at once, both orientations of B, all instruction sets.
void check(const std::string& what, Matrix a, Matrix b, Matrix c, bool accumulate = false, bool wide = false) {
  Matrix wanted = c, flipped = b.transposed();
  reference(wanted, a, b, accumulate, wide);
  for (const char* level : levels())
    for (const bool transposed : {false, true}) {
      Matrix got = c;
      detail::matmul(level, got.view(), a.view(), (transposed ? flipped : b).view(),
                     {a.rows, b.columns, b.rows, transposed, accumulate, wide});
      if (got.bytes != wanted.bytes)
        testing::fail(__FILE__, __LINE__, what + " on " + level + (transposed ? ", B transposed" : ""));
    }
}
std::string text(int64_t m, int64_t n, int64_t k) {
  return std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
}

}  // namespace

TEST("matmul: odd shapes") {
  const int64_t sizes[] = {1, 3, 63, 64, 65, 127, 129, 300};
  for (const int64_t m : sizes)
    for (const int64_t n : sizes) {
      const int64_t k = sizes[pick(8)];
      check(text(m, n, k), Matrix(kHalf, m, k).random(), Matrix(kHalf, k, n).random(), Matrix(kHalf, m, n));
    }
  for (const int64_t k : sizes)  // every height of a tile
    for (int64_t m = 1; m <= 14; ++m)
      check(text(m, 65, k), Matrix(kHalf, m, k).random(), Matrix(kHalf, k, 65).random(), Matrix(kHalf, m, 65));
}

TEST("matmul: formats and strides") {
  for (const DataFormat x : {kHalf, kSingle})
    for (const DataFormat y : {kHalf, kSingle})
      for (const DataFormat z : {kHalf, kSingle})
        for (const int64_t m : {1, 5, 9, 20})
          for (const int64_t n : {1, 31, 33, 64, 97, 130}) {
            const int64_t k = 1 + pick(140);
            check(text(m, n, k) + " " + name(x) + " " + name(y) + " " + name(z), Matrix(x, m, k, 3).random(),
                  Matrix(y, k, n, 64).random(), Matrix(z, m, n, 1));
          }
}

TEST("matmul: k beyond one block, and in pieces that accumulate") {
  for (const DataFormat format : {kHalf, kSingle})
    for (const int64_t m : {1, 7, 40}) {
      const int64_t k = 1100, n = 70;
      const Matrix a = Matrix(format, m, k).random(), b = Matrix(format, k, n).random();
      check(text(m, n, k), a, b, Matrix(kSingle, m, n).random(), true);
      Matrix whole(kSingle, m, n), pieces(kSingle, m, n);
      matmul(whole.view(), Matrix(a).view(), Matrix(b).view(), {m, n, k});
      for (const int64_t begin : {0, 128, 192, 1088}) {  // at stick boundaries of both formats
        const int64_t end = begin == 0 ? 128 : begin == 128 ? 192 : begin == 192 ? 1088 : k;
        Matrix left = a, right = b;
        StickMatrix x = left.view(), y = right.view();
        x.base += left.at(0, begin);
        y.base += right.at(begin, 0);
        matmul(pieces.view(), x, y, {m, n, end - begin, false, begin != 0});
      }
      CHECK(pieces.bytes == whole.bytes);
    }
}

TEST("matmul: chains that are added up in fp64") {
  for (const int64_t m : {1, 2, 8, 25, 40})
    for (const int64_t k : {5, 64, 65, 128, 500, 512, 1100})
      for (const int64_t n : {1, 64, 150})
        check(text(m, n, k), Matrix(kSingle, m, k).random(), Matrix(kSingle, k, n).random(), Matrix(kSingle, m, n),
              false, true);
}

TEST("matmul: a repeated row") {
  Matrix row = Matrix(kHalf, 1, 100).random(), repeated(kHalf, 9, 100), b = Matrix(kHalf, 100, 80).random();
  for (int64_t r = 0; r < 9; ++r)
    for (int64_t k = 0; k < 100; ++k) repeated.set(r, k, row.get(0, k));
  Matrix c(kHalf, 9, 80), wanted = c;
  reference(wanted, repeated, b, false);
  StickMatrix a = row.view();
  a.row_stride = 0;
  matmul(c.view(), a, b.view(), {9, 80, 100});
  CHECK(c.bytes == wanted.bytes);
  Matrix ones = Matrix(kHalf, 1, 80).random(), same(kHalf, 100, 80);
  for (int64_t k = 0; k < 100; ++k)
    for (int64_t n = 0; n < 80; ++n) same.set(k, n, ones.get(0, n));
  reference(wanted, repeated, same, false);
  StickMatrix b0 = ones.view();
  b0.row_stride = 0;
  matmul(c.view(), repeated.view(), b0, {9, 80, 100});
  CHECK(c.bytes == wanted.bytes);
}

TEST("matmul: every code of SEN169") {
  const int64_t k = 3, n = 65536 / 2;
  for (const int64_t m : {1, 13}) {
    Matrix a(kHalf, m, k), b(kHalf, k, n);
    for (int64_t row = 0; row < m; ++row)
      for (int64_t i = 0; i < k; ++i) a.set(row, i, i == row % k ? 1.0f : 0.0f);
    for (int64_t i = 0; i < k; ++i)  // among them inf and NaN, which zeros of A turn into NaN
      for (int64_t column = 0; column < n; ++column) {
        const uint16_t code = uint16_t(column * 2 + (i == 1));
        std::memcpy(&b.bytes[b.at(i, column)], &code, 2);
      }
    check("codes, " + std::to_string(m) + " rows", a, b, Matrix(kSingle, m, n));
    check("codes, " + std::to_string(m) + " rows", a, b, Matrix(kHalf, m, n));
  }
}

TEST("matmul: inf, NaN, overflow, subnormals") {
  const float odd[] = {INFINITY, -INFINITY, NAN,    -NAN,   0,       -0.0f,  4e9f,
                       -4e9f,    1e38f,     -1e38f, 1e-40f, -1e-44f, 1e-20f, 1};
  for (const DataFormat format : {kHalf, kSingle})
    for (const int64_t m : {1, 2, 6, 8, 12, 30}) {
      Matrix a = Matrix(format, m, 200).random(), b = Matrix(format, 200, 70).random();
      for (int64_t i = 0; i < m * 3; ++i) a.set(pick(m), pick(200), odd[pick(14)]);
      for (int64_t i = 0; i < 40; ++i) b.set(pick(200), pick(70), odd[pick(14)]);
      check("odd values, " + std::to_string(m) + " rows", a, b, Matrix(kSingle, m, 70));
      check("odd values, " + std::to_string(m) + " rows", a, b, Matrix(kHalf, m, 70));
    }
}

TEST("matmul: a split of rows and columns, on several threads") {
  const int64_t m = 50, n = 256, k = 700;
  Matrix a = Matrix(kHalf, m, k).random(), b = Matrix(kHalf, k, n).random(), whole(kHalf, m, n), parts = whole;
  matmul(whole.view(), a.view(), b.view(), {m, n, k});
  std::vector<std::thread> cores;
  for (const int64_t top : {0, 1, 20})
    for (const int64_t left : {0, 64, 192})
      cores.emplace_back([&, top, left] {
        StickMatrix x = a.view(), y = b.view(), z = parts.view();
        x.base += a.at(top, 0);
        y.base += b.at(0, left);
        z.base += parts.at(top, left);
        matmul(z, x, y, {top == 0 ? 1 : top == 1 ? 19 : 30, left == 64 ? 128 : 64, k});
      });
  for (std::thread& core : cores) core.join();
  CHECK(parts.bytes == whole.bytes);
}

TEST("matmul: refuses what the matrix unit does not take") {
  Matrix a(kHalf, 2, 2), b(kHalf, 2, 2), c(kHalf, 2, 2);
  StickMatrix integers = b.view();
  integers.format = DataFormat::SENINT16;
  CHECK_THROWS(matmul(c.view(), a.view(), integers, {2, 2, 2}), InvalidProgram, "operand B is SENINT16");
  integers.format = DataFormat::SENINT8;
  CHECK_THROWS(matmul(c.view(), integers, b.view(), {2, 2, 2}), InvalidProgram, "operand A is SENINT8");
  CHECK_THROWS(matmul(c.view(), a.view(), b.view(), {2, 2, 2, false, true}), InvalidProgram, "IEEE_FP32");
}
