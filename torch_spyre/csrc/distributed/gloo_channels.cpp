#include "distributed/gloo_channels.h"

#include <ATen/ops/empty.h>

namespace torch_spyre::distributed {

namespace {

constexpr int kTag = 0x7f000001;  // messages of users have tags of their own
constexpr size_t kUnderWay = 4;   // messages to one member

}  // namespace

GlooChannels::GlooChannels(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
    : Channels(rank, size), gloo_(std::move(gloo)), sent_(size), outgoing_(size), incoming_(size) {}

std::byte* GlooChannels::reserve(int to, int64_t bytes) {
  if (sent_[to].size() >= kUnderWay) {
    sent_[to].front().work->wait();
    sent_[to].pop_front();
  }
  outgoing_[to] = at::empty({bytes}, at::kByte);
  return static_cast<std::byte*>(outgoing_[to].data_ptr());
}

void GlooChannels::send(int to, int64_t) {
  std::vector<at::Tensor> message{outgoing_[to]};
  sent_[to].push_back({gloo_->send(message, to, kTag), std::move(outgoing_[to])});
}

const std::byte* GlooChannels::receive(int from, int64_t bytes) {
  if (check) check(from);
  incoming_[from] = at::empty({bytes}, at::kByte);
  std::vector<at::Tensor> message{incoming_[from]};
  gloo_->recv(message, from, kTag)->wait();
  return static_cast<const std::byte*>(incoming_[from].data_ptr());
}

void GlooChannels::release(int from) { incoming_[from] = at::Tensor(); }

}  // namespace torch_spyre::distributed
