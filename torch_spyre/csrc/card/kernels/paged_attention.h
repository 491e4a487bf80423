// Paged attention as one step: the arithmetic of attention.h, over keys and values in pages that a table names.
//
// A score is scale * q k, capped (cap * tanh(score / cap)) where there is a cap, plus slope * (position of the key -
// position of the query) where there are slopes; a sink is one more score, without a value. Keys go by in blocks
// counted from the first of the request, whatever pages they are in: bits do not depend on the size of a page, on where
// pages lie, nor on what other requests a call has. Rows of no request are 0.
#pragma once

#include <cstddef>
#include <vector>

#include "card/program/paged_step.h"

namespace spyre {

// A step as tasks that any threads may run: each has rows of one request that share their keys.
class PagedAttentionTasks {
 public:
  PagedAttentionTasks(const Step& step, const std::vector<std::byte*>& bases);
  int64_t size() const { return static_cast<int64_t>(tasks_.size()); }
  void run(int64_t task) const;

 private:
  struct Task {
    int request;               // of requests_; -1: rows that belong to none
    int64_t head, begin, end;  // tokens
  };

  const Step& step_;
  const std::vector<std::byte*>& bases_;
  const std::vector<paged::Request> requests_;
  std::vector<Task> tasks_;
};

}  // namespace spyre
