// MatmulTasks of whole steps, merged and cut for the host, bit for bit against each core's points one by one.
#include "card/kernels/matmul_tasks.h"

#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "card/kernels/compute.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"
#include "testing.h"

using namespace spyre;

namespace {

std::mt19937 random_bits(11);
int64_t pick(int64_t below) { return int64_t(random_bits() % uint64_t(below)); }
bool chance(int64_t of) { return pick(of) == 0; }

constexpr int kCores = 32;
constexpr DataFormat kReals[] = {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32};
constexpr DataFormat kWeights[] = {DataFormat::SEN169_FP16, DataFormat::IEEE_FP32, DataFormat::SENINT8,
                                   DataFormat::SEN143_FP8, DataFormat::SEN152_FP8};
constexpr DataFormat kIntegers[] = {DataFormat::SENINT8, DataFormat::IEEE_INT32};

HostType type_of(DataFormat format) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      return HostType::F16;
    case DataFormat::SEN143_FP8:
      return HostType::F8E4M3;
    case DataFormat::SEN152_FP8:
      return HostType::F8E5M2;
    case DataFormat::SENINT8:
      return HostType::I8;
    case DataFormat::IEEE_INT32:
      return HostType::I32;
    default:
      return HostType::F32;
  }
}

// One operand over `points` of each dimension: rows and sticks in any order, with gaps; still along some dimensions.
Operand operand_of(int argument, DataFormat format, const Dims& points, size_t stick, const std::vector<bool>& still) {
  Operand made{argument, kStickBytes * pick(3), Dims(points.size(), 0), format, static_cast<int>(stick)};
  std::vector<size_t> order;
  for (size_t i = 0; i < points.size(); ++i)
    if (!still[i]) order.push_back(i);
  std::shuffle(order.begin(), order.end(), random_bits);
  int64_t stride = kStickBytes;
  for (size_t i : order) {
    made.strides[i] = stride;
    const int64_t stick_points = elements_per_stick(format);
    stride *= (i == stick ? (points[i] + stick_points - 1) / stick_points : points[i]) + pick(2);
  }
  return made;
}

struct Case {
  Step step;
  std::vector<std::vector<std::byte>> memory;  // of C, A, B and LX

  explicit Case(bool integers) {
    const size_t batches = size_t(pick(3)), rank = batches + 3, m = batches, n = m + 1, k = n + 1;
    step.op = OpCode::matmul;
    for (size_t i = 0; i < batches; ++i) step.extents.push_back(1 + pick(4));
    step.extents.insert(step.extents.end(),
                        {1 + pick(chance(4) ? 130 : 20), 1 + pick(chance(4) ? 700 : 150), 1 + pick(140)});
    int64_t cores = 1;
    for (int64_t extent : step.extents) {
      step.slices.push_back(1 + pick(std::min<int64_t>({extent, 5, kCores / cores})));
      cores *= step.slices.back();
    }
    const auto& formats = integers ? kIntegers : kReals;
    const bool transposed = chance(2);
    const size_t sticks[] = {n, k, transposed ? k : n};
    for (size_t i = 0; i < 3; ++i)
      step.operands.push_back(
          {0, 0, {}, i == 2 && !integers ? kWeights[pick(5)] : formats[pick(2)], static_cast<int>(sticks[i])});
    const Dims part = points_per_core(step);
    for (size_t i = 0; i < 3; ++i) {
      std::vector<bool> still(rank, false);
      still[i == 0 ? k : i == 1 ? n : m] = true;
      for (size_t batch = 0; batch < batches && i > 0; ++batch) still[batch] = chance(2);
      const bool in_lx = step.slices[k] == 1 && chance(2);
      const DataFormat format = step.operands[i].format;
      step.operands[i] = operand_of(in_lx ? kLx : int(i), format, in_lx ? part : step.extents, sticks[i], still);
    }
    allocate(part);
  }

  // In LX the operands lie one behind the other.
  void allocate(const Dims& part) {
    memory.resize(4);
    int64_t lx = 0;
    for (size_t i = 0; i < 3; ++i) {
      if (!step.operands[i].in_lx()) {
        memory[i].resize(size_t(reach(step, i, step.extents).second));
        continue;
      }
      step.operands[i].offset += lx;
      lx = reach(step, i, part).second;
    }
    for (Operand& operand : step.operands)
      if (operand.in_lx()) operand.core_bytes = lx;
    memory[3].resize(size_t(lx * kCores));
    for (auto& bytes : memory)
      for (std::byte& byte : bytes) byte = std::byte(random_bits());
    for (size_t i = 0; i < 3; ++i)
      if (domain_of(step.operands[i].format) == Domain::real) tame(i);
  }

