// A caching allocator in two levels, as CUDA's. Chunks are taken best fit from the free addresses of the segments;
// blocks are cut best fit from chunks and join their free neighbours again. Small blocks that were freed lately are on
// stacks, one per size, so that the common allocate and release touch no tree.
#include "card/memory/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <queue>
#include <utility>

#include "card/memory/fault_handler.h"
#include "card/numeric/formats.h"
#include "card/numeric/sen169.h"

namespace spyre {

struct Chunk {
  uint64_t offset;
  uint64_t bytes;  // whole pages, except the chunk that reaches the end of the card
  bool small;      // small requests have their own chunks: a long-lived scalar must not pin 20 MiB
  Block* first = nullptr;
  uint64_t used = 0;  // by live and pending blocks
};

namespace {

constexpr uint64_t kGrain = kStickBytes;
constexpr uint64_t kPage = 2ull << 20;
constexpr uint64_t kSmallRequest = 1ull << 20;    // below: cut from one-page chunks
constexpr uint64_t kMediumRequest = 10ull << 20;  // below: cut from kMediumChunk
constexpr uint64_t kMediumChunk = 20ull << 20;
constexpr uint64_t kRecentBytes = 64ull << 10;  // largest block kept on the stacks of recent blocks
constexpr int kRecentBlocks = 1024;             // in all stacks together; bounds the pause of joining them
constexpr uint16_t kPoison = sen169::kNan;
constexpr uint64_t kAtRelease = ~0ull;  // sequence of a recorded stream until the release says how far it was issued

struct Node : Block {
  bool joinable = false;  // in a pool, not on a stack of recent blocks
  Node* below = nullptr;  // on a stack of recent blocks or of unused nodes
  uint64_t released = 0;  // order of releases, while pending
};

// Pending blocks that wait for one stream, the earliest to finish on top.
struct Queue {
  const Progress* progress;
  int stream;
  std::priority_queue<std::pair<uint64_t, Node*>, std::vector<std::pair<uint64_t, Node*>>, std::greater<>> blocks = {};
};

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string human(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::string exact = std::to_string(bytes) + " bytes";
  if (bytes < 1024) return exact;
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; value >= 1024 && unit < 5; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return std::string(text) + " (" + exact + ")";
}

void add(MemoryStats::Counter& counter, int64_t delta) {
  counter.current += delta;
  counter.peak = std::max(counter.peak, counter.current);
  (delta > 0 ? counter.allocated : counter.freed) += std::abs(delta);
}

std::array<MemoryStats::Counter*, 5> counters(MemoryStats& stats) {
  return {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes, &stats.segment,
          &stats.inactive_split_bytes};
}

// Aligned to kPage, so that the kernel can use huge pages; committed only where touched.
class Mapping {
 public:
  std::byte* reserve(uint64_t length, int protection, const MemoryOptions& options) {
    bytes_ = length + kPage;
    start_ = mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start_ == MAP_FAILED)
      throw ConfigurationError(options.name + ": the system refused " + human(length) + " of address space (" +
                               std::strerror(errno) +
                               "). SPYRE_MEMORY_GB sets a smaller card; ulimit -v and vm.overcommit_memory limit it.");
    return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(start_), kPage));
  }
  ~Mapping() {
    if (start_ != MAP_FAILED) munmap(start_, bytes_);
  }

 private:
  void* start_ = MAP_FAILED;
  uint64_t bytes_ = 0;
};

}  // namespace

// What the lock guards: every method expects it held.
struct Memory::State {
  explicit State(const MemoryOptions& options) : options(options) {
    for (uint64_t offset = 0; offset < options.capacity; offset += options.segment_bytes)
      ranges[offset] = std::min(options.segment_bytes, options.capacity - offset);
  }

  const MemoryOptions& options;
  Mapping card, fault;
  std::byte* base = nullptr;
  mutable std::mutex mutex;
  MemoryStats stats;
  MemoryCounters* counters = nullptr;

  std::map<uint64_t, uint64_t> ranges;  // free addresses, offset to bytes; never joined across a segment's border
  std::map<uint64_t, Chunk> chunks;     // by offset
  std::map<std::pair<uint64_t, uint64_t>, Node*> pools[2];  // free blocks by (bytes, offset); [small]
  std::array<Node*, kRecentBytes / kGrain + 1> recent{};
  int recent_blocks = 0;

