// Steps that work with positions (iota, gather, scatter, scan, argreduce, topk): what is refused of them, and what
// their fields say.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "card/numeric/tile_ops.h"
#include "card/program/axis_stride.h"
#include "card/program/program.h"

namespace spyre {

bool is_indexed(OpCode op);

// What is wrong with an indexed step, as {field, why}; nothing if it is right. What holds for every step (extents,
// slices, operands within their arguments) has been checked before.
std::optional<std::pair<std::string, std::string>> check_indexed(const Step& step);

namespace indexed {

inline bool moves(const Operand& operand, size_t axis) {
  return !operand.is_constant() && axis < operand.strides.size() && operand.strides[axis] != 0;
}

inline bool index_moves(const Step& step, size_t axis) {
  return std::any_of(step.indirect.begin(), step.indirect.end(),
                     [&](const Indirect& indirect) { return moves(step.operands[indirect.operand], axis); });
}

// The table along its own sticks or strides, as an index moves it.
inline AxisStride stride_along(const Indirect& indirect, const Operand& table) {
  return AxisStride(indirect.stride, table.format, indirect.stick);
}

inline AxisStride stride_along(const Operand& operand, size_t axis) {
  if (!moves(operand, axis)) return AxisStride(0, operand.format, false);
  return AxisStride(operand.strides[axis], operand.format, operand.stick == static_cast<int>(axis));
}

// The first of the dimensions that are folded.
size_t first_folded(const Step& step);
// The tile operation that folds two elements of operand 1 into one, or null.
const TileOp* folding_op(const Step& step);
// Whether a scan writes positions instead of values.
inline bool finds_positions(const Step& step) { return step.function == "argmax" || step.function == "argmin"; }
// Whether points and indices that differ lead to different elements of a scatter's table.
bool places_differ(const Step& step);

}  // namespace indexed
}  // namespace spyre
