// Steps that work with positions: iota, gather, scatter, scan, argreduce, topk. Each element that is written depends on
// the operands alone, never on how the step is divided over cores.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "card/program/program.h"

namespace spyre {

bool is_indexed(OpCode op);

// What is wrong with an indexed step, as {field, why}; nothing if it is right. What holds for every step (extents,
// slices, operands within their arguments) has been checked before.
std::optional<std::pair<std::string, std::string>> check_indexed(const Step& step);

// One core's part. `bases[i]` is where the argument of operand i begins, null for a constant. Of the cores that share a
// folded dimension the first does the work. Throws IndexRange for an index outside of its dimension, and ValueRange
// where a checked result does not fit.
//
// scatter takes the points in row-major order, so that with `copy` the last of several values stays; with an operation
// the values that meet in an element are folded onto it in fp32 (integers in 64 bits) and the result is rounded once.
void run_indexed(const Step& step, int core, const std::vector<std::byte*>& bases);

}  // namespace spyre
