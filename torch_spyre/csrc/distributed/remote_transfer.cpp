#include "distributed/remote_transfer.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "card/error.h"

namespace torch_spyre::distributed {

namespace {

at::Tensor room(int64_t bytes) { return at::empty({bytes}, at::kByte); }

at::Tensor tensor_of(const std::vector<std::byte>& bytes) {
  at::Tensor result = room(static_cast<int64_t>(bytes.size()));
  std::memcpy(result.data_ptr(), bytes.data(), bytes.size());
  return result;
}

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.data_ptr());
  return {data, data + tensor.numel()};
}

}  // namespace

std::unique_ptr<RemoteTransfer> RemoteTransfer::send(const Gloo& gloo, int to, int tag, const Message& message) {
  auto transfer = std::make_unique<RemoteTransfer>();
  // Handed to Gloo here, so that messages with one tag keep their order.
  std::vector<at::Tensor> header{tensor_of(message.header)}, data{tensor_of(message.data)};
  std::vector<WorkPointer> works{gloo->send(header, to, tag)};
  if (!message.data.empty()) works.push_back(gloo->send(data, to, tag));
  transfer->result_ = std::async(std::launch::async, [self = transfer.get(), works, header, data] {
    for (const WorkPointer& work : works) self->wait(work);
    return Message{};
  });
  return transfer;
}

std::unique_ptr<RemoteTransfer> RemoteTransfer::receive(const Gloo& gloo, int from, int tag, int64_t header,
                                                        std::function<int64_t(const std::byte*)> length) {
  auto transfer = std::make_unique<RemoteTransfer>();
  transfer->result_ = std::async(std::launch::async, [self = transfer.get(), gloo, from, tag, header, length] {
    std::vector<at::Tensor> into{room(header)};
    const WorkPointer first = from < 0 ? gloo->recvAnysource(into, tag) : gloo->recv(into, from, tag);
    self->wait(first);
    Message message;
    message.from = from < 0 ? first->sourceRank() : from;
    message.header = bytes_of(into[0]);
    if (const int64_t bytes = length(message.header.data()); bytes > 0) {
      into[0] = room(bytes);
      self->wait(gloo->recv(into, message.from, tag));
      message.data = bytes_of(into[0]);
    }
    return message;
  });
  return transfer;
}

RemoteTransfer::~RemoteTransfer() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (under_way_ && result_.valid() && !done()) under_way_->abort();
  }
  if (result_.valid()) result_.wait();
}

void RemoteTransfer::wait(WorkPointer work) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw spyre::CollectiveFailed("aborted");
    under_way_ = work;
  }
  if (!work->wait()) throw spyre::CollectiveFailed("aborted");
}

}  // namespace torch_spyre::distributed
