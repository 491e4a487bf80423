// Channels over torch's Gloo backend, for groups whose members are on several hosts.
#pragma once

#include <deque>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "card/exchange.h"

namespace torch_spyre::distributed {

class GlooChannels final : public spyre::Channels {
 public:
  GlooChannels(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size);
  std::byte* reserve(int to, int64_t bytes) override;
  void send(int to, int64_t bytes) override;
  const std::byte* receive(int from, int64_t bytes) override;
  void release(int from) override;

 private:
  struct Sent {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor bytes;
  };
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::vector<std::deque<Sent>> sent_;           // by member, not yet known to have arrived
  std::vector<at::Tensor> outgoing_, incoming_;  // by member
};

}  // namespace torch_spyre::distributed
