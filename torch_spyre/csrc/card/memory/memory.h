// Device memory: an address space in segments, blocks handed out best fit, freed blocks cached until empty_cache().
//
// Three addresses name a block: its offset on the card, the address where the card's executor reads and writes it,
// and the device pointer that the host sees, which is in a range that faults on any access. The faulting range is
// twice as long as the memory (device pointer = base + 2 * offset), because a host element may be twice as wide as
// the card's (int64): host-side pointer arithmetic on one tensor never reaches the next tensor's pointers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "card/error.h"
#include "card/telemetry/counters.h"

namespace spyre {

constexpr int kStreams = kCountedStreams;  // per card: 0 default, 1-32 low priority, 33-64 high priority

// How far each stream of one card has got: work `n` of a stream is finished when completed >= n.
struct Progress {
  std::array<std::atomic<uint64_t>, kStreams> issued{};
  std::array<std::atomic<uint64_t>, kStreams> completed{};
  bool finished(int stream, uint64_t sequence) const {
    return completed[stream].load(std::memory_order_acquire) >= sequence;
  }

  // Work after `first` up to `last` of a stream is not carried out: an interrupt dropped it.
  void drop(int stream, uint64_t first, uint64_t last) {
    const std::lock_guard lock(mutex_);
    dropped_[stream].emplace_back(first, last);
  }
  bool dropped(int stream, uint64_t sequence) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [first, last] : dropped_[stream])
      if (sequence > first && sequence <= last) return true;
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::vector<std::pair<uint64_t, uint64_t>>, kStreams> dropped_{};
};

// A place in a stream that a block must outlive.
struct Use {
  const Progress* progress;
  int stream;
  uint64_t sequence;
};

struct Chunk;

struct Block {
  uint64_t offset = 0;  // from the start of the card's memory
  uint64_t bytes = 0;   // whole sticks, at least one
  Chunk* chunk = nullptr;
  Block* previous = nullptr;  // neighbours by address within the chunk
  Block* next = nullptr;
  bool allocated = false;
  uint64_t serial = 0;    // which allocation of its memory this is, from 1: places are used again, numbers are not
  std::vector<Use> uses;  // last use per stream
  Use first_write{};      // what gave the block its first contents; without progress: nothing has
  std::atomic<bool> torn{false};  // work was stopped while it wrote here
  // Describes the contents, for messages: writes a short text (shape, type, layout) into `text`. Called from a signal
  // handler, so it must not allocate or lock.
  void (*describe)(const void* owner, char* text, size_t size) = nullptr;
  const void* owner = nullptr;
};

struct MemoryStats {
  struct Counter {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  };
  Counter allocation;            // live blocks, in number
  Counter allocated_bytes;       // live blocks
  Counter reserved_bytes;        // chunks taken from the address space
  Counter segment;               // chunks, in number
  Counter inactive_split_bytes;  // free bytes inside chunks that also hold live blocks
  int64_t pending_bytes = 0;     // freed by the host, still used by a stream
  int64_t retries = 0;           // allocations that had to release cached memory first
  int64_t out_of_memory = 0;
};

// One chunk of the address space and the blocks in it.
struct ChunkState {
  enum class Use { allocated, pending, free };  // pending: freed by the host, still used by a stream
  struct BlockState {
    uint64_t offset, bytes;
    Use use;
  };
  uint64_t offset, bytes;
  bool small;
  std::vector<BlockState> blocks;
};

struct MemoryOptions {
  std::string name = "card 0";  // for messages
  int segments = 7;             // a block never crosses a segment
  uint64_t segment_bytes = 16ull << 30;
  uint64_t capacity = 7 * (16ull << 30);  // usable bytes, at most segments * segment_bytes
  bool backed = true;                     // false: addresses only, nothing is ever committed (timing mode)
  // Device pointers are in a range that faults; false: they are card addresses (pinned host memory).
  bool faulting = true;
  bool poison = false;  // strict mode: fresh and freed bytes hold 0x7ffe words, a NaN in SEN169 and in fp32
};

class Memory {
 public:
  explicit Memory(MemoryOptions options);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Rounded up to whole sticks, at least one. Throws OutOfMemory: asked, free, largest block, and what to do.
  Block* allocate(uint64_t bytes);
  // The block is reused only when every noted use is finished. Never throws, callable from any thread.
  void release(Block* block) noexcept;
  // Work number `sequence` of a stream reads the block, writes into it, or replaces all that is in it.
  enum class Effect { reads, writes, replaces };
  void note_use(Block* block, const Progress& progress, int stream, uint64_t sequence, Effect effect = Effect::reads);
  // Whether an interrupt left the block without contents: what would have given it some was dropped or stopped.
  bool lost(const Block* block) const;
  // Everything queued on the stream when the block is released must finish before it is reused.
  void record_stream(Block* block, const Progress& progress, int stream);

  std::byte* card_address(const Block* block) const { return card_base_ + block->offset; }
  void* device_pointer(const Block* block) const {
    return options_.faulting ? static_cast<void*>(fault_base_ + 2 * block->offset) : card_base_ + block->offset;
  }
  // The live block whose device pointers include this address, or null.
  Block* find(const void* device_pointer) const;
  bool owns(const void* device_pointer) const noexcept;
  // For the fault handler: calls `visit` under the lock with what find() gives; false, without a call, if it is busy.
  bool inspect(const void* device_pointer, void (*visit)(const Block*, void*), void* context) const noexcept;

  // Gives whole free chunks back (their pages are returned to the host's operating system).
  void empty_cache();
  MemoryStats stats() const;
  std::vector<ChunkState> snapshot() const;
  void reset_peak();
  void reset_accumulated();
  uint64_t capacity() const { return options_.capacity; }
  uint64_t free_bytes() const;  // capacity - allocated - pending

  // Waits until some stream has made progress; called, without the lock held, when memory that streams still use
  // is all that is left, or when freed-but-used bytes pass `pending_limit`.
  std::function<void(const Use&)> wait_for;
  uint64_t pending_limit = 1ull << 30;

  // Say from now on how much is allocated and reserved.
  void count(MemoryCounters* counters);

  const MemoryOptions& options() const { return options_; }

 private:
  struct State;
  uint64_t offset_of(const void* device_pointer) const noexcept;
  MemoryOptions options_;
  std::byte* card_base_ = nullptr;
  std::byte* fault_base_ = nullptr;
  std::unique_ptr<State> state_;
};

}  // namespace spyre
