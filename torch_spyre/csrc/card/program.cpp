#include "program.h"

#include <algorithm>

#include "compute.h"

namespace spyre {

namespace {

struct OpRow {
  OpCode op;
  const char* name;
  size_t operands;  // 0: as many as the tile operation takes
};
constexpr OpRow kOps[] = {
    {OpCode::copy, "copy", 2},
    {OpCode::fill, "fill", 1},
    {OpCode::restickify, "restickify", 2},
    {OpCode::elementwise, "elementwise", 0},
    {OpCode::reduce, "reduce", 2},
    {OpCode::matmul, "matmul", 3},
};

// More bytes than any card has. Sums of a few such numbers do not overflow.
constexpr int64_t kAddresses = int64_t{1} << 40;

const OpRow& row(OpCode op) {
  return *std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& row) { return row.op == op; });
}

// The dimension of a matmul that lies along an operand's sticks: its stride is the distance of two sticks. -1: none.
int64_t stick_dimension(const Step& step, size_t operand) {
  if (step.op != OpCode::matmul) return -1;
  const auto rank = static_cast<int64_t>(step.extents.size());
  const bool on_k = operand == 1 || (operand == 2 && step.transposed);
  return on_k ? rank - 1 : rank - 2;
}

int64_t sticks(int64_t elements, DataFormat format) {
  const int64_t stick = elements_per_stick(format);
  return (elements + stick - 1) / stick;
}

// First and one-past-last byte that an operand touches over so many points of each dimension.
std::pair<int64_t, int64_t> reach(const Step& step, size_t index, const Dims& points) {
  const Operand& operand = step.operands[index];
  const int64_t along = stick_dimension(step, index);
  int64_t low = operand.offset, high = operand.offset;
  for (size_t i = 0; i < points.size(); ++i) {
    const int64_t steps = static_cast<int64_t>(i) == along ? sticks(points[i], operand.format) : points[i];
    const int64_t way = (steps - 1) * operand.strides[i];
    (way < 0 ? low : high) += way;
  }
  return {low, high + (along < 0 ? element_bytes(operand.format) : kStickBytes)};
}

// The points of each dimension that a core takes, all but the last.
Dims steady(const Step& step) {
  Dims points(step.extents.size());
  for (size_t i = 0; i < points.size(); ++i) points[i] = (step.extents[i] + step.slices[i] - 1) / step.slices[i];
  return points;
}

std::string text(int64_t number) { return std::to_string(number); }

