// iota, gather, scatter, scan, argreduce and topk against plain loops over points.
#include "card/kernels/index_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "card/error.h"
#include "card/program/index_step.h"
#include "testing.h"

using namespace spyre;

namespace {

constexpr DataFormat kHalf = DataFormat::SEN169_FP16, kFloat = DataFormat::IEEE_FP32, kInt = DataFormat::IEEE_INT32;
constexpr int64_t kExtents[] = {1, 3, 63, 64, 65, 129, 1000};
constexpr int64_t kSlices[] = {1, 2, 5, 32};
const double kNan = std::nan(""), kInf = std::numeric_limits<double>::infinity();

void each(const Dims& extents, const std::function<void(const Dims&)>& body) {
  Dims point(extents.size(), 0);
  for (int64_t left = product(extents); left > 0; --left) {
    body(point);
    for (size_t i = extents.size(); i-- > 0;) {
      if (++point[i] < extents[i]) break;
      point[i] = 0;
    }
  }
}

// An operand with memory of its own, element by element.
struct Data {
  Operand operand;
  std::vector<std::byte> bytes;

  // Dense over `size`, in sticks along dimension `stick` or, with -1, simply row-major; 0 in `size`: it does not move.
  Data(const Dims& size, DataFormat format, int stick = -1) {
    operand.format = format;
    operand.offset = 256;
    operand.strides = Dims(size.size(), 0);
    operand.stick = stick;
    int64_t next = stick < 0 ? element_bytes(format) : kStickBytes;
    for (size_t i = size.size(); i-- > 0;)
      if (size[i] && static_cast<int>(i) != stick) operand.strides[i] = std::exchange(next, next * size[i]);
    if (stick >= 0) {
      const int64_t lanes = elements_per_stick(format);
      operand.strides[stick] = std::exchange(next, next * ((size[stick] + lanes - 1) / lanes));
    }
    bytes.resize(operand.offset + next);
  }
  // Numbers that every format holds, with repetitions.
  Data& random(int seed, int least = -40, int most = 40) {
    std::mt19937 generator(seed);
    std::uniform_int_distribution<int> number(least, most);
    for (int64_t at = 0; at < static_cast<int64_t>(bytes.size()); at += element_bytes(operand.format))
      set_at(at, number(generator));
    return *this;
  }

  int64_t step(size_t axis, int64_t at) const {
    const int64_t lanes = elements_per_stick(operand.format);
    return static_cast<int>(axis) == operand.stick
               ? at / lanes * operand.strides[axis] + at % lanes * element_bytes(operand.format)
               : at * operand.strides[axis];
  }
  int64_t at(const Dims& point) const {
    int64_t sum = operand.offset;
    for (size_t i = 0; i < point.size(); ++i) sum += step(i, point[i]);
    return sum;
  }
  double get_at(int64_t at) const {
    switch (operand.format) {
      case kHalf:
        return sen169_to_float(stored<uint16_t>(at));
      case kFloat:
        return stored<float>(at);
      default:
        return stored<int32_t>(at);
    }
  }
  void set_at(int64_t at, double value) {
    switch (operand.format) {
      case kHalf:
        return store(at, sen169_from_float(static_cast<float>(value)));
      case kFloat:
        return store(at, static_cast<float>(value));
      default:
        return store(at, static_cast<int32_t>(value));
    }
  }
  double get(const Dims& point) const { return get_at(at(point)); }
  void set(const Dims& point, double value) { set_at(at(point), value); }

