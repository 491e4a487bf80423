// Epilogues of matmuls, task by task, against the same program step by step.
#include "card/fusion/epilogue.h"

#include <random>

#include "card/kernels/compute.h"
#include "card/kernels/matmul_tasks.h"
#include "card/program/core_split.h"
#include "testing.h"

using namespace spyre;

namespace {

constexpr int64_t kCoreBytes = 1 << 20;
constexpr DataFormat kCodes = DataFormat::SEN169_FP16;

struct Space {
  int64_t rows, columns, depth, cores;
  int64_t points() const { return (rows + cores - 1) / cores; }
};

// [rows, width] with sticks outermost, in an argument, or a core's rows in LX. Product steps have three dimensions.
Operand matrix(const Space& space, int place, bool in_product) {
  Operand operand{place >= 0 ? place : kLx, place >= 0 ? 0 : (-place - 1) * kCoreBytes / 4, {}, kCodes};
  operand.core_bytes = place >= 0 ? 0 : kCoreBytes;
  operand.stick = 1;
  operand.strides = {128, 128 * (place >= 0 ? space.rows : space.points())};
  if (in_product) operand.strides.push_back(0);
  return operand;
}

Program product_of(const Space& space, int c) {
  Step step;
  step.op = OpCode::matmul;
  step.extents = {space.rows, space.columns, space.depth};
  step.slices = {c < 0 ? space.cores : 1, 1, 1};
  Operand a = matrix(space, 0, true), b = a;
  a.stick = 2;
  a.strides = {128, 0, 128 * space.rows};
  b.argument = 1;
  b.strides = {0, 128 * space.depth, 128};
  step.operands = {matrix(space, c, true), a, b};
  Program program;
  program.lx_bytes = kCoreBytes;
  program.steps.push_back(step);
  return program;
}

void add(Program& program, const Space& space, const char* function, std::vector<Operand> operands, bool in_lx) {
  Step step;
  step.op = OpCode::elementwise;
  step.function = function;
  step.extents = {space.rows, space.columns};
  step.slices = {in_lx ? space.cores : 1, 1};
  step.operands = std::move(operands);
  program.steps.push_back(std::move(step));
}

// Arguments: A, B, C, a residual, and the result.
std::vector<std::vector<std::byte>> contents(const Space& space) {
  std::mt19937 random(5);
  std::vector<std::vector<std::byte>> all;
  const int64_t sticks = (space.columns + 63) / 64, deep = (space.depth + 63) / 64;
  for (const int64_t count : {deep * space.rows, sticks * space.depth, sticks * space.rows, sticks * space.rows,
                              sticks * space.rows, space.cores * kCoreBytes / 128}) {
    std::vector<std::byte>& bytes = all.emplace_back(size_t(128 * count));
    auto* codes = reinterpret_cast<uint16_t*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / 2; ++i)
      codes[i] = uint16_t((random() & 0x8000) | (0x3800 + random() % 0xa00));
  }
  return all;
}

// Whether the group is an epilogue; results are the same either way.
bool goes_on(Program& program, const Space& space) {
  for (Step& step : program.steps)
    if (step.op == OpCode::matmul) step.matmul_tasks = std::make_shared<const MatmulTasks>(step, 3);
  auto alone = contents(space), parts = alone;
  const auto bases_of = [](auto& memory, const Step& step) {
    std::vector<std::byte*> bases;
    for (const Operand& operand : step.operands)
      bases.push_back(memory[operand.in_lx() ? memory.size() - 1 : size_t(operand.argument)].data());
    return bases;
  };
  for (const Step& step : program.steps) {
    const auto bases = bases_of(alone, step);
    for (int64_t task = 0; step.op == OpCode::matmul && task < step.matmul_tasks->tasks(); ++task)
      step.matmul_tasks->run(task, bases);
    for (int core = 0; step.op != OpCode::matmul && core < step.cores(); ++core) run_elementwise(step, core, bases);
  }
  const auto plan = plan_fusion(program);
  CHECK(plan->groups.size() == 2);
  const FusionGroup& next = plan->groups[1];
  if (next.after_tasks.empty()) return false;
  const Step& product = program.steps[0];
  std::vector<std::byte*> bases;
  for (auto& each : parts) bases.push_back(each.data());
  for (int64_t task = product.matmul_tasks->tasks(); task-- > 0;) {
    product.matmul_tasks->run(task, bases_of(parts, product));
    for (const RowBlock& block : next.after_tasks[size_t(task)])
      run_block(program, next, block, bases, parts.back().data());
  }
  CHECK(alone[4] == parts[4] && alone[0] == parts[0] && alone[2] == parts[2]);
  CHECK(plan->used.contains(0) && plan->used.contains(1));  // whoever shares memory with them is noticed
  return true;
}

}  // namespace

TEST("epilogue: a residual, right behind its matmul") {
  for (const Space& space :
       {Space{100, 320, 70, 4}, {2, 4096, 64, 1}, {33, 65, 200, 3}, {512, 256, 64, 32}, {7, 1000, 64, 7}}) {
    Program program = product_of(space, 2);
    add(program, space, "add", {matrix(space, 4, false), matrix(space, 2, false), matrix(space, 3, false)}, false);
    CHECK(goes_on(program, space));
  }
}

TEST("epilogue: with the result in LX, and several steps") {
  for (const Space& space : {Space{100, 320, 70, 4}, {64, 128, 64, 32}, {33, 65, 200, 3}}) {
    Program program = product_of(space, -1);
    add(program, space, "silu", {matrix(space, -2, false), matrix(space, -1, false)}, true);
    add(program, space, "mul", {matrix(space, -3, false), matrix(space, -2, false), matrix(space, 3, false)}, true);
    add(program, space, "add", {matrix(space, 4, false), matrix(space, -3, false), matrix(space, -1, false)}, true);
    CHECK(goes_on(program, space));
  }
}

TEST("epilogue: a group that overwrites what the matmul reads has to wait") {
  const Space space{100, 320, 320, 1};
  Program program = product_of(space, 2);
  add(program, space, "add", {matrix(space, 0, false), matrix(space, 2, false), matrix(space, 3, false)}, false);
  CHECK(!goes_on(program, space));
}

TEST("epilogue: who reads other points of the result has to wait") {
  const Space space{100, 320, 64, 1};
  Program program = product_of(space, 2);
  Operand shifted = matrix(space, 2, false);
  shifted.offset = 128 * space.rows;
  add(program, {100, 256, 64, 1}, "add", {matrix(space, 4, false), matrix(space, 2, false), shifted}, false);
  CHECK(!goes_on(program, space));
}