struct StepCheck {
  const Program& program;
  const size_t index;
  const Limits& limits;
  const Step& step = program.steps[index];
  const size_t rank = step.extents.size();

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw InvalidProgram("program '" + program.name + "', step " + text(index) + " (" + name(step.op) +
                         (step.source.empty() ? "" : ", " + step.source) + "), " + field + ": " + why);
  }

  void all() const {
    iteration_space();
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (element_bytes(step.operands[i].format) == 0)
        refuse("operand " + text(i), std::string("the card does not store format ") + name(step.operands[i].format));
    operation();
    for (size_t i = 0; i < step.operands.size(); ++i) operand(i, "operand " + text(i));
    const Operand& written = step.operands[0];
    const Dims points = steady(step);
    const int64_t along = stick_dimension(step, 0);
    for (size_t i = 0; i < rank; ++i) {
      if (step.slices[i] == 1) continue;
      const bool whole = static_cast<int64_t>(i) == along ? points[i] % elements_per_stick(written.format) == 0
                                                          : points[i] * written.strides[i] % kStickBytes == 0;
      if (!whole || written.strides[i] == 0)
        refuse("slices", "dimension " + text(i) + " would make two cores write into one stick");
      for (size_t o = 1; o < step.operands.size(); ++o)
        if (stick_dimension(step, o) == static_cast<int64_t>(i) &&
            points[i] % elements_per_stick(step.operands[o].format))
          refuse("slices", "dimension " + text(i) + " is not divided at whole sticks of operand " + text(o));
    }
  }

  void count_operands(size_t wanted) const {
    if (step.operands.size() != wanted)
      refuse("operands", std::string(name(step.op)) + " takes " + text(wanted) + ", has " + text(step.operands.size()));
  }

  void operation() const {
    if (row(step.op).operands) count_operands(row(step.op).operands);
    switch (step.op) {
      case OpCode::copy:
      case OpCode::restickify:
        if (step.operands[0].format != step.operands[1].format)
          refuse("operands", std::string(name(step.op)) + " keeps the format, these are " +
                                 name(step.operands[0].format) + " and " + name(step.operands[1].format));
        return;
      case OpCode::fill:
        return;
      case OpCode::elementwise:
        return tile_operation();
      case OpCode::reduce:
        return reduction();
      case OpCode::matmul:
        return matrix_product();
    }
  }

  const TileOp& tile_op() const {
    const TileOp* op = tile_op_of(step);
    if (op) return *op;
    refuse("function", "the card has no tile operation '" + step.function + "'" +
                           (step.operands.size() < 2 ? "" : std::string(" on ") + name(step.operands.back().format)));
  }

  void tile_operation() const {
    const TileOp& op = tile_op();
    count_operands(op.arity + 1);
    if (static_cast<int>(step.constants.size()) != op.constants)
      refuse("constants", step.function + " takes " + text(op.constants) + ", has " + text(step.constants.size()));
    for (size_t i = 1; i < step.operands.size(); ++i) {
      const bool condition = step.function == "where" && i == 1;
      if (domain_of(step.operands[i].format) != (condition ? Domain::real : op.in))
        refuse("operand " + text(i), step.function + " does not take " + name(step.operands[i].format) + " here");
    }
    if (domain_of(step.operands[0].format) != op.out)
      refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
  }

  void reduction() const {
    const TileOp& op = tile_op();
    if (op.arity != 2 || op.in != op.out || op.constants)
      refuse("function", step.function + " does not fold two values into one");
    if (domain_of(step.operands[0].format) != op.out)
      refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
    if (step.constants.size() != 1) refuse("constants", "needs the value to start from");
    if (step.reduced < 1 || step.reduced > static_cast<int>(rank))
      refuse("reduced", text(step.reduced) + " of " + text(rank) + " dimensions");
    for (size_t i = rank - step.reduced; i < rank; ++i) {
      if (step.slices[i] != 1) refuse("slices", "dimension " + text(i) + " is folded and cannot be divided");
      if (i < step.operands[0].strides.size() && step.operands[0].strides[i] != 0)
        refuse("operand 0", "moves along dimension " + text(i) + ", which is folded");
    }
  }

  void matrix_product() const {
    if (rank < 3) refuse("extents", "needs m, n and k");
    if (step.slices[rank - 1] != 1) refuse("slices", "k is folded and cannot be divided");
    for (const Operand& operand : step.operands)
      if (operand.format != DataFormat::SEN169_FP16 && operand.format != DataFormat::IEEE_FP32)
        refuse("operands", std::string("matmul works on SEN169_FP16 and IEEE_FP32, not on ") + name(operand.format));
    const Operand &c = step.operands[0], &a = step.operands[1];
    if (c.strides.size() == rank && c.strides[rank - 1] != 0) refuse("operand 0", "moves along k, which is folded");
    if (a.strides.size() == rank && a.strides[rank - 2] != 0) refuse("operand 1", "moves along n");
    if (step.operands[2].strides.size() == rank && step.operands[2].strides[rank - 3] != 0)
      refuse("operand 2", "moves along m");
  }

  void iteration_space() const {
    __int128 points = 1;
    for (int64_t extent : step.extents) {
      if (extent < 1) refuse("extents", "every extent must be at least 1, one is " + text(extent));
      if ((points *= extent) > kAddresses) refuse("extents", "more points than the card has addresses");
    }
    if (step.slices.size() != rank)
      refuse("slices", "needs one entry per extent, has " + text(step.slices.size()) + " for " + text(rank));
    int64_t cores = 1;
    for (size_t i = 0; i < rank; ++i) {
      if (step.slices[i] < 1 || step.slices[i] > step.extents[i])
        refuse("slices", text(step.slices[i]) + " slices of an extent of " + text(step.extents[i]));
      if ((cores *= step.slices[i]) > limits.cores)
        refuse("slices", "more than the " + text(limits.cores) + " cores of this card");
    }
  }

  void operand(size_t index, const std::string& field) const {
    const Operand& operand = step.operands[index];
    const int64_t bytes = element_bytes(operand.format);
    if (operand.argument < 0 || operand.argument >= static_cast<int>(program.argument_bytes.size()))
      refuse(field, "argument " + text(operand.argument) + " of " + text(program.argument_bytes.size()));
    if (operand.strides.size() != rank)
      refuse(field, "needs one stride per extent, has " + text(operand.strides.size()) + " for " + text(rank));
    if (operand.offset % bytes) refuse(field, "offset is not a multiple of the element's " + text(bytes) + " bytes");
    if (operand.offset < 0 || operand.offset > kAddresses)
      refuse(field, "offset " + text(operand.offset) + " is no address");
    for (size_t i = 0; i < rank; ++i) {
      const __int128 way = __int128{step.extents[i] - 1} * operand.strides[i];
      if (operand.strides[i] % bytes)
        refuse(field, "a stride is not a multiple of the element's " + text(bytes) + " bytes");
      if (way > kAddresses || way < -kAddresses) refuse(field, "extent and stride beyond the card's address space");
    }
    const auto [low, high] = reach(step, index, step.extents);
    const int64_t size = program.argument_bytes[operand.argument];
    if (low < 0 || high > size)
      refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of argument " + text(operand.argument) +
                        ", which has " + text(size));
    const auto [from, to] = reach(step, index, steady(step));
    if (to - from > limits.span_bytes)
      refuse(field, "one core spans " + text(to - from) + " bytes, the limit is " + text(limits.span_bytes) +
                        "; divide the work over more cores");
  }
};