  template <typename Stored>
  Stored stored(int64_t at) const {
    Stored value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  template <typename Stored>
  void store(int64_t at, Stored value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
};

Data constant(double value, DataFormat format) {
  Data data({}, format);
  data.operand.argument = -1;
  data.operand.value = value;
  return data;
}

Step step_of(OpCode op, const Dims& extents, const std::vector<Data*>& data, const std::string& function = "") {
  Step step;
  step.op = op;
  step.extents = extents;
  step.slices = Dims(extents.size(), 1);
  step.function = function;
  step.source = "model.py:3";
  for (const Data* one : data) step.operands.push_back(one->operand);
  return step;
}

std::string refusal(const Step& step) {
  const auto wrong = check_indexed(step);
  return wrong ? wrong->first + ": " + wrong->second : "accepted";
}

void run(const Step& step, const std::vector<Data*>& data) {
  const std::string refused = refusal(step);
  if (refused != "accepted") return testing::fail(__FILE__, __LINE__, refused);
  std::vector<std::byte*> bases;
  for (Data* one : data) bases.push_back(one->operand.argument < 0 ? nullptr : one->bytes.data());
  for (int core = 0; core < step.cores(); ++core) run_indexed(step, core, bases);
}

// Runs a step into a fresh copy of operand 0 for every division of dimension `axis` that there is, and compares all
// bytes: padding, and what lies around, must stay.
bool gives(Step step, std::vector<Data*> data, const Data& want, size_t axis) {
  const Data before = *data[0];
  bool good = true;
  for (int64_t slices : kSlices) {
    if (slices > step.extents[axis]) continue;
    step.slices[axis] = slices;
    Data written = before;
    data[0] = &written;
    run(step, data);
    good &= written.bytes == want.bytes;
  }
  return good;
}

double applied(const std::string& function, double a, double b, bool real) {
  const double result = function == "add"       ? a + b
                        : function == "mul"     ? a * b
                        : function == "maximum" ? (a > b || a != a ? a : b)
                                                : (a < b || a != a ? a : b);
  return real ? static_cast<double>(static_cast<float>(result)) : result;
}

}  // namespace

TEST("iota counts along every dimension") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int stick : {-1, 0, 1}) {
        const Dims size = {extent, 5};
        Data written(size, format, stick), want = written;
        Step step = step_of(OpCode::iota, size, {&written});
        step.constants = {-7, 1, 1000};
        each(size, [&](const Dims& p) { want.set(p, -7.0 + p[0] + 1000.0 * p[1]); });
        CHECK(gives(step, {&written}, want, 0));
      }
}

TEST("iota of fractions rounds once, through fp32") {
  Data written({1000}, kHalf, 0), want = written;
  Step step = step_of(OpCode::iota, {1000}, {&written});
  step.constants = {0.1, 0.3};
  each({1000}, [&](const Dims& p) { want.set(p, 0.1 + 0.3 * static_cast<double>(p[0])); });
  CHECK(gives(step, {&written}, want, 0));
}

TEST("iota that leaves its format wraps, or is an error when checked") {
  Data written({3}, kInt);
  Step step = step_of(OpCode::iota, {3}, {&written});
  step.constants = {2147483647.0, 1};
  run(step, {&written});
  CHECK(written.get({1}) == -2147483648.0);
  step.checked = true;
  CHECK_THROWS(run(step, {&written}), ValueRange, "a result of iota does not fit the 32 bits");
}

TEST("gather takes rows, also by negative indices") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int table_stick : {-1, 1})
        for (int stick : {-1, 0, 1}) {
          const Dims size = {7, extent};
          Data written(size, format, stick), table({11, extent}, format, table_stick), index({7, 0}, kInt);
          table.random(1);
          index.random(2, -11, 10);
          Step step = step_of(OpCode::gather, size, {&written, &table, &index});
          const int64_t stride = std::exchange(step.operands[1].strides[0], 0);
          step.indirect = {{2, 11, stride, false}};
          Data want = written;
          each(size, [&](const Dims& p) {
            const auto row = static_cast<int64_t>(index.get(p));
            want.set(p, table.get({row < 0 ? row + 11 : row, p[1]}));
          });
          CHECK(gives(step, {&written, &table, &index}, want, 0));
          CHECK(gives(step, {&written, &table, &index}, want, 1));
        }
}

TEST("gather along the table's sticks, by an index for every point") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int index_stick : {-1, 0, 1}) {
        const Dims size = {5, extent};
        Data written(size, format, 1), table({5, extent}, format, 1), index(size, kInt, index_stick);
        table.random(1);
        index.random(2, 0, static_cast<int>(extent) - 1);
        Step step = step_of(OpCode::gather, size, {&written, &table, &index});
        step.operands[1].stick = -1;
        const int64_t stride = std::exchange(step.operands[1].strides[1], 0);
        step.indirect = {{2, extent, stride, true}};
        Data want = written;
        each(size, [&](const Dims& p) { want.set(p, table.get({p[0], static_cast<int64_t>(index.get(p))})); });
        CHECK(gives(step, {&written, &table, &index}, want, 1));
      }
}

