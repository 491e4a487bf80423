// Fusion groups against the same programs run step after step, bit for bit.
#include "card/fusion/fusion_group.h"

#include <cstring>
#include <random>

#include "card/fusion/split_at_writers.h"
#include "card/kernels/compute.h"
#include "card/program/core_split.h"
#include "testing.h"

using namespace spyre;

namespace {

constexpr int64_t kCoreBytes = 1 << 20;
constexpr DataFormat kCodes = DataFormat::SEN169_FP16, kFloats = DataFormat::IEEE_FP32;

// Buffers of [rows, columns] in sticks, and numbers of rows, on the card and in LX.
struct Space {
  int64_t rows, columns, cores;
  bool close = false;  // buffers in LX lie right behind each other
  int64_t points() const { return (rows + cores - 1) / cores; }
  int64_t sticks(DataFormat format) const { return (columns * element_bytes(format) + 127) / 128; }
  int64_t buffer_bytes() const { return close ? 128 * points() * sticks(kFloats) : kCoreBytes / 4; }
};

Operand matrix(const Space& space, int place, DataFormat format) {
  Operand operand;
  operand.format = format;
  operand.stick = 1;
  if (place >= 0) {
    operand.argument = place;
    operand.strides = {128, 128 * space.rows};
  } else {
    operand.argument = kLx;
    operand.core_bytes = kCoreBytes;
    operand.offset = (-place - 1) * space.buffer_bytes();
    operand.strides = {128, 128 * space.points()};
  }
  return operand;
}
Operand numbers(const Space& space, DataFormat format) {  // in LX, one for each row
  Operand operand = matrix(space, -4, format);
  operand.stick = -1;
  operand.strides = {128, 0};
  return operand;
}

struct Contents {
  std::vector<std::vector<std::byte>> arguments;
  std::vector<std::byte> lx;
  std::vector<std::byte*> bases() {
    std::vector<std::byte*> all;
    for (auto& each : arguments) all.push_back(each.data());
    return all;
  }
};

void run_alone(const Program& program, size_t index, Contents& memory) {
  const Step& step = program.steps[index];
  std::vector<std::byte*> bases;
  for (const Operand& operand : step.operands)
    bases.push_back(operand.is_constant() ? nullptr
                    : operand.in_lx()     ? memory.lx.data()
                                          : memory.arguments[operand.argument].data());
  Step copy = step;
  copy.op = OpCode::elementwise;
  copy.function = "copy";
  for (int core = 0; core < step.cores(); ++core)
    step.op == OpCode::reduce        ? run_reduce(step, core, bases)
    : step.op == OpCode::elementwise ? run_elementwise(step, core, bases)
                                     : run_elementwise(copy, core, bases);
}

Program random_program(const Space& space, std::mt19937& random, int arguments) {
  Program program;
  program.lx_bytes = kCoreBytes;
  const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const auto format = [&] { return pick(3) ? kCodes : kFloats; };
  const DataFormat formats[] = {format(), format(), format()}, row_format = format();
  const auto place = [&](int i) { return i < 3 ? matrix(space, -i - 1, formats[i]) : matrix(space, i - 3, kCodes); };
  const auto add = [&](OpCode op, const char* function, std::vector<Operand> operands) -> Step& {
    Step step;
    step.op = op;
    step.function = function;
    step.extents = {space.rows, space.columns};
    step.slices = {space.cores, 1};
    step.operands = std::move(operands);
    program.steps.push_back(std::move(step));
    return program.steps.back();
  };
  const char* sum = row_format == kFloats ? "wide_add" : "add";
  // Everything is written before it may be read.
  for (int i = 0; i < 3; ++i) add(OpCode::elementwise, "copy", {place(i), matrix(space, pick(arguments), kCodes)});
  Step& first = add(OpCode::reduce, sum, {numbers(space, row_format), place(pick(3))});
  first.reduced = 1;
  first.constants = {0};
  const char* unary[] = {"neg", "abs", "square", "exp", "copy", "silu", "tanh", "rsqrt"};
  const char* binary[] = {"add", "sub", "mul", "div", "maximum", "minimum", "hypot"};
  const char* folds[] = {sum, "maximum", "minimum", "mul"};
  const int count = 1 + pick(12);
  for (int i = 0; i < count; ++i) {
    const int target = pick(3 + arguments);
    const Operand to = place(target);
    const auto read = [&] {
      const int which = pick(8);
      if (which == 0) {
        Operand constant;
        constant.argument = kConstant;
        constant.value = 0.75;
        constant.format = kFloats;
        constant.strides = {0, 0};
        return constant;
      }
      return which == 1 ? numbers(space, row_format) : place(pick(3 + arguments));
    };
    switch (pick(8)) {
      case 6: {  // a concatenation, cut between sticks
        const auto cut = int64_t(pick(int((space.columns + 63) / 64))) * 64;
        for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, space.columns}}) {
          const auto from = int64_t(pick(int((space.columns - (end - begin)) / 64) + 1)) * 64;
          if (begin == end) continue;
          const Operand other = place((target + 1 + pick(2 + arguments)) % (3 + arguments));
          Step& part = add(OpCode::elementwise, unary[pick(6)], {to, other});
          part.extents[1] = end - begin;
          for (size_t k = 0; k < 2; ++k) {
            Operand& operand = part.operands[k];
            operand.offset += (k ? from : begin) / elements_per_stick(operand.format) * operand.strides[1];
          }
        }
        break;
      }
      case 0: {
        Step& fold = add(OpCode::reduce, folds[pick(4)], {numbers(space, row_format), place(pick(3 + arguments))});
        fold.reduced = 1;
        fold.constants = {fold.function == "mul" ? 1.0 : 0.0};
        if (pick(2)) fold.constants.push_back(0.125);
        break;
      }
      case 1:
      case 2:
        add(OpCode::elementwise, unary[pick(8)], {to, place(pick(3 + arguments))});
        break;
      case 3: {  // rows alone
        Step step;
        step.op = OpCode::elementwise;
        step.function = "rsqrt";
        step.extents = {space.rows};
        step.slices = {space.cores};
        Operand row = numbers(space, row_format);
        row.strides = {128};
        step.operands = {row, row};
        program.steps.push_back(step);
        break;
      }
      case 4:
        add(OpCode::elementwise, "fma", {to, read(), read(), read()});
        break;
      default:
        add(OpCode::elementwise, binary[pick(7)], {to, read(), read()});
    }
  }
  return program;
}

}  // namespace