struct PlanCheck {
  const JobPlan& plan;
  const size_t index;
  const Limits& limits;
  const std::vector<int64_t>& bytes;  // of every argument, the plan's own behind the caller's
  const JobStep& step = plan.steps[index];

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw InvalidProgram("plan '" + plan.name + "', step " + text(index) + " (" + name(step.type) + "), " + field +
                         ": " + why);
  }

  void all() const {
    switch (step.type) {
      case JobStep::Type::Compute:
        return compute();
      case JobStep::Type::HostCompute:
        if (!step.host) refuse("host", "there is no function to call");
        return;
      case JobStep::Type::H2D:
      case JobStep::Type::D2H:
        return transfer();
    }
  }

  void compute() const {
    if (!step.program) refuse("program", "is missing");
    validate(*step.program, limits);
    const std::vector<int64_t>& wanted = step.program->argument_bytes;
    if (wanted.size() > bytes.size())
      refuse("program", "takes " + text(wanted.size()) + " arguments, the plan has " + text(bytes.size()));
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] > bytes[i])
        refuse("program",
               "needs " + text(wanted[i]) + " bytes of argument " + text(i) + ", which has " + text(bytes[i]));
  }

  void transfer() const {
    if (step.argument < 0 || step.argument >= static_cast<int>(bytes.size()))
      refuse("argument", text(step.argument) + " of " + text(bytes.size()));
    if (step.buffer < 0 || step.buffer >= static_cast<int>(plan.buffers.size()))
      refuse("buffer", text(step.buffer) + " of " + text(plan.buffers.size()));
    const auto size = static_cast<int64_t>(plan.buffers[step.buffer].size()), room = bytes[step.argument];
    if (step.offset < 0 || step.offset > room || size > room - step.offset)
      refuse("offset", "buffer " + text(step.buffer) + " of " + text(size) + " bytes at " + text(step.offset) +
                           " leaves argument " + text(step.argument) + ", which has " + text(room));
  }
};

}  // namespace

const char* name(OpCode op) { return row(op).name; }

const char* name(JobStep::Type type) {
  constexpr const char* kNames[] = {"H2D", "D2H", "Compute", "HostCompute"};
  return kNames[static_cast<int>(type)];
}

