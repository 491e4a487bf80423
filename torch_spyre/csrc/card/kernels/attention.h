// Attention as one step: O = softmax(scale * Q Kᵀ + mask) V, fp32 inside and rounded once.
//
// The bits follow from the step alone. For each row of queries keys go by in blocks of kKeys, counted from the first:
//   scores      one chain of fp32 fma in ascending depth, from queries that were multiplied by the scale; then the mask
//   weights     e^(score - largest so far), the sums so far scaled down where a block has a larger one
//   their sum   kSumLanes running sums, key j in lane j % kSumLanes, folded by halves at the end
//   results     one chain of fma in ascending keys for each element, divided by the sum at the end
// A key whose score is -inf, as where the mask is false or -inf or the key lies ahead of a causal row, takes no part,
// whatever its value holds; a row without any is 0, and zeros are positive. So blocks that no row attends to may be
// left out, and rows may be taken together or apart, on any thread, without a change of a bit.
#pragma once

#include <cstddef>
#include <vector>

#include "card/program/program.h"

namespace spyre {

constexpr int64_t kKeys = 64, kSumLanes = 16;

// Positions in a step's operands and constants, and from its last dimension: extents are [batch ..., q, e, l, d], with
// O over q, e; Q over q, d; K over l, d; V over l, e; the mask over q, l.
namespace attention {
enum Operands : size_t { kOut, kQuery, kKey, kValue, kMask, kOperands };
enum Constants : size_t { kScale, kCausal, kChooses, kConstants };  // kChooses: the mask is true or false
enum Axes : size_t { kDepth = 1, kLength, kWidth, kRows };          // extents.size() - axis
}  // namespace attention

// How many keys a row meets, in whole blocks where it is causal.
int64_t keys_met(const Step& step, int64_t row);

// A step in parts that any threads may carry out: rows of queries that share their keys.
class AttentionParts {
 public:
  AttentionParts(const Step& step, const std::vector<std::byte*>& bases);
  int64_t size() const { return static_cast<int64_t>(parts_.size()); }
  void run(int64_t part) const;

 private:
  struct Part {
    Dims begin, count;  // of the dimensions but the last three; several points only of what shares the keys
  };
  void split(Dims begin, Dims count);

  const Step& step_;
  const std::vector<std::byte*>& bases_;
  std::vector<Part> parts_;
};

}  // namespace spyre