TEST("group: random programs leave the bits that their steps leave one by one") {
  std::mt19937 random(7);
  Engine engine(2, false);
  size_t together = 0, cut = 0;
  for (int attempt = 0; attempt < 2000; ++attempt) {
    const int64_t rows = 1 + random() % (attempt % 4 ? 70 : 150);
    const Space space{rows, 1 + int64_t(random() % 400), 1 + int64_t(random()) % std::min<int64_t>(rows, 5),
                      random() % 2 == 0};
    const int arguments = 3;
    const Program program = random_program(space, random, arguments);
    std::vector<GroupStep> members;
    for (size_t i = 0; i < program.steps.size(); ++i)
      if (const auto shape = shape_of(program.steps[i])) members.push_back(group_step_of(i, program.steps[i], *shape));
    cut += split_at_writers(members).size() > members.size();
    Contents alone, fused;
    for (int i = 0; i < arguments; ++i) {
      alone.arguments.emplace_back(size_t(128 * rows * space.sticks(kCodes)));
      for (std::byte& each : alone.arguments.back()) each = std::byte(random());
      if (attempt % 2) {  // without the codes that are no numbers
        auto* codes = reinterpret_cast<uint16_t*>(alone.arguments.back().data());
        for (size_t k = 0; k < alone.arguments.back().size() / 2; ++k) codes[k] = (codes[k] & 0x8fff) | 0x3000;
      }
    }
    alone.lx.resize(size_t(space.cores * kCoreBytes));
    fused = alone;
    for (size_t i = 0; i < program.steps.size(); ++i) run_alone(program, i, alone);
    const auto plan = plan_fusion(program);
    size_t next = 0;
    for (const FusionGroup& group : plan->groups) {
      CHECK(group.begin == next);
      next = group.end;
      if (group.items.empty())
        for (size_t i = group.begin; i < group.end; ++i) run_alone(program, i, fused);
      else
        run_group(engine, program, group, fused.bases(), fused.lx.data());
      together += group.items.empty() ? 0 : group.end - group.begin - 1;
    }
    CHECK(next == program.steps.size());
    for (int i = 0; i < arguments; ++i) CHECK(alone.arguments[i] == fused.arguments[i]);
  }
  CHECK(together > 5000);  // steps that did not run alone
  CHECK(cut > 100);        // programs with steps that were split
}