  std::deque<Queue> queues;
  int64_t pending_blocks = 0;
  uint64_t releases = 0;
  uint64_t allocations = 0;

  std::deque<Node> nodes;
  Node* unused_nodes = nullptr;

  void count() {
    if (!counters) return;
    counters->allocated.set(stats.allocated_bytes.current);
    counters->peak.set(stats.allocated_bytes.peak);
    counters->reserved.set(stats.reserved_bytes.current);
  }

  Node* new_node(Chunk& chunk, uint64_t offset, uint64_t bytes, Block* previous, Block* next) {
    Node* node = unused_nodes ? std::exchange(unused_nodes, unused_nodes->below) : &nodes.emplace_back();
    node->chunk = &chunk;
    node->offset = offset;
    node->bytes = bytes;
    node->previous = previous;
    node->next = next;
    (previous ? previous->next : chunk.first) = node;
    if (next) next->previous = node;
    return node;
  }
  void recycle(Node* node) { node->below = std::exchange(unused_nodes, node); }

  void set_used(Chunk& chunk, uint64_t used) {
    const auto unused = [&] { return chunk.used ? static_cast<int64_t>(chunk.bytes - chunk.used) : 0; };
    const int64_t before = unused();
    chunk.used = used;
    add(stats.inactive_split_bytes, unused() - before);
  }

  void poison(const Node* node) const {
    if (options.poison && options.backed)
      std::fill_n(reinterpret_cast<uint16_t*>(base + node->offset), node->bytes / 2, kPoison);
  }

  Node* place(uint64_t bytes) {
    Node* node = nullptr;
    if (bytes <= kRecentBytes && recent[bytes / kGrain]) {
      node = std::exchange(recent[bytes / kGrain], recent[bytes / kGrain]->below);
      --recent_blocks;
    } else {
      const bool small = bytes < kSmallRequest;
      node = best_fit(bytes, small);
      if (!node && recent_blocks) {
        join_recent();
        node = best_fit(bytes, small);
      }
      if (!node) node = new_chunk(bytes, small);
      if (!node) node = best_fit(bytes, !small);  // no address left: better a block of the other kind than none
      if (!node) return nullptr;
      if (node->bytes > bytes) {
        enter_pool(new_node(*node->chunk, node->offset + bytes, node->bytes - bytes, node, node->next));
        node->bytes = bytes;
      }
    }
    node->allocated = true;
    node->serial = ++allocations;
    node->first_write = {};
    node->torn = false;
    set_used(*node->chunk, node->chunk->used + bytes);
    add(stats.allocation, 1);
    add(stats.allocated_bytes, static_cast<int64_t>(bytes));
    return node;
  }

  Node* best_fit(uint64_t bytes, bool small) {
    const auto found = pools[small].lower_bound({bytes, 0});
    if (found == pools[small].end()) return nullptr;
    Node* node = found->second;
    leave_pool(node);
    return node;
  }

  Node* new_chunk(uint64_t bytes, bool small) {
    const auto best_range = [this](uint64_t least) {
      auto best = ranges.end();
      for (auto range = ranges.begin(); range != ranges.end(); ++range)
        if (range->second >= least && (best == ranges.end() || range->second < best->second)) best = range;
      return best;
    };
    uint64_t length = round_up(bytes, kPage);
    auto range = ranges.end();
    if (!small && bytes < kMediumRequest) {
      range = best_range(kMediumChunk);
      if (range != ranges.end()) length = kMediumChunk;
    }
    if (range == ranges.end()) range = best_range(bytes);
    if (range == ranges.end()) return nullptr;

    const auto [offset, available] = *range;
    length = std::min(length, available);
    ranges.erase(range);
    if (length < available) ranges[offset + length] = available - length;

    add(stats.segment, 1);
    add(stats.reserved_bytes, static_cast<int64_t>(length));
    Chunk& chunk = chunks[offset] = Chunk{.offset = offset, .bytes = length, .small = small};
    return new_node(chunk, offset, length, nullptr, nullptr);
  }

