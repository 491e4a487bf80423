#include "distributed/gloo_messages.h"

#include <ATen/ops/empty.h>

namespace torch_spyre::distributed {

GlooMessages::~GlooMessages() {
  for (Waiter& waiter : waiters_) waiter.thread.join();
}

void GlooMessages::in_a_thread(std::function<void()> wait) {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    if (!*at->done) {
      ++at;
      continue;
    }
    at->thread.join();
    at = waiters_.erase(at);
  }
  auto done = std::make_unique<std::atomic<bool>>(false);
  std::thread thread([wait = std::move(wait), flag = done.get()] {
    wait();
    *flag = true;
  });
  waiters_.push_back({std::move(done), std::move(thread)});
}

void GlooMessages::send(at::Tensor message, int to, int tag) {
  std::vector<at::Tensor> tensors{message};
  in_a_thread([work = gloo_->send(tensors, to, tag), message] {
    try {
      work->wait();
    } catch (const std::exception&) {  // the other side misses it, and says so
    }
  });
}

void GlooMessages::receive(int64_t bytes, int from, int tag, Arrived arrived) {
  const at::Tensor message = at::empty({bytes}, at::kByte);
  std::vector<at::Tensor> tensors{message};
  auto work = from < 0 ? gloo_->recvAnysource(tensors, tag) : gloo_->recv(tensors, from, tag);
  in_a_thread([work, message, from, arrived = std::move(arrived)] {
    try {
      work->wait();
    } catch (...) {
      return arrived(from, at::Tensor(), std::current_exception());
    }
    arrived(from < 0 ? work->sourceRank() : from, message, nullptr);
  });
}

}  // namespace torch_spyre::distributed
