// Steps that work with positions: iota, gather, scatter, scan, argreduce, topk. Each element that is written depends on
// the operands alone, never on how the step is divided over cores.
#pragma once

#include <cstddef>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// One core's part. `bases[i]` is where the argument of operand i begins, null for a constant. Of the cores that share a
// folded dimension the first does the work. Throws IndexRange for an index outside of its dimension, and ValueRange
// where a checked result does not fit.
//
// scatter takes the points in row-major order, so that with `copy` the last of several values stays; with an operation
// the values for one element are folded onto it in fp32 (integers in 64 bits) and the result is rounded once.
void run_indexed(const Step& step, int core, const std::vector<std::byte*>& bases);

}  // namespace spyre