  // Ordinary numbers wherever an element lies, some of them special.
  void tame(size_t operand) {
    const DataFormat format = step.operands[operand].format;
    const Convert encode = device_cast(HostType::F32, type_of(format));
    std::normal_distribution<float> normal;
    for (int core = 0; core < step.cores(); ++core)
      for_each_touched(step, core, operand, bases(memory), [&](const Nest& nest) {
        each(nest, 0, [&](const int64_t (&at)[kSides]) {
          const float value = chance(500) ? INFINITY : chance(8) ? -0.0f : normal(random_bits);
          encode(bases(memory)[operand] + at[0] * element_bytes(format), &value, 1);
        });
      });
  }

  std::vector<std::byte*> bases(std::vector<std::vector<std::byte>>& of) const {
    std::vector<std::byte*> all;
    for (size_t i = 0; i < 3; ++i) all.push_back(of[step.operands[i].in_lx() ? 3 : i].data());
    return all;
  }

  template <typename Body>
  static void each(const Nest& nest, size_t depth, const Body& body) {
    if (depth == nest.loops.size()) return body(nest.offset);
    Nest inner = nest;
    for (int64_t i = 0; i < nest.loops[depth].count; ++i) {
      each(inner, depth + 1, body);
      for (size_t side = 0; side < kSides; ++side) inner.offset[side] += nest.loops[depth].stride[side];
    }
  }

  template <typename Value>
  Value read(const std::vector<std::byte*>& bases, size_t operand, int64_t at) const {
    const DataFormat format = step.operands[operand].format;
    const bool real = domain_of(format) == Domain::real;
    int32_t integer;
    float number;
    device_cast(type_of(format), real ? HostType::F32 : HostType::I32)(real ? static_cast<void*>(&number) : &integer,
                                                                       bases[operand] + at * element_bytes(format), 1);
    return real ? Value(number) : Value(integer);
  }

  // The definition: every element of C by itself, in ascending k, as its own core sees A and B; of fp32 in chains that
  // are added up in fp64.
  template <typename Value, typename Add>
  void define(std::vector<std::vector<std::byte>>& result, HostType type, Value start, const Add& add) const {
    const auto at_bases = bases(result);
    const DataFormat format = step.operands[0].format;
    const bool wide =
        step.operands[1].format == DataFormat::IEEE_FP32 && step.operands[2].format == step.operands[1].format;
    for (int core = 0; core < step.cores(); ++core)
      for (Nest kept : kept_nests(step, core)) {
        const std::vector<Nest> folded = folded_nests(step, core);
        if (folded.empty()) continue;
        each(kept, 0, [&](const int64_t (&at)[kSides]) {
          Value sum = start;
          double total = 0;
          int64_t depth = 0;
          for (const Nest& nest : folded)
            each(nest, 0, [&](const int64_t (&more)[kSides]) {
              if (wide && depth++ % kChain == 0) total += std::exchange(sum, start);
              sum = add(read<Value>(at_bases, 1, at[1] + more[1]), read<Value>(at_bases, 2, at[2] + more[2]), sum);
            });
          if (wide) sum = static_cast<Value>(total + sum);
          if (sum != sum) sum = std::numeric_limits<Value>::quiet_NaN();
          device_cast(type, type_of(format))(at_bases[0] + at[0] * element_bytes(format), &sum, 1);
        });
      }
  }
};

void check(Case& test, const std::vector<std::vector<std::byte>>& wanted) {
  for (const int threads : {1, 2, 5, 32}) {
    auto got = test.memory;
    const MatmulTasks tasks(test.step, threads);
    for (int64_t task = tasks.tasks(); task-- > 0;) tasks.run(task, test.bases(got));
    CHECK(got == wanted);
  }
}

}  // namespace

TEST("matmul tasks: batches, shared B, core splits and LX") {
  for (int i = 0; i < 60; ++i) {
    Case test(false);
    auto wanted = test.memory;
    test.define<float>(wanted, HostType::F32, 0.0f, [](float a, float b, float sum) { return std::fma(a, b, sum); });
    check(test, wanted);
  }
}

TEST("matmul tasks: the same of integers") {
  for (int i = 0; i < 15; ++i) {
    Case test(true);
    auto wanted = test.memory;
    test.define<int32_t>(wanted, HostType::I32, 0, [](int32_t a, int32_t b, int32_t sum) {
      return int32_t(uint32_t(sum) + uint32_t(a) * uint32_t(b));
    });
    check(test, wanted);
  }
}

TEST("matmul tasks: rows that share B are in one task, columns in several") {
  Step step;
  step.op = OpCode::matmul;
  step.extents = {4, 2, 4096, 4096};  // four queries of one key, two rows of each
  step.slices = {4, 1, 8, 1};
  step.operands = {{0, 0, {256, 128, 1024, 0}, DataFormat::SEN169_FP16, 2},
                   {1, 0, {256, 128, 0, 1024}, DataFormat::SEN169_FP16, 3},
                   {2, 0, {0, 0, 4096 * 128, 128}, DataFormat::SEN169_FP16, 2}};
  CHECK(MatmulTasks(step, 1).tasks() == 1);
  for (const int threads : {2, 32}) {
    const int64_t tasks = MatmulTasks(step, threads).tasks();
    CHECK(tasks >= threads && tasks <= 64);
  }
}