TEST("gather by two indices, of which one is a constant") {
  Data written({65, 3}, kHalf, 0), table({9, 4, 3}, kHalf), first({65, 0}, kInt), second = constant(-1, kInt);
  table.random(1);
  first.random(2, 0, 8);
  Data want = written;
  each({65, 3}, [&](const Dims& p) { want.set(p, table.get({static_cast<int64_t>(first.get(p)), 3, p[1]})); });
  Step step = step_of(OpCode::gather, {65, 3}, {&written, &table, &first, &second});
  step.operands[1].strides = {0, 2};
  step.indirect = {{2, 9, 24, false}, {3, 4, 6, false}};
  CHECK(gives(step, {&written, &table, &first, &second}, want, 0));
}

TEST("an index out of bounds is named, with its dimension and its source") {
  Data written({1}, kHalf), table({5}, kHalf), index({1}, kInt);
  Step step = step_of(OpCode::gather, {1}, {&written, &table, &index});
  step.operands[1].strides = {0};
  step.indirect = {{2, 5, 2, false}};
  index.set({0}, 7);
  CHECK_THROWS(run(step, {&written, &table, &index}), IndexRange,
               "index 7 is out of bounds for a dimension of 5 (gather, model.py:3)");
  index.set({0}, -6);
  CHECK_THROWS(run(step, {&written, &table, &index}), IndexRange, "index -6 is out of bounds for a dimension of 5");
  index.set({0}, -5);
  run(step, {&written, &table, &index});
}

TEST("scatter of rows: the last value stays, or all are folded and rounded once") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int stick : {-1, 1})
        for (const char* function : {"copy", "add", "mul", "maximum", "minimum"}) {
          const Dims size = {20, extent};
          Data table({9, extent}, format, stick), values(size, format, 1), index({20, 0}, kInt);
          table.random(1, -3, 3);
          values.random(2, -3, 3);
          index.random(3, -9, 8);
          Step step = step_of(OpCode::scatter, size, {&table, &values, &index}, function);
          const int64_t stride = std::exchange(step.operands[0].strides[0], 0);
          step.indirect = {{2, 9, stride, false}};
          Data want = table;
          Data wide({9, extent}, format == kHalf ? kFloat : format);  // between updates nothing is rounded to fp16
          each({9, extent}, [&](const Dims& p) { wide.set(p, table.get(p)); });
          each(size, [&](const Dims& p) {
            const auto row = static_cast<int64_t>(index.get(p));
            const Dims place = {row < 0 ? row + 9 : row, p[1]};
            wide.set(place, !std::strcmp(function, "copy")
                                ? values.get(p)
                                : applied(function, wide.get(place), values.get(p), format != kInt));
          });
          each({9, extent}, [&](const Dims& p) { want.set(p, wide.get(p)); });
          CHECK(gives(step, {&table, &values, &index}, want, 1));
        }
}

TEST("scatter_add keeps what single updates in fp16 would lose") {
  Data table({1}, kHalf), values({4096}, kHalf, 0), index({4096}, kInt);
  table.set({0}, 1024);
  each({4096}, [&](const Dims& p) { values.set(p, 0.25), index.set(p, 0); });
  Step step = step_of(OpCode::scatter, {4096}, {&table, &values, &index}, "add");
  step.operands[0].strides = {0};
  step.indirect = {{2, 1, 2, false}};
  run(step, {&table, &values, &index});
  CHECK(table.get({0}) == 2048);
}

TEST("scatter by an index for every point divides the dimension that the table keeps") {
  for (const char* function : {"copy", "add"}) {
    const Dims size = {50, 129};
    Data table({6, 129}, kHalf, 1), values(size, kHalf, 1), index(size, kInt, 0);
    table.random(1, -3, 3);
    values.random(2, -3, 3);
    index.random(3, 0, 5);
    Step step = step_of(OpCode::scatter, size, {&table, &values, &index}, function);
    const int64_t stride = std::exchange(step.operands[0].strides[0], 0);
    step.indirect = {{2, 6, stride, false}};
    Data want = table;
    each(size, [&](const Dims& p) {
      const Dims place = {static_cast<int64_t>(index.get(p)), p[1]};
      want.set(place, *function == 'c' ? values.get(p) : want.get(place) + values.get(p));
    });
    CHECK(gives(step, {&table, &values, &index}, want, 1));
  }
}

