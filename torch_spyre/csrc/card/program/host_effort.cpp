#include "card/program/host_effort.h"

#include <algorithm>
#include <cmath>

#include "card/program/attention_step.h"
#include "card/program/core_split.h"
#include "card/program/limits.h"

namespace spyre {

namespace {

// Bytes that an operand may touch, of all cores.
double bytes_in_reach(const Step& step, size_t index) {
  if (step.operands[index].is_constant()) return 0;
  const bool own = step.operands[index].in_lx();
  const auto [low, high] = reach(step, index, own ? points_in_lx(step, index) : step.extents);
  return static_cast<double>(high - low) * (own ? step.cores() : 1);
}

// Elements that an operand may touch, each counted once; gaps between them do not count.
double elements_in_reach(const Step& step, size_t index) {
  const Operand& operand = step.operands[index];
  if (operand.is_constant()) return 0;
  double places = 1;
  for (size_t i = 0; i < step.extents.size(); ++i)
    if (operand.strides[i] != 0) places *= static_cast<double>(step.extents[i]);
  return std::min(places, bytes_in_reach(step, index) / static_cast<double>(element_bytes(operand.format)));
}

double points_of(const Step& step) {
  double points = 1;
  for (int64_t extent : step.extents) points *= static_cast<double>(extent);
  return points;
}

}  // namespace

void HostEffort::add(const Step& step) {
  const auto beyond = [](double asked, double elements) {
    return std::max(0.0, asked - limits::kPointsPerElement * elements);
  };
  const size_t rank = step.extents.size();
  if (step.op == OpCode::matmul) {
    // No more products than this have all their factors and sums in so many elements (Loomis and Whitney).
    double cubed = 1;
    for (size_t i = 0; i < step.operands.size(); ++i) cubed *= elements_in_reach(step, i);
    multiplications += beyond(points_of(step), std::sqrt(cubed));
  } else if (step.op == OpCode::attention) {
    using namespace attention;
    const auto extent = [&](size_t axis) { return static_cast<double>(step.extents[rank - axis]); };
    const double wide = extent(kWidth) + extent(kDepth), rows = points_of(step) / extent(kWidth) / extent(kDepth);
    multiplications += beyond(rows * wide, elements_in_reach(step, kOut) / extent(kWidth) *
                                               elements_in_reach(step, kKey) / extent(kDepth) * wide);
  } else if (step.op == OpCode::paged_attention) {
    // Rows and keys that meet all have elements of their own, or entries of the table.
  } else {
    double elements = 0;
    for (size_t i = 0; i < step.operands.size(); ++i) elements += elements_in_reach(step, i);
    // The ranks of a topk come out of one pass over its elements.
    const double ranks = step.op == OpCode::topk ? static_cast<double>(step.extents[rank - 2]) : 1;
    points += beyond(points_of(step) / ranks, elements);
  }
}

}  // namespace spyre
