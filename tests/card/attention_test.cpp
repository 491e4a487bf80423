// Attention against a plain double computation, and the same bits however it is cut.
#include "card/kernels/attention.h"

#include <cmath>
#include <cstring>
#include <random>

#include "card/card.h"
#include "card/program/core_split.h"
#include "card/program/step_work.h"
#include "testing.h"

using namespace spyre;

namespace spyre::detail {  // of attention.cpp and formats.cpp
void attention(const char* simd, const Step& step, const std::vector<std::byte*>& bases, const Dims& points);
Convert host_to_device(const char* simd, HostType);
}  // namespace spyre::detail

namespace {

constexpr DataFormat kHalf = DataFormat::SEN169_FP16, kFloat = DataFormat::IEEE_FP32;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<const char*> levels() {
  std::vector<const char*> found;
  for (const char* level : {"avx512", "avx2", "portable"}) try {
      detail::host_to_device(level, HostType::F16);
      found.push_back(level);
    } catch (const ConfigurationError&) {
    }
  return found;
}

// batch x group x rows x columns in sticks along the columns; a batch or group of one stands still.
struct Tensor {
  int64_t batch, group, rows, columns;
  DataFormat format;
  std::vector<std::byte> bytes;

  Tensor(DataFormat format, int64_t batch, int64_t group, int64_t rows, int64_t columns)
      : batch(batch), group(group), rows(rows), columns(columns), format(format) {
    bytes.assign(size_t(batch * group * rows * sticks() * kStickBytes), std::byte{0});
  }
  int64_t sticks() const { return (columns + elements_per_stick(format) - 1) / elements_per_stick(format); }
  std::byte* at(int64_t b, int64_t g, int64_t row, int64_t column) {
    const int64_t stick = elements_per_stick(format), outer = std::min(b, batch - 1) * group + std::min(g, group - 1);
    const int64_t line = (outer * sticks() + column / stick) * rows + std::min(row, rows - 1);
    return bytes.data() + line * kStickBytes + column % stick * element_bytes(format);
  }
  double get(int64_t b, int64_t g, int64_t row, int64_t column) {
    if (format == kFloat) return *reinterpret_cast<float*>(at(b, g, row, column));
    return sen169_to_float(*reinterpret_cast<uint16_t*>(at(b, g, row, column)));
  }
  void set(int64_t b, int64_t g, int64_t row, int64_t column, float value) {
    const uint16_t code = sen169_from_float(value);
    format == kFloat ? std::memcpy(at(b, g, row, column), &value, 4) : std::memcpy(at(b, g, row, column), &code, 2);
  }
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t g = 0; g < group; ++g)
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t column = 0; column < columns; ++column) set(b, g, row, column, normal(random));
  }
  // Over the dimensions [batch, group, q, e, l, d], rows and columns along two of them.
  Operand operand(int argument, size_t row, size_t column) const {
    Operand made{argument, 0, Dims(6, 0), format, static_cast<int>(column)};
    const int64_t one = rows * sticks() * kStickBytes;
    if (group > 1) made.strides[1] = one;
    if (batch > 1) made.strides[0] = one * group;
    if (rows > 1) made.strides[row] = kStickBytes;
    made.strides[column] = rows * kStickBytes;
    return made;
  }
};

struct Shape {
  int64_t batch = 2, group = 3, q = 5, e = 64, l = 70, d = 64;
};

struct Case {
  Shape shape;
  Tensor out, query, key, value, mask;
  Step step;

  Case(Shape shape, bool causal = false, bool masked = false, DataFormat format = kHalf, unsigned seed = 1)
      : shape(shape),
        out(format, shape.batch, shape.group, shape.q, shape.e),
        query(format, shape.batch, shape.group, shape.q, shape.d),
        key(format, shape.batch, 1, shape.l, shape.d),
        value(format, shape.batch, 1, shape.l, shape.e),
        mask(kHalf, shape.batch, 1, shape.q, shape.l) {
    std::mt19937 random(seed);
    for (Tensor* each : {&query, &key, &value, &mask}) each->fill(random);
    step.op = OpCode::attention;
    step.extents = {shape.batch, shape.group, shape.q, shape.e, shape.l, shape.d};
    step.slices = Dims(6, 1);
    step.source = "model.py:3";
    Operand none{kConstant, 0, {}, kFloat};
    step.operands = {out.operand(0, 2, 3), query.operand(1, 2, 5), key.operand(2, 4, 5), value.operand(3, 4, 3),
                     masked ? mask.operand(4, 2, 4) : none};
    step.constants = {0.125, causal ? 1.0 : 0.0, 0.0};
  }
  std::vector<std::byte*> bases() {
    return {out.bytes.data(), query.bytes.data(), key.bytes.data(), value.bytes.data(), mask.bytes.data()};
  }
  std::vector<std::byte> run() {
    std::fill(out.bytes.begin(), out.bytes.end(), std::byte{0});
    const std::vector<std::byte*> at = bases();
    const AttentionTasks tasks(step, at);
    for (int64_t i = tasks.size(); i-- > 0;) tasks.run(i);
    return out.bytes;
  }
  std::vector<std::byte> run(const char* level, const Dims& points) {
    std::fill(out.bytes.begin(), out.bytes.end(), std::byte{0});
    detail::attention(level, step, bases(), points);
    return out.bytes;
  }