  void enter_pool(Node* node) {
    node->joinable = true;
    pools[node->chunk->small][{node->bytes, node->offset}] = node;
  }
  void leave_pool(Node* node) {
    node->joinable = false;
    pools[node->chunk->small].erase({node->bytes, node->offset});
  }

  void put_back(Node* node) {
    poison(node);
    node->uses.clear();
    set_used(*node->chunk, node->chunk->used - node->bytes);
    if (node->bytes > kRecentBytes) return join(node);
    if (recent_blocks >= kRecentBlocks) join_recent();
    node->below = std::exchange(recent[node->bytes / kGrain], node);
    ++recent_blocks;
  }

  void join(Node* node) {
    const auto absorb_next = [this](Node* left) {
      auto* right = static_cast<Node*>(left->next);
      left->bytes += right->bytes;
      left->next = right->next;
      if (left->next) left->next->previous = left;
      recycle(right);
    };
    if (auto* next = static_cast<Node*>(node->next); next && next->joinable) {
      leave_pool(next);
      absorb_next(node);
    }
    if (auto* previous = static_cast<Node*>(node->previous); previous && previous->joinable) {
      leave_pool(previous);
      absorb_next(previous);
      node = previous;
    }
    enter_pool(node);
  }

  void join_recent() {
    for (Node*& top : recent)
      while (top) join(std::exchange(top, top->below));
    recent_blocks = 0;
  }

  bool release_free_chunks() {
    join_recent();
    const size_t before = chunks.size();
    for (auto next = chunks.begin(); next != chunks.end();) {
      const auto current = next++;
      const Chunk& chunk = current->second;
      auto* only = static_cast<Node*>(chunk.first);
      if (!only->joinable || only->bytes != chunk.bytes) continue;
      leave_pool(only);
      recycle(only);
      if (options.backed) madvise(base + chunk.offset, chunk.bytes, MADV_DONTNEED);
      return_range(chunk.offset, chunk.bytes);
      add(stats.segment, -1);
      add(stats.reserved_bytes, -static_cast<int64_t>(chunk.bytes));
      chunks.erase(current);
    }
    return chunks.size() < before;
  }

  void return_range(uint64_t offset, uint64_t bytes) {
    const auto join_next = [this](auto left) {
      const auto right = std::next(left);
      const uint64_t end = left->first + left->second;
      if (right == ranges.end() || right->first != end || end % options.segment_bytes == 0) return;
      left->second += right->second;
      ranges.erase(right);
    };
    const auto range = ranges.emplace(offset, bytes).first;
    join_next(range);
    if (range != ranges.begin()) join_next(std::prev(range));
  }

  // Queues the block behind its first unfinished use; without one it is free.
  void settle(Node* node) {
    for (const Use& use : node->uses) {
      if (use.progress->finished(use.stream, use.sequence)) continue;
      auto queue = std::find_if(queues.begin(), queues.end(), [&](const Queue& candidate) {
        return candidate.progress == use.progress && candidate.stream == use.stream;
      });
      if (queue == queues.end()) queue = queues.insert(queue, Queue{.progress = use.progress, .stream = use.stream});
      queue->blocks.emplace(use.sequence, node);
      return;
    }
    --pending_blocks;
    stats.pending_bytes -= static_cast<int64_t>(node->bytes);
    put_back(node);
  }

  void reclaim() {
    if (pending_blocks == 0) return;
    for (size_t i = 0; i < queues.size(); ++i) {  // by index: settle() may add a queue
      auto& blocks = queues[i].blocks;
      while (!blocks.empty() && queues[i].progress->finished(queues[i].stream, blocks.top().first)) {
        Node* node = blocks.top().second;
        blocks.pop();
        settle(node);
      }
    }
  }

  Use oldest_use() const {
    const Queue* oldest = nullptr;
    for (const Queue& queue : queues)
      if (!queue.blocks.empty() &&
          (!oldest || queue.blocks.top().second->released < oldest->blocks.top().second->released))
        oldest = &queue;
    return {oldest->progress, oldest->stream, oldest->blocks.top().first};
  }