TEST("values for one element are taken in row-major order") {
  for (const char* function : {"copy", "add"}) {
    const Dims size = {300, 3};
    Data table({4}, kFloat), values(size, kFloat), index(size, kInt);
    index.random(3, 0, 3);
    each(size,
         [&](const Dims& p) { values.set(p, std::pow(1.1, (p[0] * 37 + p[1] * 11) % 100)); });  // sums are inexact
    Step step = step_of(OpCode::scatter, size, {&table, &values, &index}, function);
    step.operands[0].strides = {0, 0};
    step.indirect = {{2, 4, 4, false}};
    Data want = table;
    each(size, [&](const Dims& p) {
      const Dims place = {static_cast<int64_t>(index.get(p))};
      want.set(place, *function == 'c' ? values.get(p) : applied("add", want.get(place), values.get(p), true));
    });
    run(step, {&table, &values, &index});
    CHECK(table.bytes == want.bytes);
  }
}

TEST("scatter keeps to row-major order where strides and indices overlap") {
  // table[2 * (p0 + p1 + index(p0))]: any of the three can lead to one element.
  Data table({80}, kInt), values({10, 12}, kInt), index({10, 0}, kInt);
  values.random(2);
  index.random(3, 0, 9);
  Step step = step_of(OpCode::scatter, {10, 12}, {&table, &values, &index}, "copy");
  step.operands[0].strides = {8, 8};
  step.indirect = {{2, 10, 8, false}};
  Data want = table;
  each({10, 12},
       [&](const Dims& p) { want.set({2 * (p[0] + p[1] + static_cast<int64_t>(index.get(p)))}, values.get(p)); });
  run(step, {&table, &values, &index});
  CHECK(table.bytes == want.bytes);
}

TEST("scatter of a constant") {
  for (const char* function : {"copy", "add"}) {
    Data table({9, 65}, kHalf, 1), value = constant(2.5, kHalf), index({4, 0}, kInt);
    each({4, 1}, [&](const Dims& p) { index.set(p, static_cast<double>(p[0] * 2)); });
    Step step = step_of(OpCode::scatter, {4, 65}, {&table, &value, &index}, function);
    const int64_t stride = std::exchange(step.operands[0].strides[0], 0);
    step.indirect = {{2, 9, stride, false}};
    Data want = table;
    each({4, 65}, [&](const Dims& p) { want.set({p[0] * 2, p[1]}, 2.5); });
    CHECK(gives(step, {&table, &value, &index}, want, 1));
  }
}

TEST("scan writes every partial result, rounded from the running value") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int stick : {-1, 0, 1, 2})
        for (const char* function : {"add", "maximum", "minimum"}) {
          const Dims size = {3, 70, extent};
          Data written(size, format, stick), read(size, format, stick == 2 ? 1 : 2);
          read.random(1);
          Step step = step_of(OpCode::scan, size, {&written, &read}, function);
          step.constants = {*function == 'a' ? 5.0 : function[1] == 'a' ? -kInf : kInf};
          Data want = written;
          double running = 0;
          each(size, [&](const Dims& p) {
            if (p[2] == 0) running = step.constants[0];
            running = applied(function, running, read.get(p), format != kInt);
            want.set(p, running);
          });
          CHECK(gives(step, {&written, &read}, want, 1));
          CHECK(gives(step, {&written, &read}, want, 2));
        }
}

TEST("scan in place, of products, and of a constant") {
  Data data({65}, kFloat), want = data, ones = constant(1, kInt), counted({65}, kInt);
  each({65}, [&](const Dims& p) { data.set(p, 1 + 0.01 * static_cast<double>(p[0])); });
  double running = 1;
  each({65}, [&](const Dims& p) { want.set(p, running *= data.get(p)); });  // in fp64
  Step step = step_of(OpCode::scan, {65}, {&data, &data}, "mul");
  step.constants = {1};
  run(step, {&data, &data});
  CHECK(data.bytes == want.bytes);
  step = step_of(OpCode::scan, {65}, {&counted, &ones}, "add");
  step.constants = {0};
  run(step, {&counted, &ones});
  CHECK(counted.get({64}) == 65);
}