  // What a row computes in double, and by how much fp32 and one rounding may miss that.
  bool row_is_right(int64_t b, int64_t g, int64_t q) {
    const bool masked = !step.operands[4].is_constant();
    std::vector<double> score(size_t(shape.l));
    double top = -kInf, off = 0, sum = 0;
    constexpr double kUnit = 0x1p-24;
    for (int64_t j = 0; j < shape.l; ++j) {
      double dot = 0, magnitude = 0;
      for (int64_t i = 0; i < shape.d; ++i) {
        dot += query.get(b, g, q, i) * key.get(b, 0, j, i);
        magnitude += std::abs(query.get(b, g, q, i) * key.get(b, 0, j, i));
      }
      const double added = !masked                  ? 0
                           : step.constants[2] == 0 ? mask.get(b, 0, q, j)
                           : mask.get(b, 0, q, j)   ? 0
                                                    : -kInf;
      score[size_t(j)] = dot * step.constants[0] + added;
      if (step.constants[1] != 0 && j > q) score[size_t(j)] = -kInf;
      if (score[size_t(j)] == -kInf) continue;
      top = std::max(top, score[size_t(j)]);
      off = std::max(off, kUnit * (double(shape.d + 2) * magnitude * step.constants[0] + std::abs(score[size_t(j)])));
    }
    for (double each : score) sum += top == -kInf ? 0 : std::exp(each - top);
    for (int64_t c = 0; c < shape.e; ++c) {
      double want = 0, magnitude = 0;
      for (int64_t j = 0; j < shape.l && sum > 0; ++j) {
        if (score[size_t(j)] == -kInf) continue;
        want += std::exp(score[size_t(j)] - top) / sum * value.get(b, 0, j, c);
        magnitude += std::exp(score[size_t(j)] - top) / sum * std::abs(value.get(b, 0, j, c));
      }
      // Scores count in weights and in their sum; so do exp and the scalings, a few units each per block of keys.
      const double blocks = std::ceil(double(shape.l) / kKeys);
      const double inside = magnitude * (4 * off + kUnit * (2 * double(shape.l) + 16 * blocks + 16));
      const double rounding = out.format == kFloat ? 0 : (std::abs(want) + inside) * 0x1p-10 + 0x1p-40;
      const double got = out.get(b, g, q, c);
      if (!(std::abs(got - want) <= inside + rounding)) {
        std::printf("  [%ld, %ld, %ld, %ld] is %g, not %g\n", long(b), long(g), long(q), long(c), got, want);
        return false;
      }
    }
    return true;
  }
  bool is_right() {
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t g = 0; g < shape.group; ++g)
        for (int64_t q = 0; q < shape.q; ++q)
          if (!row_is_right(b, g, q)) return false;
    return true;
  }
};

constexpr Shape kShapes[] = {{1, 1, 1, 1, 1, 1},     {2, 3, 5, 64, 70, 64},    {1, 4, 1, 128, 200, 128},
                             {2, 1, 33, 80, 64, 40}, {1, 2, 100, 65, 129, 96}, {1, 1, 130, 256, 130, 256},
                             {1, 7, 3, 32, 191, 72}};