  OutOfMemory out_of_memory(uint64_t asked) {
    ++stats.out_of_memory;
    join_recent();
    const uint64_t free = options.capacity - stats.allocated_bytes.current - stats.pending_bytes;
    uint64_t largest = 0;
    for (const auto& pool : pools)
      if (!pool.empty()) largest = std::max(largest, pool.rbegin()->first.first);
    for (const auto& [offset, bytes] : ranges) largest = std::max(largest, bytes);

    std::string text = options.name + " is out of memory: asked for " + human(asked) + ", free " + human(free) +
                       ", largest free block " + human(largest) + " of " + human(options.capacity) + ".";
    if (stats.pending_bytes)
      text += " Another " + human(stats.pending_bytes) + " is freed but still used by queued work.";
    if (asked > options.segment_bytes)
      return OutOfMemory(text + " One tensor cannot be larger than one segment, " + human(options.segment_bytes) +
                         ": split it.");
    if (asked <= free) text += " The free memory is in pieces, none large enough.";
    return OutOfMemory(text +
                       " Free tensors that are no longer needed, or use smaller ones; cached memory was "
                       "already given back, torch.spyre.memory.empty_cache() cannot add to it.");
  }

  // Only reads, and never allocates: the fault handler uses it.
  Block* find(uint64_t offset) const {
    const auto beyond = chunks.upper_bound(offset);
    if (beyond == chunks.begin()) return nullptr;
    Block* block = std::prev(beyond)->second.first;
    while (block && block->offset + block->bytes <= offset) block = block->next;
    return block && block->allocated ? block : nullptr;
  }
};

Memory::Memory(MemoryOptions options) : options_(std::move(options)) {
  if (options_.segments < 1 || options_.segment_bytes < kGrain ||
      (options_.segments > 1 && options_.segment_bytes % kPage != 0))
    throw ConfigurationError(options_.name + ": segments must be multiples of 2 MiB, not " +
                             std::to_string(options_.segments) + " of " + human(options_.segment_bytes) + ".");
  options_.capacity = std::min(options_.capacity, options_.segments * options_.segment_bytes) / kGrain * kGrain;
  state_ = std::make_unique<State>(options_);
  const uint64_t length = round_up(options_.capacity, kPage);
  card_base_ = state_->base =
      state_->card.reserve(length, options_.backed ? PROT_READ | PROT_WRITE : PROT_NONE, options_);
  // Once for the whole range rather than per chunk, which would split the kernel's mapping: only chunks are touched.
  if (options_.backed && options_.capacity >= kPage) madvise(card_base_, length, MADV_HUGEPAGE);
  if (options_.faulting) {
    fault_base_ = state_->fault.reserve(2 * length, PROT_NONE, options_);
    watch_faults(this);
  }
}

Memory::~Memory() {
  if (options_.faulting) unwatch_faults(this);
}

Block* Memory::allocate(uint64_t bytes) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (bytes > options_.segment_bytes) throw state.out_of_memory(bytes);
  const uint64_t rounded = round_up(std::max<uint64_t>(bytes, 1), kGrain);
  const auto wait = [&] {
    const Use use = state.oldest_use();
    lock.unlock();
    wait_for(use);
    lock.lock();
    state.reclaim();
  };

  state.reclaim();
  while (wait_for && static_cast<uint64_t>(state.stats.pending_bytes) > pending_limit) wait();
  Node* node = state.place(rounded);
  if (!node && state.release_free_chunks()) {
    ++state.stats.retries;
    node = state.place(rounded);
  }
  while (!node && wait_for && state.pending_blocks) {
    wait();
    state.release_free_chunks();
    node = state.place(rounded);
  }
  state.count();
  if (!node) throw state.out_of_memory(bytes);
  lock.unlock();
  state.poison(node);
  return node;
}

void Memory::release(Block* block) noexcept {
  if (!block) return;
  std::lock_guard lock(state_->mutex);
  assert(block->allocated);
  block->allocated = false;
  block->describe = nullptr;
  block->owner = nullptr;
  for (Use& use : block->uses)
    if (use.sequence == kAtRelease) use.sequence = use.progress->issued[use.stream].load(std::memory_order_acquire);
  add(state_->stats.allocation, -1);
  add(state_->stats.allocated_bytes, -static_cast<int64_t>(block->bytes));
  auto* node = static_cast<Node*>(block);
  node->released = ++state_->releases;
  ++state_->pending_blocks;
  state_->stats.pending_bytes += static_cast<int64_t>(block->bytes);
  state_->settle(node);
  state_->count();
}

