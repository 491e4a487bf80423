// Carrying out one core's part of an operation: elements are decoded into tiles that fit the host's first cache, the
// operation runs on them in fp32 (or int64), and the result is rounded once, on its way out.
#pragma once

#include <vector>

#include "layout.h"
#include "program.h"
#include "tile_ops.h"

namespace spyre {

// How an operation sees elements of a format.
Domain domain_of(DataFormat format);
// The tile operation of an elementwise or reduce step, or null.
const TileOp* tile_op_of(const Step& step);

// `bases[i]` is where the argument of operand i begins. Throws ValueRange where a checked result does not fit.
void run_elementwise(const Step& step, int core, const std::vector<std::byte*>& bases);
void run_reduce(const Step& step, int core, const std::vector<std::byte*>& bases);

}  // namespace spyre