OpCode op_code(const std::string& wanted) {
  std::string known;
  for (const OpRow& row : kOps) {
    if (wanted == row.name) return row.op;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  throw InvalidProgram("unknown operation '" + wanted + "'; the card knows " + known);
}

void validate(const Program& program, const Limits& limits) {
  for (size_t i = 0; i < program.steps.size(); ++i) StepCheck{program, i, limits}.all();
}

void validate(const JobPlan& plan, const Limits& limits) {
  std::vector<int64_t> bytes = plan.argument_bytes;
  bytes.insert(bytes.end(), plan.allocations.begin(), plan.allocations.end());
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] < 0 || bytes[i] > kAddresses)
      throw InvalidProgram("plan '" + plan.name + "', argument_bytes and allocations: argument " + text(i) + " has " +
                           text(bytes[i]) + " bytes");
  for (size_t i = 0; i < plan.steps.size(); ++i) PlanCheck{plan, i, limits, bytes}.all();
}

Nest core_nest(const Step& step, int core) {
  Nest nest;
  nest.loops.resize(step.extents.size());
  Dims begin(step.extents.size());
  const Dims points = steady(step);
  for (size_t i = step.extents.size(); i-- > 0;) {
    begin[i] = core % step.slices[i] * points[i];
    core /= static_cast<int>(step.slices[i]);
    nest.loops[i].count = std::clamp<int64_t>(step.extents[i] - begin[i], 0, points[i]);
  }
  for (size_t side = 0; side < step.operands.size(); ++side) {
    const Operand& operand = step.operands[side];
    const int64_t bytes = element_bytes(operand.format), along = stick_dimension(step, side);
    nest.offset[side] = operand.offset / bytes;
    for (size_t i = 0; i < nest.loops.size(); ++i) {
      const int64_t steps = static_cast<int64_t>(i) == along ? begin[i] / elements_per_stick(operand.format) : begin[i];
      nest.loops[i].stride[side] = operand.strides[i] / bytes;
      nest.offset[side] += steps * nest.loops[i].stride[side];
    }
  }
  return nest;
}

std::vector<Nest> touched(const Step& step, int core, size_t operand) {
  const Nest whole = core_nest(step, core);
  const int64_t along = stick_dimension(step, operand);
  const auto alone = [&](int64_t from_stick, int64_t stick_count, int64_t lanes) {
    Nest nest;
    nest.offset[0] = whole.offset[operand];
    for (size_t i = 0; i < whole.loops.size(); ++i) {
      const int64_t stride = whole.loops[i].stride[operand];
      if (static_cast<int64_t>(i) == along) {
        nest.offset[0] += from_stick * stride;
        nest.loops.push_back({stick_count, {stride}});
        nest.loops.push_back({lanes, {1}});
      } else if (stride != 0 || whole.loops[i].count == 0) {
        nest.loops.push_back({whole.loops[i].count, {stride}});
      }
    }
    return nest;
  };
  if (along < 0) return {alone(0, 0, 0)};
  const int64_t stick = elements_per_stick(step.operands[operand].format), count = whole.loops[along].count;
  return {alone(0, count / stick, stick), alone(count / stick, 1, count % stick)};
}

namespace {

// Bytes of device memory behind an operand, each counted once.
int64_t bytes_behind(const Step& step, size_t index) {
  const Operand& operand = step.operands[index];
  int64_t elements = 1;
  for (size_t i = 0; i < step.extents.size(); ++i)
    if (operand.strides[i] != 0) elements *= step.extents[i];
  return elements * element_bytes(operand.format);
}

}  // namespace

Picoseconds duration(const Program& program, const Clock& clock) {
  Picoseconds total = 0;
  for (const Step& step : program.steps) {
    int64_t read = 0;
    for (size_t i = 1; i < step.operands.size(); ++i) read += bytes_behind(step, i);
    const int64_t written = bytes_behind(step, 0);
    total += step.op == OpCode::matmul
                 ? clock.matmul(product(step.extents), read, written, step.cores())
                 : clock.kernel(read, written, step.cores(),
                                step.op == OpCode::restickify ? Clock::Pattern::restickify : Clock::Pattern::stream);
  }
  return total;
}

Picoseconds duration(const JobPlan& plan, const Clock& clock) {
  Picoseconds total = 0;
  for (const JobStep& step : plan.steps) {
    if (step.type == JobStep::Type::Compute) total += duration(*step.program, clock);
    if (step.type == JobStep::Type::H2D || step.type == JobStep::Type::D2H)
      total += clock.host_transfer(static_cast<int64_t>(plan.buffers[step.buffer].size()));
  }
  return total;
}

}  // namespace spyre
