// How the members of a group of cards exchange bytes: one channel from every member to every other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace spyre {

// Called now and then by whoever waits for member `peer`; it throws to end the wait.
using WaitCheck = std::function<void(int peer)>;

// Messages of a channel arrive in the order in which they were sent. Both ends know their sizes, which are not sent.
// One thread uses the channels of a group.
class Channels {
 public:
  static constexpr int64_t kMessageBytes = 256 * 1024;  // of a message, at most

  Channels(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Channels() = default;
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Room for the next message to a member; it goes off with send(). A channel has room for two messages at least.
  virtual std::byte* reserve(int to, int64_t bytes) = 0;
  virtual void send(int to, int64_t bytes) = 0;
  // The next message from a member, valid until release().
  virtual const std::byte* receive(int from, int64_t bytes) = 0;
  virtual void release(int from) = 0;

  WaitCheck check;

 private:
  const int rank_, size_;
};

}  // namespace spyre
