// The fields of an attention step; kernels/attention.h says what it computes.
#pragma once

#include <cstddef>

#include "card/program/program.h"

namespace spyre {

// Keys go by in blocks of kKeys, from the first; weights are summed in kSumLanes lanes.
constexpr int64_t kKeys = 64, kSumLanes = 16;

// Positions in a step's operands and constants, and from its last dimension: extents are [batch ..., q, e, l, d], with
// O over q, e; Q over q, d; K over l, d; V over l, e; the mask over q, l.
namespace attention {
enum Operands : size_t { kOut, kQuery, kKey, kValue, kMask, kOperands };
enum Constants : size_t { kScale, kCausal, kChooses, kConstants };  // kChooses: the mask is true or false
enum Axes : size_t { kDepth = 1, kLength, kWidth, kRows };          // extents.size() - axis
}  // namespace attention

// How many keys a row attends to at most: where it is causal, up to the end of its own block of keys.
int64_t keys_met(const Step& step, int64_t row);

}  // namespace spyre