TEST("scan of integers wraps, or is an error when checked") {
  Data written({2}, kInt), read({2}, kInt);
  read.set({0}, 2147483647.0);
  read.set({1}, 1);
  Step step = step_of(OpCode::scan, {2}, {&written, &read}, "add");
  step.constants = {0};
  run(step, {&written, &read});
  CHECK(written.get({1}) == -2147483648.0);
  step.checked = true;
  CHECK_THROWS(run(step, {&written, &read}), ValueRange, "a result of add does not fit the 32 bits");
}

TEST("scan for positions finds the last of the best so far") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int stick : {-1, 0, 1, 2})
        for (const char* function : {"argmax", "argmin"}) {
          const Dims size = {3, 70, extent};
          Data written(size, kInt, stick), read(size, format, stick == 2 ? 1 : 2);
          read.random(1);
          Step step = step_of(OpCode::scan, size, {&written, &read}, function);
          step.constants = {0};
          Data want = written;
          double best = 0, place = 0;
          each(size, [&](const Dims& p) {
            const double value = read.get(p);
            if (p[2] == 0 || (function[4] == 'a' ? value >= best : value <= best)) best = value, place = double(p[2]);
            want.set(p, place);
          });
          CHECK(gives(step, {&written, &read}, want, 1));
        }
  Data written({5}, kInt), read({5}, kHalf, 0);
  for (const auto& [at, value] : {std::pair{0, 1.0}, {1, kNan}, {2, kInf}, {3, kNan}, {4, 7.0}}) read.set({at}, value);
  Step step = step_of(OpCode::scan, {5}, {&written, &read}, "argmax");
  step.constants = {0};
  run(step, {&written, &read});
  for (int64_t at : {0, 1, 2, 3, 4}) CHECK(written.get({at}) == (at == 0 ? 0 : at < 3 ? 1 : 3));
}

TEST("argreduce finds the first of the best, in row-major order") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t extent : kExtents)
      for (int stick : {-1, 0, 1, 2})
        for (int reduced : {1, 2})
          for (const char* function : {"argmax", "argmin"}) {
            const Dims size = {70, 3, extent};
            Data written(reduced == 1 ? Dims{70, 3, 0} : Dims{70, 0, 0}, kInt), read(size, format, stick);
            read.random(1);
            Step step = step_of(OpCode::argreduce, size, {&written, &read}, function);
            step.reduced = reduced;
            Data want = written;
            double best = 0;
            each(size, [&](const Dims& p) {
              const int64_t place = reduced == 1 ? p[2] : p[1] * extent + p[2];
              if (place && !(function[4] == 'a' ? read.get(p) > best : read.get(p) < best)) return;
              best = read.get(p);
              want.set(p, static_cast<double>(place));
            });
            CHECK(gives(step, {&written, &read}, want, 0));
            CHECK(gives(step, {&written, &read}, want, 2));
          }
}

TEST("argreduce: the first NaN wins, and infinities everywhere give the first") {
  for (const char* function : {"argmax", "argmin"}) {
    Data written({0}, kInt), read({200}, kHalf, 0);
    each({200}, [&](const Dims& p) { read.set(p, p[0] % 2 ? kInf : -kInf); });
    read.set({70}, kNan), read.set({150}, kNan);
    Step step = step_of(OpCode::argreduce, {200}, {&written, &read}, function);
    step.reduced = 1;
    run(step, {&written, &read});
    CHECK(written.get({0}) == 70);
    each({200}, [&](const Dims& p) { read.set(p, function[4] == 'a' ? -kInf : kInf); });
    run(step, {&written, &read});
    CHECK(written.get({0}) == 0);
  }
}

