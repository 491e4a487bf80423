// Attention as one step: O = softmax(scale * Q Kᵀ + mask) V, fp32 inside and rounded once.
//
// The bits follow from the step alone. For each row of queries keys go by in blocks of kKeys, counted from the first:
//   scores      one chain of fp32 fma in ascending depth, from queries that were multiplied by the scale; then the mask
//   weights     e^(score - largest so far), the sums so far scaled down where a block has a larger one
//   their sum   kSumLanes running sums, key j in lane j % kSumLanes, folded by halves at the end
//   results     one chain of fma in ascending keys for each element, divided by the sum at the end
// A key whose score is -inf, as where the mask is false or -inf or the key is ahead of a causal row, takes no part,
// whatever its value holds; a row without any is 0, and zeros are positive. So blocks that no row attends to may be
// left out, and rows may be taken together or apart, on any thread, without a change of a bit.
#pragma once

#include <cstddef>
#include <vector>

#include "card/program/attention_step.h"
#include "card/program/program.h"

namespace spyre {

// An attention step as tasks that any threads may run: each has rows of queries that share their keys.
class AttentionTasks {
 public:
  AttentionTasks(const Step& step, const std::vector<std::byte*>& bases);
  int64_t size() const { return static_cast<int64_t>(tasks_.size()); }
  void run(int64_t task) const;

 private:
  struct QueryBlock {
    Dims begin, count;  // of the dimensions but the last three; several points only where they share the keys
  };
  void split(Dims begin, Dims count);

  const Step& step_;
  const std::vector<std::byte*>& bases_;
  std::vector<QueryBlock> tasks_;
};

}  // namespace spyre
