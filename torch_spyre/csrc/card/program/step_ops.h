// Which tile operation a step computes with, and on which kind of numbers.
#pragma once

#include "card/numeric/tile_ops.h"
#include "card/program/program.h"

namespace spyre {

// How an operation sees elements of a format.
Domain domain_of(DataFormat format);
// The tile operation of an elementwise or reduce step, or null; of sums in fp64, that of a single addition.
const TileOp* tile_op_of(const Step& step);

// Sums in fp64 along the lanes have kWideLanes running values. Folds of at most kWideAtOnce elements (a norm's, in a
// fused loop) add up kWideBlock addends in fp32 first; others add every addend in fp64.
constexpr int64_t kWideLanes = 32, kWideBlock = 16, kWideAtOnce = 8192;
bool sums_wide(const Step& step);       // function wide_add
bool sums_in_blocks(const Step& step);  // with a part in fp32 first
bool finds_variance(const Step& step);  // function variance
int64_t folded_elements(const Step& step);

// Formats of a matmul's B beside integers: SEN169_FP16, IEEE_FP32, and of one byte SENINT8, SEN143_FP8 and SEN152_FP8.
bool is_weight_format(DataFormat format);

}  // namespace spyre