TEST("topk orders values, and positions where they are equal") {
  for (DataFormat format : {kHalf, kFloat, kInt})
    for (int64_t n : kExtents)
      for (int stick : {-1, 0, 2})
        for (int64_t k : {int64_t{1}, n / 9 + 1, n})
          for (double largest : {0.0, 1.0}) {
            const int64_t rows = n < 1000 ? 70 : 5;
            const Dims size = {rows, k, n};
            Data values({rows, k, 0}, format, stick == 0 ? 1 : stick == 2 ? 0 : -1), indices({rows, k, 0}, kInt);
            Data read({rows, 0, n}, format, stick);
            read.random(1);
            if (format != kInt && n > 4)
              read.set({1, 0, 2}, kNan), read.set({1, 0, 4}, kNan), read.set({2, 0, 1}, -0.0);
            Data want_values = values, want_indices = indices;
            for (int64_t row = 0; row < rows; ++row) {
              std::vector<int64_t> order(n);
              std::vector<double> value(n);
              for (int64_t i = 0; i < n; ++i) order[i] = i, value[i] = read.get({row, 0, i});
              std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
                const double x = value[largest == 1 ? a : b], y = value[largest == 1 ? b : a];
                return x > y || (x != x && y == y);
              });
              for (int64_t i = 0; i < k; ++i) {
                std::memcpy(&want_values.bytes[want_values.at({row, i})], &read.bytes[read.at({row, 0, order[i]})],
                            element_bytes(format));
                want_indices.set({row, i}, static_cast<double>(order[i]));
              }
            }
            Step step = step_of(OpCode::topk, size, {&values, &read}, "topkvalue");
            step.constants = {largest};
            for (size_t axis : {0, 1, 2}) CHECK(gives(step, {&values, &read}, want_values, axis));
            step.function = "topkindex";
            step.operands[0] = indices.operand;
            for (size_t axis : {0, 1, 2}) CHECK(gives(step, {&indices, &read}, want_indices, axis));
          }
}

