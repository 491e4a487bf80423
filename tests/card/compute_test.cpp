// Integers: matrix products against the plain loop, and division by zero.
#include "card/kernels/compute.h"

#include <random>

#include "card/error.h"
#include "card/kernels/matmul_tasks.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"
#include "testing.h"

using namespace spyre;

namespace {

// A matrix of integers in sticks along its columns, inside memory that holds 77 elsewhere.
struct Matrix {
  int64_t rows, columns, stick, height;
  DataFormat format;
  std::vector<std::byte> bytes;

  Matrix(DataFormat format, int64_t rows, int64_t columns)
      : rows(rows), columns(columns), stick(elements_per_stick(format)), height(rows + 3), format(format) {
    bytes.assign(size_t((columns + stick - 1) / stick * height * kStickBytes), std::byte{77});
  }
  std::byte* at(int64_t row, int64_t column) {
    return bytes.data() + (column / stick * height + row) * kStickBytes + column % stick * element_bytes(format);
  }
  int64_t get(int64_t row, int64_t column) {
    int32_t value = 0;
    std::memcpy(&value, at(row, column), size_t(element_bytes(format)));
    return format == DataFormat::SENINT8 ? int8_t(value) : format == DataFormat::SENINT16 ? int16_t(value) : value;
  }
  void set(int64_t row, int64_t column, int64_t value) {
    const auto low = static_cast<int32_t>(format == DataFormat::SENUINT32 ? value & 255 : value);
    std::memcpy(at(row, column), &low, size_t(element_bytes(format)));
  }
  void fill(std::mt19937& random) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) set(i, j, int64_t(random() % 256) - 128);
  }
  // Its rows along one dimension of a step, its sticks along another.
  Operand operand(int argument, size_t row, size_t column) const {
    Operand made{argument, 0, Dims(3, 0), format, static_cast<int>(column)};
    made.strides[row] = kStickBytes;
    made.strides[column] = height * kStickBytes;
    return made;
  }
};

struct Product {
  Matrix c, a, b;
  Step step;

  Product(DataFormat format, DataFormat result, int64_t m, int64_t n, int64_t k, bool transposed)
      : c(result, m, n), a(format, m, k), b(format, transposed ? n : k, transposed ? k : n) {
    step.op = OpCode::matmul;
    step.extents = {m, n, k};
    step.slices = {1, 1, 1};
    step.operands = {c.operand(0, 0, 1), a.operand(1, 0, 2), transposed ? b.operand(2, 1, 2) : b.operand(2, 2, 1)};
  }
  void run() {
    const MatmulTasks products(step, 1);
    for (int64_t task = 0; task < products.tasks(); ++task)
      products.run(task, {c.bytes.data(), a.bytes.data(), b.bytes.data()});
  }
};

}  // namespace

TEST("compute: products of integers are exact, and wrap in the result's format") {
  std::mt19937 random(3);
  constexpr DataFormat kInt8 = DataFormat::SENINT8, kUint8 = DataFormat::SENUINT32, kInt32 = DataFormat::IEEE_INT32;
  for (const auto& [format, result] :
       {std::pair{kInt32, kInt32}, {kInt8, kInt8}, {kInt8, kInt32}, {kUint8, kUint8}, {DataFormat::SENINT16, kInt32}})
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {3, 65, 129}, {17, 130, 300}, {40, 5, 600}})
      for (bool transposed : {false, true}) {
        Product product(format, result, m, n, k, transposed);
        product.a.fill(random);
        product.b.fill(random);
        Matrix want = product.c;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            int64_t sum = 0;
            for (int64_t at = 0; at < k; ++at)
              sum += product.a.get(i, at) * (transposed ? product.b.get(j, at) : product.b.get(at, j));
            want.set(i, j, sum);
          }
        product.run();
        CHECK(product.c.bytes == want.bytes);
      }
}

TEST("compute: a product that 32 bits do not hold is an error when checked") {
  Product product(DataFormat::IEEE_INT32, DataFormat::IEEE_INT32, 1, 1, 2, false);
  for (int64_t i : {0, 1}) product.a.set(0, i, 1 << 30), product.b.set(i, 0, 1);
  product.run();
  CHECK(product.c.get(0, 0) == INT32_MIN);
  product.step.checked = true;
  CHECK_THROWS(product.run(), ValueRange, "a result of matmul does not fit the 32 bits");
}

TEST("compute: integers divided by zero are an error, wherever the zero is") {
  std::vector<int32_t> a(100, 7), b(100, 2), c(100);
  Step step;
  step.op = OpCode::elementwise;
  step.extents = {100};
  step.slices = {1};
  step.source = "model.py:3";
  for (int argument : {0, 1, 2}) step.operands.push_back({argument, 0, {4}, DataFormat::IEEE_INT32});
  const auto run = [&] {
    const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
    run_elementwise(step, 0, {bytes(c), bytes(a), bytes(b)});
  };
  for (const char* function : {"floor_divide", "trunc_divide", "remainder", "fmod"}) {
    step.function = function;
    b[99] = 2;
    run();
    CHECK(c[99] == (std::string(function).ends_with("divide") ? 3 : 1));
    b[99] = 0;
    CHECK_THROWS(run(), DivisionByZero, "of integers by 0 (model.py:3)");
  }
}