namespace {

bool is_lost(const Block& block) {
  const Use& first = block.first_write;
  return block.torn || (first.progress && first.progress->dropped(first.stream, first.sequence));
}

}  // namespace

void Memory::note_use(Block* block, const Progress& progress, int stream, uint64_t sequence, Effect effect) {
  std::lock_guard lock(state_->mutex);
  // What replaces values that are there changes nothing if it is dropped: the block has those values then.
  const bool is_first = !block->first_write.progress || (effect == Effect::replaces && is_lost(*block));
  if (effect != Effect::reads && is_first) {
    block->first_write = {&progress, stream, sequence};
    block->torn = false;
  }
  for (Use& use : block->uses) {
    // A recorded stream keeps its own entry: its sequence is not known yet.
    if (use.progress != &progress || use.stream != stream || (use.sequence == kAtRelease) != (sequence == kAtRelease))
      continue;
    use.sequence = std::max(use.sequence, sequence);
    return;
  }
  block->uses.push_back({&progress, stream, sequence});
}

bool Memory::lost(const Block* block) const {
  std::lock_guard lock(state_->mutex);
  return is_lost(*block);
}

void Memory::record_stream(Block* block, const Progress& progress, int stream) {
  note_use(block, progress, stream, kAtRelease);
}

bool Memory::owns(const void* device_pointer) const noexcept {
  const auto address = reinterpret_cast<uintptr_t>(device_pointer);
  const auto begin = reinterpret_cast<uintptr_t>(options_.faulting ? fault_base_ : card_base_);
  return address >= begin && address - begin < options_.capacity * (options_.faulting ? 2 : 1);
}

uint64_t Memory::offset_of(const void* device_pointer) const noexcept {
  const auto* address = static_cast<const std::byte*>(device_pointer);
  return options_.faulting ? (address - fault_base_) / 2 : address - card_base_;
}

Block* Memory::find(const void* device_pointer) const {
  if (!owns(device_pointer)) return nullptr;
  std::lock_guard lock(state_->mutex);
  return state_->find(offset_of(device_pointer));
}

bool Memory::inspect(const void* device_pointer, void (*visit)(const Block*, void*), void* context) const noexcept {
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) return false;
  visit(owns(device_pointer) ? state_->find(offset_of(device_pointer)) : nullptr, context);
  return true;
}

void Memory::empty_cache() {
  std::lock_guard lock(state_->mutex);
  state_->reclaim();
  state_->release_free_chunks();
  state_->count();
}

void Memory::count(MemoryCounters* counters) {
  std::lock_guard lock(state_->mutex);
  state_->counters = counters;
  state_->count();
}

MemoryStats Memory::stats() const {
  std::lock_guard lock(state_->mutex);
  state_->reclaim();
  return state_->stats;
}

uint64_t Memory::free_bytes() const {
  const MemoryStats now = stats();
  return options_.capacity - now.allocated_bytes.current - now.pending_bytes;
}

std::vector<ChunkState> Memory::snapshot() const {
  std::lock_guard lock(state_->mutex);
  state_->reclaim();
  std::vector<ChunkState> all;
  for (const auto& [offset, chunk] : state_->chunks) {
    ChunkState& state = all.emplace_back(ChunkState{offset, chunk.bytes, chunk.small, {}});
    for (const Block* block = chunk.first; block; block = block->next) {
      using Use = ChunkState::Use;
      const Use use = block->allocated ? Use::allocated : block->uses.empty() ? Use::free : Use::pending;
      state.blocks.push_back({block->offset, block->bytes, use});
    }
  }
  return all;
}

void Memory::reset_peak() {
  std::lock_guard lock(state_->mutex);
  for (MemoryStats::Counter* counter : counters(state_->stats)) counter->peak = counter->current;
  state_->count();
}

void Memory::reset_accumulated() {
  std::lock_guard lock(state_->mutex);
  for (MemoryStats::Counter* counter : counters(state_->stats)) counter->allocated = counter->freed = 0;
  state_->stats.retries = state_->stats.out_of_memory = 0;
}

}  // namespace spyre
