#include "card/exchange/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "card/error.h"

namespace spyre {

namespace {

// The first bytes of a segment.
struct Label {
  uint64_t token;
  int64_t bytes;
};

[[noreturn]] void fail(const std::string& what) { throw Error(what + ": " + std::strerror(errno)); }

std::byte* map(int file, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  return static_cast<std::byte*>(data);
}

int open_process(pid_t process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));
#else
  (void)process;
  return -1;
#endif
}

}  // namespace

std::string SharedSegment::this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat space{};
  if (boot.empty() || stat("/proc/self/ns/pid", &space) != 0) return "";
  return boot + "/" + std::to_string(space.st_ino) + "/" + std::to_string(getuid());
}

SharedSegment SharedSegment::create(int64_t bytes, uint64_t token) {
  SharedSegment segment;
  const int file = memfd_create("spyreccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) fail("cannot make shared memory");
  segment.address_ = {this_host(), getpid(), file, token};
  segment.bytes_ = bytes;
  // Sealed, so that nobody who maps it can take its pages away from the others.
  if (ftruncate(file, bytes) != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail("cannot make " + std::to_string(bytes) + " bytes of shared memory");
  segment.data_ = map(file, bytes);
  const Label label{token, bytes};
  std::memcpy(segment.data_, &label, sizeof(label));
  return segment;
}

SharedSegment SharedSegment::open(const Address& address, int64_t bytes) {
  SharedSegment segment;
  segment.address_ = address;
  segment.process_ = open_process(address.process);
  const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) fail("cannot open the shared memory of process " + std::to_string(address.process));
  segment.address_.file = file;
  struct stat found{};
  if (fstat(file, &found) != 0 || found.st_size != bytes)
    throw Error("process " + std::to_string(address.process) + " has other shared memory than expected");
  segment.bytes_ = bytes;
  segment.data_ = map(file, bytes);
  Label label{};
  std::memcpy(&label, segment.data_, sizeof(label));
  if (label.token != address.token || label.bytes != bytes)
    throw Error("process " + std::to_string(address.process) + " has other shared memory than expected");
  return segment;
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      process_(std::exchange(other.process_, -1)),
      address_(std::move(other.address_)) {
  other.address_.file = -1;
}

SharedSegment::~SharedSegment() {
  if (data_) munmap(data_, static_cast<size_t>(bytes_));
  if (address_.file >= 0) close(address_.file);
  if (process_ >= 0) close(process_);
}

bool SharedSegment::owner_is_gone() const {
  if (process_ >= 0) {
    pollfd ended{process_, POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  }
  return kill(address_.process, 0) != 0 && errno == ESRCH;
}

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void Doorbell::wait(uint32_t seen) {
  constexpr timespec kWhile{0, 20'000'000};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (rings_.load(std::memory_order_seq_cst) == seen)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAIT, seen, &kWhile, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace spyre
