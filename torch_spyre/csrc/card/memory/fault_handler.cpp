// Tells which tensor's device memory host code touched, before the process gets its segmentation fault.
// Everything reached from the handler only reads, and calls nothing that is not async-signal-safe.
#include "card/memory/fault_handler.h"

#include <sched.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

namespace spyre {
namespace {

std::array<std::atomic<const Memory*>, 64> watched{};
std::atomic<int> readers{0};  // handlers that may hold a pointer out of `watched`
std::atomic<uintptr_t> last_reported{0};
struct sigaction previous;

class Text {
 public:
  Text& operator<<(const char* text) {
    while (*text && size_ < sizeof buffer_) buffer_[size_++] = *text++;
    return *this;
  }
  Text& number(uint64_t value, unsigned base) {
    char digits[24];
    char* first = digits + sizeof digits - 1;
    *first = '\0';
    do *--first = "0123456789abcdef"[value % base];
    while (value /= base);
    return *this << first;
  }
  void print() const {
    for (size_t done = 0; done < size_;) {
      const ssize_t written = write(STDERR_FILENO, buffer_ + done, size_ - done);
      if (written <= 0) return;
      done += static_cast<size_t>(written);
    }
  }

 private:
  char buffer_[1024];
  size_t size_ = 0;
};

void write_block(const Block* block, void* context) {
  Text& text = *static_cast<Text*>(context);
  if (!block) {
    text << ", which belongs to no live tensor (freed storage?)";
    return;
  }
  text << ": ";
  if (block->describe) {
    char name[512] = "";
    block->describe(block->owner, name, sizeof name);
    name[sizeof name - 1] = '\0';
    text << "tensor of " << name << ", ";
  }
  text << "allocation of ";
  text.number(block->bytes, 10) << " bytes";
}

void report(uintptr_t address) {
  ++readers;
  for (const auto& slot : watched) {
    const Memory* memory = slot.load();
    const void* pointer = reinterpret_cast<const void*>(address);
    if (!memory || !memory->owns(pointer)) continue;
    // A previous handler that just returns makes the same access fault for ever; say it once.
    if (last_reported.exchange(address) == address) break;
    Text text;
    text << "torch_spyre: host code touched device memory of " << memory->options().name.c_str() << " at 0x";
    text.number(address, 16);
    memory->inspect(pointer, write_block, &text);  // the lock may be busy: then without the tensor
    text << ". Device memory is not readable from the host; use .cpu() to get a host copy.\n";
    text.print();
    break;
  }
  --readers;
}

// A handler put in front of ours (Python's faulthandler) hands over by raise(), and the sent signal has no address;
// the kernel's record of this thread's last fault still has it.
uintptr_t fault_address(const siginfo_t* info, const void* context) {
  if (info->si_code > 0) return reinterpret_cast<uintptr_t>(info->si_addr);
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<uintptr_t>(machine.gregs[REG_CR2]);
#elif defined(__aarch64__)
  return machine.fault_address;
#else
  return 0;
#endif
}

void handle(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  report(fault_address(info, context));
  errno = saved_errno;

  const bool sent = info->si_code <= 0;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler == SIG_IGN && sent) return;
  if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) return previous.sa_handler(signal);
  // The access repeats after the return, now with the default action. A sent signal has to be sent again.
  ::signal(SIGSEGV, SIG_DFL);
  if (sent) raise(SIGSEGV);
}

}  // namespace

void watch_faults(const Memory* memory) {
  for (auto& slot : watched) {
    const Memory* nobody = nullptr;
    if (slot.compare_exchange_strong(nobody, memory)) return;
  }
}

void unwatch_faults(const Memory* memory) {
  for (auto& slot : watched) {
    const Memory* expected = memory;
    slot.compare_exchange_strong(expected, nullptr);
  }
  while (readers.load()) sched_yield();
}

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = handle;
    // The alternate stack, for stack overflows on their way to the previous handler; not deferred, so that a raise()
    // in the previous handler takes effect there.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous);
  });
}

}  // namespace spyre
