// One message to or from a member on another host, over torch's Gloo backend, in a thread of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <future>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace torch_spyre::distributed {

class RemoteTransfer {
 public:
  struct Message {
    int from = -1;
    std::vector<std::byte> header, data;
  };
  using Gloo = c10::intrusive_ptr<c10d::Backend>;

  // The header says how many bytes follow; those of a group have one size.
  static std::unique_ptr<RemoteTransfer> send(const Gloo& gloo, int to, int tag, const Message& message);
  // `length` finds the number of bytes in a header. From any member if `from` is negative.
  static std::unique_ptr<RemoteTransfer> receive(const Gloo& gloo, int from, int tag, int64_t header,
                                                 std::function<int64_t(const std::byte*)> length);
  // Ends it, whether it is done or not.
  ~RemoteTransfer();

  bool done() const { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  // Once it is done. Throws what went wrong.
  Message take() { return result_.get(); }

 private:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  void wait(WorkPointer work);

  std::mutex mutex_;
  WorkPointer under_way_;
  bool aborted_ = false;
  std::future<Message> result_;
};

}  // namespace torch_spyre::distributed
