#include "program.h"

#include <algorithm>

namespace spyre {

namespace {

struct OpRow {
  OpCode op;
  const char* name;
  size_t operands;
};
constexpr OpRow kOps[] = {
    {OpCode::copy, "copy", 2},
    {OpCode::fill, "fill", 1},
    {OpCode::restickify, "restickify", 2},
};

// More bytes than any card has. Sums of a few such numbers do not overflow.
constexpr int64_t kAddresses = int64_t{1} << 40;

const OpRow& row(OpCode op) {
  return *std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& row) { return row.op == op; });
}

// First and one-past-last byte that an operand touches over so many points of each dimension.
std::pair<int64_t, int64_t> reach(const Operand& operand, const Dims& points) {
  int64_t low = operand.offset, high = operand.offset;
  for (size_t i = 0; i < points.size(); ++i) {
    const int64_t way = (points[i] - 1) * operand.strides[i];
    (way < 0 ? low : high) += way;
  }
  return {low, high + element_bytes(operand.format)};
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
    if (step.operands.size() != row(step.op).operands)
      refuse("operands", std::string(name(step.op)) + " takes " + text(row(step.op).operands) + ", has " +
                             text(step.operands.size()));
    for (size_t i = 0; i < step.operands.size(); ++i) operand(step.operands[i], "operand " + text(i));
    const Operand& written = step.operands[0];
    const Dims points = steady(step);
    for (size_t i = 0; i < rank; ++i)
      if (step.slices[i] > 1 && (points[i] * written.strides[i] % kStickBytes || written.strides[i] == 0))
        refuse("slices", "dimension " + text(i) + " would make two cores write into one stick");
    for (const Operand& read : step.operands)
      if (read.format != written.format)
        refuse("operands", std::string(name(step.op)) + " keeps the format, these are " + name(written.format) +
                               " and " + name(read.format));
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

  void operand(const Operand& operand, const std::string& field) const {
    const int64_t bytes = element_bytes(operand.format);
    if (bytes == 0) refuse(field, std::string("the card does not store format ") + name(operand.format));
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
    const auto [low, high] = reach(operand, step.extents);
    const int64_t size = program.argument_bytes[operand.argument];
    if (low < 0 || high > size)
      refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of argument " + text(operand.argument) +
                        ", which has " + text(size));
    const auto [from, to] = reach(operand, steady(step));
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
    const int64_t bytes = element_bytes(operand.format);
    nest.offset[side] = operand.offset / bytes;
    for (size_t i = 0; i < nest.loops.size(); ++i) {
      nest.loops[i].stride[side] = operand.strides[i] / bytes;
      nest.offset[side] += begin[i] * nest.loops[i].stride[side];
    }
  }
  return nest;
}

Picoseconds duration(const Program& program, const Clock& clock) {
  Picoseconds total = 0;
  for (const Step& step : program.steps) {
    const int64_t bytes = product(step.extents) * element_bytes(step.operands[0].format);
    total += clock.kernel(step.operands.size() > 1 ? bytes : 0, bytes, step.cores(),
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
