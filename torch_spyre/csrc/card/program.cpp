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

constexpr int64_t kAddresses = int64_t{1} << 40;

const OpRow& row(OpCode op) {
  return *std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& row) { return row.op == op; });
}

// First and one-past-last byte that an operand touches over points [begin, end) of each dimension.
std::pair<int64_t, int64_t> reach(const Operand& operand, const Dims& points) {
  int64_t low = operand.offset, high = operand.offset;
  for (size_t i = 0; i < points.size(); ++i) {
    const int64_t way = (points[i] - 1) * operand.strides[i];
    (way < 0 ? low : high) += way;
  }
  return {low, high + element_bytes(operand.format)};
}

Dims steady(const Step& step) {
  Dims points(step.extents.size());
  for (size_t i = 0; i < points.size(); ++i) points[i] = (step.extents[i] + step.slices[i] - 1) / step.slices[i];
  return points;
}

}  // namespace

const char* name(OpCode op) { return row(op).name; }

const char* name(JobStep::Type type) {
  constexpr const char* kNames[] = {"H2D", "D2H", "Compute", "HostCompute"};
  return kNames[static_cast<int>(type)];
}

OpCode op_code(const std::string& wanted) {
  for (const OpRow& row : kOps)
    if (wanted == row.name) return row.op;
  std::string known;
  for (const OpRow& row : kOps) known += std::string(known.empty() ? "" : ", ") + row.name;
  throw InvalidProgram("unknown operation '" + wanted + "'; the card knows " + known);
}

void validate(const Program& program, const Limits& limits) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    auto refuse = [&](const std::string& field, const std::string& why) {
      throw InvalidProgram("program '" + program.name + "', step " + std::to_string(s) + " (" + name(step.op) +
                           (step.source.empty() ? "" : ", " + step.source) + "), " + field + ": " + why);
    };
    const size_t rank = step.extents.size();
    for (int64_t extent : step.extents)
      if (extent < 1) refuse("extents", "every extent must be at least 1, one is " + std::to_string(extent));
    if (step.slices.size() != rank)
      refuse("slices", "needs one entry per extent, has " + std::to_string(step.slices.size()) + " for " +
                           std::to_string(rank));
    int64_t cores = 1;
    __int128 points_in_all = 1;
    for (size_t i = 0; i < rank; ++i) {
      if ((points_in_all *= step.extents[i]) > kAddresses) refuse("extents", "more points than the card has addresses");
      if (step.slices[i] < 1 || step.slices[i] > step.extents[i])
        refuse("slices", std::to_string(step.slices[i]) + " slices of an extent of " + std::to_string(step.extents[i]));
      cores *= step.slices[i];
      if (cores > limits.cores)
        refuse("slices", "more than the " + std::to_string(limits.cores) + " cores of this card");
    }
    if (step.operands.size() != row(step.op).operands)
      refuse("operands", std::string(name(step.op)) + " takes " + std::to_string(row(step.op).operands) + ", has " +
                             std::to_string(step.operands.size()));
    const Dims points = steady(step);
    for (size_t o = 0; o < step.operands.size(); ++o) {
      const Operand& operand = step.operands[o];
      const std::string field = "operand " + std::to_string(o);
      const int64_t bytes = element_bytes(operand.format);
      if (bytes == 0) refuse(field, std::string("the card does not store format ") + name(operand.format));
      if (operand.argument < 0 || operand.argument >= static_cast<int>(program.argument_bytes.size()))
        refuse(field, "argument " + std::to_string(operand.argument) + " of " +
                          std::to_string(program.argument_bytes.size()));
      if (operand.strides.size() != rank) refuse(field, "needs one stride per extent");
      if (operand.offset % bytes) refuse(field, "offset is not a multiple of the element's " + std::to_string(bytes) + " bytes");
      for (size_t i = 0; i < rank; ++i) {
        if (operand.strides[i] % bytes) refuse(field, "a stride is not a multiple of the element's bytes");
        // No card has addresses this large, and what follows cannot overflow below it.
        if (__int128{step.extents[i] - 1} * operand.strides[i] > kAddresses ||
            __int128{step.extents[i] - 1} * operand.strides[i] < -kAddresses)
          refuse(field, "extent and stride beyond the card's address space");
      }
      const auto [low, high] = reach(operand, step.extents);
      const int64_t size = program.argument_bytes[operand.argument];
      if (low < 0 || high > size)
        refuse(field, "reaches bytes [" + std::to_string(low) + ", " + std::to_string(high) + ") of argument " +
                          std::to_string(operand.argument) + ", which has " + std::to_string(size));
      const auto [from, to] = reach(operand, points);
      if (to - from > limits.span_bytes)
        refuse(field, "one core spans " + std::to_string(to - from) + " bytes, the limit is " +
                          std::to_string(limits.span_bytes) + "; divide the work over more cores");
    }
    const Operand& written = step.operands[0];
    for (size_t i = 0; i < rank; ++i)
      if (step.slices[i] > 1 && (points[i] * written.strides[i] % kStickBytes || written.strides[i] == 0))
        refuse("slices", "dimension " + std::to_string(i) + " would make two cores write into one stick");
    if (step.operands.size() == 2 && step.operands[1].format != written.format)
      refuse("operands", std::string(name(step.op)) + " keeps the format, these are " + name(written.format) + " and " +
                             name(step.operands[1].format));
  }
}

Nest core_nest(const Step& step, int core) {
  Nest nest;
  const Dims points = steady(step);
  auto bytes = [&](size_t side) { return side < step.operands.size() ? element_bytes(step.operands[side].format) : 1; };
  for (size_t side = 0; side < step.operands.size(); ++side) nest.offset[side] = step.operands[side].offset / bytes(side);
  for (size_t i = step.extents.size(); i-- > 0;) {
    const int64_t slice = core % step.slices[i];
    core /= step.slices[i];
    const int64_t begin = slice * points[i];
    Loop loop{std::clamp<int64_t>(step.extents[i] - begin, 0, points[i]), {0, 0}};
    for (size_t side = 0; side < step.operands.size(); ++side) {
      loop.stride[side] = step.operands[side].strides[i] / bytes(side);
      nest.offset[side] += begin * loop.stride[side];
    }
    nest.loops.insert(nest.loops.begin(), loop);
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

}  // namespace spyre
