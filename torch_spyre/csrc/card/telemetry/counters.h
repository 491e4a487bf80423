// What a process tells others of its cards: counters at fixed places of a small file, which `spyre smi` reads.
// torch_spyre/smi/layout.py has the same places; a change here is another kVersion there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spyre {

// Other processes read it at any time. One thread at a time writes it, under a lock that is held anyway: no counting
// needs more than a load and a store.
class Counter {
 public:
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(uint64_t value) { set(get() + value); }

 private:
  std::atomic<uint64_t> value_{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(Counter) == 8);

constexpr int kCountedStreams = 65;

// In bytes of device memory, as torch.spyre.memory_stats() has them.
struct alignas(64) MemoryCounters {
  Counter allocated, peak, reserved;
};

struct alignas(64) WorkCounters {
  // Host nanoseconds in which a task of the card was carried out. While one is, the (monotonic) time of its begin is
  // subtracted: one word says both how long it was and whether it goes on.
  Counter working_ns;
  // All below is settled at submission. Times are modelled picoseconds.
  Counter busy_ps, matrix_ps, vector_ps, memory_ps, ring_ps, host_ps;
  Counter kernels, transfers;
  Counter bytes_read, bytes_written;  // of device memory
  Counter bytes_from_host, bytes_to_host;
};

struct StreamCounters {
  Counter issued, completed, time_ps, reserved;
};

struct CardCounters {
  Counter physical, cores, capacity;
  MemoryCounters memory;
  WorkCounters work;
  alignas(64) StreamCounters streams[kCountedStreams];
};
static_assert(offsetof(CardCounters, memory) == 64 && offsetof(CardCounters, work) == 128);
static_assert(offsetof(CardCounters, streams) == 256 && sizeof(CardCounters) == 2368);

struct ProcessCounters {
  static constexpr uint64_t kMagic = 0x494d535f45525053;  // "SPRE_SMI"
  static constexpr uint64_t kVersion = 1;
  static constexpr int kMostCards = 8;

  std::atomic<uint64_t> magic{0};  // written last
  Counter version, bytes, pid, started_ticks, pid_namespace, mode, cards;
  alignas(64) CardCounters card[kMostCards];
};
static_assert(offsetof(ProcessCounters, card) == 64);

// What a task asks of the parts of a card; modelled picoseconds and bytes. Settled with the task's duration.
struct Usage {
  int64_t busy_ps = 0, matrix_ps = 0, vector_ps = 0, memory_ps = 0, ring_ps = 0, host_ps = 0;
  int64_t kernels = 0, transfers = 0;
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t bytes_from_host = 0, bytes_to_host = 0;
};

}  // namespace spyre