namespace {

Contents filled(const Space& space, uint16_t code) {
  Contents contents;
  for (int i = 0; i < 3; ++i) {
    contents.arguments.emplace_back(size_t(128 * space.rows * space.sticks(kCodes)));
    auto* codes = reinterpret_cast<uint16_t*>(contents.arguments.back().data());
    for (size_t k = 0; k < contents.arguments.back().size() / 2; ++k)
      codes[k] = code ? code : uint16_t(0x3000 + k % 999);
  }
  contents.lx.resize(size_t(space.cores * kCoreBytes));
  return contents;
}

void add(Program& program, const char* function, Dims extents, std::vector<Operand> operands, int64_t cores) {
  Step step;
  step.op = OpCode::elementwise;
  step.function = function;
  step.slices = Dims(extents.size(), 1);
  step.slices[0] = cores;
  step.extents = std::move(extents);
  step.operands = std::move(operands);
  program.steps.push_back(std::move(step));
}

// How many steps did not run alone; arguments are as step after step leaves them.
size_t check_groups(const Program& program, Contents alone) {
  Contents fused = alone;
  Engine engine(1, false);
  size_t together = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) run_alone(program, i, alone);
  const auto plan = plan_fusion(program);
  for (const FusionGroup& group : plan->groups)
    if (group.items.empty()) {
      for (size_t i = group.begin; i < group.end; ++i) run_alone(program, i, fused);
    } else {
      together += group.end - group.begin;
      run_group(engine, program, group, fused.bases(), fused.lx.data());
    }
  CHECK(alone.arguments == fused.arguments);
  return together;
}

}  // namespace

TEST("group: what was left in LX before, and is read beside what a group leaves there") {
  const Space space{40, 128, 1};
  Program program;
  program.lx_bytes = kCoreBytes;
  add(program, "copy", {40, 128}, {matrix(space, -1, kCodes), matrix(space, 0, kCodes)}, 1);
  program.steps[0].checked = true;  // which runs by itself
  add(program, "neg", {40, 64}, {matrix(space, -1, kCodes), matrix(space, 1, kCodes)}, 1);
  add(program, "neg", {40, 128}, {matrix(space, 2, kCodes), matrix(space, -1, kCodes)}, 1);
  CHECK(check_groups(program, filled(space, 0)) == 2);
}

namespace {

void add_fold(Program& program, Dims extents, std::vector<Operand> operands, Dims slices) {
  add(program, "add", std::move(extents), std::move(operands), 1);
  Step& fold = program.steps.back();
  fold.op = OpCode::reduce;
  fold.slices = std::move(slices);
  fold.reduced = 1;
  fold.constants = {0};
}

}  // namespace

TEST("group: a fold reads other points than those that the step before has written") {
  const Space space{40, 320, 1};
  Program program;
  program.lx_bytes = kCoreBytes;
  Operand shifted = matrix(space, -1, kCodes);
  shifted.offset += shifted.strides[1];
  add(program, "copy", {40, 320}, {matrix(space, -1, kCodes), matrix(space, 0, kCodes)}, 1);
  add(program, "neg", {40, 256}, {matrix(space, -1, kCodes), matrix(space, 1, kCodes)}, 1);
  add_fold(program, {40, 256}, {numbers(space, kCodes), shifted}, {1, 1});
  add(program, "add", {40, 256}, {matrix(space, 2, kCodes), matrix(space, 1, kCodes), numbers(space, kCodes)}, 1);
  CHECK(check_groups(program, filled(space, 0)) == 4);
}