TEST("indexed steps that are wrong are refused by field") {
  const auto has = [](const Step& step, const char* part) {
    const bool good = refusal(step).find(part) != std::string::npos;
    if (!good) std::printf("  said: %s\n", refusal(step).c_str());
    return good;
  };
  Data half({8, 64}, kHalf), integers({8, 64}, kInt), row({0, 64}, kHalf), index({8, 0}, kInt), rows({8, 0}, kInt);
  Data bytes({8, 0}, DataFormat::SENINT8), value = constant(1, kHalf);

  Step iota = step_of(OpCode::iota, {8, 64}, {&integers});
  CHECK(has(iota, "constants: needs a first value and one step per extent, has 0"));
  iota.constants = {0, 0.5, 1};
  CHECK(has(iota, "constants: 0.500000 is no integer, as IEEE_INT32 needs"));
  iota.constants = {0, 0x1p52, 1};
  CHECK(has(iota, "constants: lead to integers above 2^53"));
  iota.constants = {0, 64, 1};
  iota.operands[0].strides[0] = 0;
  CHECK(has(iota, "operand 0: must have a stride along dimension 0"));

  Step gather = step_of(OpCode::gather, {8, 64}, {&half, &row, &index});
  CHECK(has(gather, "indirect: has no entry for the indices in operand 2"));
  gather.indirect = {{2, 8, 128, false}};
  CHECK(has(gather, "accepted"));
  const auto changed = [](Step step, const std::function<void(Step&)>& change) {
    change(step);
    return step;
  };
  CHECK(has(changed(gather, [](Step& s) { s.operands.pop_back(); }), "operands: gather takes at least 3, has 2"));
  CHECK(has(changed(gather, [](Step& s) { s.operands[2].format = kFloat; }),
            "operand 2: indices must be integers, not IEEE_FP32"));
  CHECK(has(changed(gather, [](Step& s) { s.operands[1].format = kFloat; }),
            "operands: gather does not convert, the formats are SEN169_FP16 and IEEE_FP32"));
  CHECK(has(changed(gather, [&](Step& s) { s.operands[1] = value.operand; }),
            "operand 1: is a constant, gather needs it in memory"));
  CHECK(has(changed(gather, [](Step& s) { s.indirect.push_back({5, 8, 128, false}); }),
            "indirect: entry 1 names operand 5, which is no index"));
  CHECK(has(changed(gather, [](Step& s) { s.indirect[0].extent = 0; }), "indirect: entry 0 has an extent of 0"));
  CHECK(has(changed(gather, [](Step& s) { s.indirect[0].stride = 3; }),
            "indirect: entry 0 has a stride that is not a multiple of the element's 2 bytes"));
  CHECK(has(changed(gather, [](Step& s) { s.indirect[0].extent = int64_t{1} << 60; }),
            "indirect: entry 0 has extent and stride that lead beyond the card's address space"));
  CHECK(has(changed(gather, [](Step& s) { s.operands[1].stick = 1, s.indirect[0].stick = true; }),
            "indirect: entry 0 is the second that runs along the sticks of operand 1"));

  Step scatter = step_of(OpCode::scatter, {8, 64}, {&row, &half, &index}, "copy");
  scatter.indirect = {{2, 8, 128, false}};
  CHECK(has(scatter, "accepted"));
  CHECK(has(changed(scatter, [](Step& s) { s.slices = {1, 2}; }), "accepted"));
  CHECK(has(changed(scatter, [](Step& s) { s.slices = {2, 1}; }),
            "slices: dimension 0 is divided, and two cores could write one element"));
  CHECK(has(changed(scatter, [](Step& s) { s.slices = {1, 2}, s.indirect[0].stride = 64; }),
            "slices: dimension 1 is divided, and two cores could write one element"));
  CHECK(has(changed(scatter, [](Step& s) { s.function = "exp"; }),
            "function: the card has no tile operation 'exp' that folds two values of SEN169_FP16"));
  CHECK(has(changed(scatter, [](Step& s) { s.function = "add", s.operands[0].format = kInt; }),
            "operand 0: add does not give IEEE_INT32"));

  Step scan = step_of(OpCode::scan, {8, 64}, {&half, &half}, "add");
  CHECK(has(scan, "constants: needs the value to start from, has 0"));
  scan.constants = {0};
  CHECK(has(scan, "accepted"));
  CHECK(has(changed(scan, [](Step& s) { s.operands[0].strides[1] = 0; }),
            "operand 0: must have a stride along dimension 1"));

  Step arg = step_of(OpCode::argreduce, {8, 64}, {&rows, &half}, "argmax");
  CHECK(has(arg, "reduced: 0 of 2 dimensions"));
  arg.reduced = 1;
  CHECK(has(arg, "accepted"));
  CHECK(has(changed(arg, [](Step& s) { s.function = "max"; }), "function: must be argmax or argmin, not 'max'"));
  CHECK(has(changed(arg, [&](Step& s) { s.operands[0] = half.operand; }),
            "operand 0: positions must be integers, not SEN169_FP16"));
  CHECK(has(changed(arg, [&](Step& s) { s.operands[0] = integers.operand; }),
            "operand 0: must have stride 0 along dimension 1, which is folded"));
  CHECK(has(changed(arg, [&](Step& s) { s.operands[0] = bytes.operand, s.extents[1] = 129; }),
            "operand 0: SENINT8 does not hold positions up to 128"));

  Data ranks({8, 5, 0}, kInt), ordered({8, 0, 64}, kHalf);
  Step topk = step_of(OpCode::topk, {8, 5, 64}, {&ranks, &ordered}, "topkindex");
  CHECK(has(topk, "constants: needs 1 for the largest or 0 for the smallest, has 0"));
  topk.constants = {1};
  CHECK(has(topk, "accepted"));
  CHECK(has(changed(topk, [](Step& s) { s.extents[1] = 65; }), "extents: the first 65 of 64 elements"));
  CHECK(has(changed(topk, [](Step& s) { s.constants = {2}; }), "constants: 1 takes the largest, 0 the smallest"));
  CHECK(has(changed(topk, [](Step& s) { s.function = "topkvalue"; }), "operands: topk does not convert"));
  CHECK(has(changed(topk, [](Step& s) { s.operands[1].strides[1] = 2; }),
            "operand 1: must have stride 0 along dimension 1, which counts ranks"));
  CHECK(has(changed(topk, [](Step& s) { s.operands[0].strides[2] = 4; }),
            "operand 0: must have stride 0 along dimension 2, which is folded"));
}
