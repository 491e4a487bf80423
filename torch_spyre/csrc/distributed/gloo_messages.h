// Messages over torch's Gloo backend, for groups whose members share no memory.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace torch_spyre::distributed {

class GlooMessages {
 public:
  explicit GlooMessages(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}
  // After all messages: each ends when it is there, with an error or with Gloo's time-out.
  ~GlooMessages();

  // Both return at once. Messages to one member with one tag arrive in the order of these calls.
  void send(at::Tensor message, int to, int tag);
  // Calls `arrived` from a thread of its own with the sender and the message, of at most so many bytes, or with an
  // error. Any member's message will do if `from` is negative.
  using Arrived = std::function<void(int from, at::Tensor message, std::exception_ptr error)>;
  void receive(int64_t bytes, int from, int tag, Arrived arrived);

 private:
  void in_a_thread(std::function<void()> wait);

  // Gloo's works can only be waited for.
  struct Waiter {
    std::unique_ptr<std::atomic<bool>> done;
    std::thread thread;
  };
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::list<Waiter> waiters_;
};

}  // namespace torch_spyre::distributed