std::string refusal(const std::function<void(Step&)>& change) {
  Case given({}, false, true);
  change(given.step);
  std::vector<int64_t> bytes;
  for (std::byte* each : given.bases()) (void)each, bytes.push_back(1 << 20);
  try {
    validate({"kernel", bytes, {given.step}}, {32, 1 << 28, 1 << 21});
  } catch (const InvalidProgram& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST("attention: values, however rows are cut, on every instruction set") {
  for (const Shape& shape : kShapes)
    for (const DataFormat format : {kHalf, kFloat})
      for (const auto& [causal, masked] : {std::pair{false, false}, {true, false}, {false, true}}) {
        Case given(shape, causal, masked, format);
        const std::vector<std::byte> whole = given.run();
        CHECK(given.is_right());
        for (const char* level : levels()) {
          CHECK(given.run(level, {1, 1, 1}) == whole);
          CHECK(given.run(level, {1, shape.group, 20}) == whole);
        }
      }
}

TEST("attention: masks of true and false, and rows that attend to nothing") {
  Case given({1, 2, 70, 64, 150, 64}, false, true);
  given.step.constants[2] = 1;
  std::mt19937 random(2);
  for (int64_t q = 0; q < 70; ++q)
    for (int64_t l = 0; l < 150; ++l) given.mask.set(0, 0, q, l, q == 5 || (l >= 64 && l < 128) ? 0 : random() % 2);
  const std::vector<std::byte> whole = given.run();
  CHECK(given.is_right());
  for (int64_t c = 0; c < 64; ++c) CHECK(given.out.get(0, 1, 5, c) == 0 && !std::signbit(given.out.get(0, 1, 5, c)));
  for (const char* level : levels()) CHECK(given.run(level, {1, 1, 1}) == whole);

  given.step.constants[2] = 0;  // the same, added
  for (int64_t q = 0; q < 70; ++q)
    for (int64_t l = 0; l < 150; ++l) given.mask.set(0, 0, q, l, given.mask.get(0, 0, q, l) != 0 ? 0 : -INFINITY);
  CHECK(given.run() == whole);
}

TEST("attention: a key that takes no part does not count, whatever it holds") {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const int64_t q : {int64_t{2}, int64_t{70}}) {  // few rows and many
      Case given({1, 1, q, 64, 140, 64}, true), clean({1, 1, q, 64, 140, 64}, true);
      for (int64_t c = 0; c < 64; ++c) given.key.set(0, 0, q - 1, c, bad), given.value.set(0, 0, q - 1, c, bad);
      const std::vector<std::byte> got = given.run(), want = clean.run();
      for (int64_t row = 0; row < q - 1; ++row)
        for (int64_t c = 0; c < 64; ++c) CHECK(given.out.get(0, 0, row, c) == clean.out.get(0, 0, row, c));
      CHECK(std::isnan(given.out.get(0, 0, q - 1, 0)));
      for (const char* level : levels()) {
        CHECK(given.run(level, {1, 1, 1}) == got);
        CHECK(given.run(level, {1, 1, q}) == got);
      }
    }
}

TEST("attention: values that are infinite or none are what they are") {
  for (const int64_t q : {int64_t{1}, int64_t{20}}) {
    Case given({1, 1, q, 64, 70, 64});
    given.value.set(0, 0, 3, 0, INFINITY);
    given.value.set(0, 0, 66, 1, NAN);
    given.run();
    CHECK(given.out.get(0, 0, 0, 0) == kInf);
    CHECK(std::isnan(given.out.get(0, 0, 0, 1)));
    CHECK(std::isfinite(given.out.get(0, 0, 0, 2)));
  }
}

TEST("attention: very negative masks, and scores that are far apart") {
  Case given({1, 1, 20, 64, 140, 64}, false, true, kFloat);
  given.mask = Tensor(kFloat, 1, 1, 20, 140);
  given.step.operands[4] = given.mask.operand(4, 2, 4);
  for (int64_t q = 0; q < 20; ++q)
    for (int64_t l = 0; l < 140; ++l)
      given.mask.set(0, 0, q, l, q < 5 ? -3e38f : l % 7 ? -1e30f : static_cast<float>(q == 7 ? 50 * l : 0));
  given.run();
  for (int64_t q = 5; q < 20; ++q) CHECK(given.row_is_right(0, 0, q));
  // Next to such a mask scores vanish: all keys count alike.
  for (int64_t c = 0; c < 64; ++c) {
    double mean = 0, magnitude = 0;
    for (int64_t l = 0; l < 140; ++l)
      mean += given.value.get(0, 0, l, c) / 140, magnitude += std::abs(given.value.get(0, 0, l, c)) / 140;
    CHECK(std::abs(given.out.get(0, 0, 0, c) - mean) <= 300 * 0x1p-24 * magnitude);
  }
}

TEST("attention: the division over cores changes no bit, also with operands in LX") {
  const Shape shape{2, 4, 40, 64, 100, 64};
  for (const bool causal : {false, true}) {
    Case given(shape, causal);
    const std::vector<std::byte> whole = given.run();
    for (const Dims& slices : {Dims{2, 1, 1, 1, 1, 1}, Dims{1, 4, 1, 1, 1, 1}, Dims{2, 4, 3, 1, 1, 1}}) {
      given.step.slices = slices;
      CHECK(given.run() == whole);
    }
  }
  // Queries, keys and values of 2 x 4 cores in their own LX: every core has one head of 40 rows.
  Case given(shape, true);
  const std::vector<std::byte> whole = given.run();
  const int64_t room = 1 << 16;
  std::vector<std::byte> lx(size_t(8 * room));
  given.step.slices = {2, 4, 1, 1, 1, 1};
  const auto put = [&](size_t index, Tensor& tensor, size_t row, size_t column, int64_t offset) {
    const int64_t one = tensor.rows * tensor.sticks() * kStickBytes;
    for (int64_t core = 0; core < 8; ++core)
      std::memcpy(lx.data() + core * room + offset, tensor.at(core / 4, core % 4, 0, 0), size_t(one));
    Tensor part(kHalf, 1, 1, tensor.rows, tensor.columns);
    given.step.operands[index] = part.operand(kLx, row, column);
    given.step.operands[index].offset = offset;
    given.step.operands[index].core_bytes = room;
    return one;
  };
  const int64_t first = put(1, given.query, 2, 5, 0), second = put(2, given.key, 4, 5, first);
  put(3, given.value, 4, 3, first + second);
  std::fill(given.out.bytes.begin(), given.out.bytes.end(), std::byte{0});
  const std::vector<std::byte*> bases = {given.out.bytes.data(), lx.data(), lx.data(), lx.data(), nullptr};
  const AttentionTasks tasks(given.step, bases);
  CHECK(tasks.size() >= 8);
  for (int64_t i = 0; i < tasks.size(); ++i) tasks.run(i);
  CHECK(given.out.bytes == whole);
}

TEST("attention: heads that share keys are taken together") {
  Case given({2, 4, 1, 64, 300, 64});
  const std::vector<std::byte*> bases = given.bases();
  CHECK(AttentionTasks(given.step, bases).size() == 2);
  given.step.slices = {2, 4, 1, 1, 1, 1};
  CHECK(AttentionTasks(given.step, bases).size() == 2);
}

TEST("attention: what is malformed is refused by step and field") {
  const auto says = [](const std::function<void(Step&)>& change, const std::string& field, const char* why) {
    const std::string said = refusal(change);
    const bool good = said.find("step 0 (attention, model.py:3), " + field + ": ") != std::string::npos &&
                      said.find(why) != std::string::npos;
    if (!good) std::printf("  said: %s\n", said.c_str());
    return good;
  };
  CHECK(refusal([](Step&) {}) == "accepted");
  CHECK(says([](Step& s) { s.operands.pop_back(); }, "operands", "takes 5"));
  CHECK(says([](Step& s) { s.extents = {5, 64, 70}, s.slices = {1, 1, 1}; }, "extents", "needs q, e, l and d"));
  CHECK(says([](Step& s) { s.constants.pop_back(); }, "constants", "needs the scale"));
  CHECK(says([](Step& s) { s.constants[1] = 0.5; }, "constants", "must be 0 or 1"));
  CHECK(says([](Step& s) { s.operands[2].format = DataFormat::SENINT16; }, "operand 2", "K must be SEN169_FP16"));
  CHECK(says([](Step& s) { s.operands[4].format = DataFormat::IEEE_INT32; }, "operand 4", "the mask must be"));
  CHECK(says([](Step& s) { s.operands[0].strides[4] = 128; }, "operand 0", "O must have stride 0 along dimension 4"));
  CHECK(says([](Step& s) { s.operands[2].strides[2] = 128; }, "operand 2", "K must have stride 0 along dimension 2"));
  CHECK(says([](Step& s) { s.operands[4].strides[5] = 128; }, "operand 4",
             "the mask must have stride 0 along dimension 5"));
  CHECK(says([](Step& s) { s.operands[3].stick = 4; }, "operand 3", "V must have its sticks along dimension 3"));
  CHECK(says([](Step& s) { s.operands[4] = {kConstant, 0, {}, kFloat, -1, 1.0}; }, "operand 4", "must be 0"));
  CHECK(says([](Step& s) { s.operands[3] = {kConstant, 0, {}, kFloat}; }, "operand 3", "V must have its sticks"));
  CHECK(says([](Step& s) { s.slices[4] = 2; }, "slices", "dimension 4 cannot be divided over cores"));
}

TEST("attention: its time is that of its products and of the vector unit, causal blocks left out") {
  const Clock clock(Hardware::from_file(SPYRE_HARDWARE_FILE));
  const auto time = [&](const Shape& shape, bool causal, bool masked) {
    return clock.step(work_of(Case(shape, causal, masked).step, nullptr), Clock::Begin::fresh);
  };
  const Shape shape{1, 1, 256, 128, 256, 128};
  const double plain = time(shape, false, false).compute_ns, causal = time(shape, true, false).compute_ns;
  CHECK(time(shape, false, true).compute_ns > plain);
  // 4 blocks of rows meet 1, 2, 3 and 4 of 4 blocks of keys; only turned keys and the last division are left as they
  // are.
  CHECK(causal < 0.75 * plain && causal > 0.625 * plain);
}
