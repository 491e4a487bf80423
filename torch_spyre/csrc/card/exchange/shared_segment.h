// Memory that the processes of a group on one host share: each has a segment of its own, which the others map too. It
// has no name in any file system, so that nothing is left of it when the last of them has gone, however that happened.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace spyre {

// A byte range that both processes map, and the process that made it.
class SharedSegment {
 public:
  // Where another process finds a segment. The token tells it from whatever else may be at that place by then.
  struct Address {
    std::string host;  // which running kernel, and which processes it shows
    pid_t process = 0;
    int file = -1;
    uint64_t token = 0;
  };

  // Makes one, all zeros.
  static SharedSegment create(int64_t bytes, uint64_t token);
  // Maps that of another process. Throws Error where it cannot, with the reason.
  static SharedSegment open(const Address& address, int64_t bytes);
  static std::string this_host();

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  std::byte* data() const { return data_; }
  const Address& address() const { return address_; }
  // Whether the process that made it has ended.
  bool owner_is_gone() const;

 private:
  SharedSegment() = default;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int process_ = -1;  // a file descriptor that stands for the process; -1: the kernel has none
  Address address_;
};

// A counter that threads of several processes wait on.
class Doorbell {
 public:
  uint32_t rings() const { return rings_.load(std::memory_order_acquire); }
  void ring();
  // Returns when it has rung since `seen`, or after a while.
  void wait(uint32_t seen);

 private:
  std::atomic<uint32_t> rings_, sleepers_;
};

}  // namespace spyre
