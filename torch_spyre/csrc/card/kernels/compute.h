// Carrying out one core's part of an operation: elements are decoded into tiles that fit the host's first cache, the
// operation runs on them in fp32 (or int64), and the result is rounded once, on its way out.
#pragma once

#include <vector>

#include "card/memory/layout.h"
#include "card/numeric/tile_ops.h"
#include "card/program/program.h"

namespace spyre {

// How an operation sees elements of a format.
Domain domain_of(DataFormat format);
// The tile operation of an elementwise or reduce step, or null; of sums in fp64, that of a single addition.
const TileOp* tile_op_of(const Step& step);

// Sums in fp64 along the lanes have so many running values, to which every addend is added at once; of folds of at most
// kWideAtOnce elements, the sums of kWideBlock addends each, which were made in fp32 (a norm's, in a chain).
constexpr int64_t kWideLanes = 32, kWideBlock = 16, kWideAtOnce = 8192;
bool sums_wide(const Step& step);       // function wide_add
bool sums_in_blocks(const Step& step);  // with a part in fp32 first

// `bases[i]` is where the argument of operand i begins. Throws ValueRange where a checked result does not fit.
void run_elementwise(const Step& step, int core, const std::vector<std::byte*>& bases);
void run_reduce(const Step& step, int core, const std::vector<std::byte*>& bases);

}  // namespace spyre