TEST("group: columns of several cores are folded to their end") {
  const Space space{12, 256, 4};
  Program program;
  program.lx_bytes = kCoreBytes;
  const auto split = [&] { program.steps.back().slices = {4, 2}; };
  const Dims extents{12, 256};
  Operand sums = matrix(space, 1, kCodes);  // one for each row
  sums.stick = -1;
  sums.strides = {128, 0};
  add(program, "neg", extents, {matrix(space, -1, kCodes), matrix(space, 0, kCodes)}, 1);
  split();
  add(program, "abs", extents, {matrix(space, 2, kCodes), matrix(space, -1, kCodes)}, 1);
  split();
  add_fold(program, extents, {sums, matrix(space, 2, kCodes)}, {4, 2});
  Contents contents = filled(space, 0);
  contents.lx.resize(8 * kCoreBytes);
  CHECK(check_groups(program, contents) >= 2);
}

// Rotary embeddings, x * cos + (-x2, x1) * sin, of heads side by side or behind each other: one fused loop, in which
// nothing is left in LX.
TEST("group: halves of rows that change places") {
  constexpr int64_t kSticks = 4, kRows = 40;
  for (const Dims& strides : {Dims{128, 128 * kRows * kSticks, 128 * kRows}, Dims{128, 128 * kRows, 3 * 128 * kRows}}) {
    Program program;
    program.lx_bytes = kCoreBytes;
    const auto at = [&](int place, int64_t stick = 0) {
      Operand operand = matrix({kRows, 64, 1}, place, kCodes);
      operand.stick = 2;
      operand.strides = strides;
      operand.offset += stick * strides[2];
      return operand;
    };
    const Dims whole{kRows, 3, 64 * kSticks}, half{kRows, 3, 32 * kSticks};
    add(program, "mul", whole, {at(-1), at(0), at(1)}, 1);
    add(program, "neg", half, {at(-2), at(0, kSticks / 2)}, 1);
    add(program, "copy", half, {at(-2, kSticks / 2), at(0)}, 1);
    add(program, "mul", whole, {at(-3), at(-2), at(2)}, 1);
    add(program, "add", whole, {at(3), at(-1), at(-3)}, 1);
    Contents contents = filled({3 * kRows, 64 * kSticks, 1}, 0);
    contents.arguments.push_back(contents.arguments[0]);
    CHECK(check_groups(program, contents) == 5);
    const auto plan = plan_fusion(program);
    CHECK(plan->groups[0].items.size() == 1);
    for (const OperandView& view : plan->groups[0].items[0].loop->views) CHECK(view.argument != kLx);
  }
}

// A row of two halves, both of which read the number that the fold of the first one overwrites.
TEST("group: what a fold overwrites is read by other points of the row") {
  const Space space{40, 128, 1};
  Program program;
  program.lx_bytes = kCoreBytes;
  const auto halves = [](Operand operand, int64_t half) {
    operand.strides = {operand.strides[0], half, operand.strides[1]};
    if (operand.stick == 1) operand.stick = 2;
    return operand;
  };
  Operand number = numbers(space, kCodes);
  const Operand of_halves = halves(number, 128 * space.rows), of_row = halves(number, 0);
  const auto each = [&](int place) { return halves(matrix(space, place, kCodes), 128 * space.rows); };
  const Dims extents{40, 2, 64};
  const auto three = [&] { program.steps.back().slices = {1, 1, 1}; };
  add_fold(program, extents, {of_halves, each(0)}, {1, 1, 1});
  add(program, "add", extents, {each(-1), each(1), of_row}, 1);
  three();
  add_fold(program, extents, {of_halves, each(-1)}, {1, 1, 1});
  add(program, "add", extents, {each(2), each(-1), of_halves}, 1);
  three();
  CHECK(check_groups(program, filled(space, 0)) >= 2);
}

TEST("group: a NaN that an operation made has no sign of its own") {
  const Space space{4, 64, 1};
  for (const char* after : {"neg", "abs", "copy"}) {
    Program program;
    program.lx_bytes = kCoreBytes;
    add(program, "sub", {4, 64}, {matrix(space, -1, kFloats), matrix(space, 0, kCodes), matrix(space, 1, kCodes)}, 1);
    add(program, after, {4, 64}, {matrix(space, 2, kCodes), matrix(space, -1, kFloats)}, 1);
    CHECK(check_groups(program, filled(space, 0x7fff)) == 2);  // inf - inf
  }
}
