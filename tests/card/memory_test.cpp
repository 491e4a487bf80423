#include "card/memory/memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "card/memory/fault_handler.h"
#include "testing.h"

namespace {

using namespace spyre;

constexpr uint64_t KiB = 1 << 10, MiB = 1 << 20, GiB = 1 << 30;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // slow, and with a SIGSEGV handler of its own
#else
constexpr bool kSanitized = false;
#endif

MemoryOptions card(uint64_t capacity, int segments = 1) {
  MemoryOptions options;
  options.segments = segments;
  options.capacity = capacity;
  options.segment_bytes = capacity / segments;
  return options;
}

uint64_t resident_bytes(std::byte* data, uint64_t bytes) {
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  if (mincore(data, bytes, pages.data()) != 0) return ~0ull;
  return 4096 * std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

std::string allocation_error(Memory& memory, uint64_t bytes) {
  try {
    memory.allocate(bytes);
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST("memory: sizes round up to sticks and addresses are stick aligned") {
  Memory memory(card(64 * MiB));
  for (uint64_t bytes : {0, 1, 127, 128, 129, 5000, 100000, 3000001}) {
    const Block* block = memory.allocate(bytes);
    CHECK(block->bytes == std::max<uint64_t>(128, (bytes + 127) / 128 * 128));
    CHECK(block->allocated);
    CHECK(block->offset % 128 == 0);
    CHECK(reinterpret_cast<uintptr_t>(memory.card_address(block)) % 128 == 0);
    CHECK(reinterpret_cast<uintptr_t>(memory.device_pointer(block)) % 256 == 0);
    std::memset(memory.card_address(block), 1, block->bytes);
  }
}

TEST("memory: the smallest sufficient hole is taken, at the lowest offset") {
  Memory memory(card(64 * MiB));
  std::vector<Block*> holes, walls;
  for (uint64_t bytes : {300, 100, 200, 100, 400}) {
    holes.push_back(memory.allocate(bytes * KiB));
    walls.push_back(memory.allocate(128));
  }
  const uint64_t first = holes[1]->offset, second = holes[2]->offset;
  for (Block* hole : holes) memory.release(hole);
  CHECK(memory.allocate(150 * KiB)->offset == second);
  CHECK(memory.allocate(90 * KiB)->offset == first);
}

TEST("memory: a split block gives the rest to the next request") {
  Memory memory(card(64 * MiB));
  Block* whole = memory.allocate(512 * KiB);
  memory.allocate(1 * MiB - 128);
  const uint64_t offset = whole->offset;
  memory.release(whole);
  const Block* left = memory.allocate(128 * KiB);
  const Block* right = memory.allocate(384 * KiB);
  CHECK(left->offset == offset);
  CHECK(right->offset == offset + 128 * KiB);
  CHECK(memory.stats().reserved_bytes.current == 2 * static_cast<int64_t>(MiB));
}

TEST("memory: freed neighbours join in any order, small ones too") {
  for (uint64_t piece : {512 * KiB, 2 * KiB}) {
    std::vector<int> order{0, 1, 2, 3};
    do {
      Memory memory(card(2 * MiB));
      std::vector<Block*> pieces;
      for (uint64_t i = 0; i < 2 * MiB / piece; ++i) pieces.push_back(memory.allocate(piece));
      CHECK(contains(allocation_error(memory, 128), "out of memory"));
      for (int part : order)
        for (size_t i = part; i < pieces.size(); i += 4) memory.release(pieces[i]);
      CHECK(memory.allocate(2 * MiB)->offset == 0);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST("memory: recently freed small blocks serve a larger request before new addresses do") {
  Memory memory(card(64 * MiB));
  std::vector<Block*> blocks;
  for (int i = 0; i < 900; ++i) blocks.push_back(memory.allocate(2 * KiB));
  for (Block* block : blocks) memory.release(block);
  CHECK(memory.allocate(1 * MiB - 128)->offset == 0);
  CHECK(memory.stats().segment.current == 1);
}

TEST("memory: chunks take the smallest sufficient range of addresses") {
  Memory memory(card(64 * MiB));
  std::vector<Block*> blocks;
  for (uint64_t size : {20, 12, 14, 10, 8}) blocks.push_back(memory.allocate(size * MiB));
  const uint64_t small = blocks[2]->offset;
  memory.release(blocks[0]);
  memory.release(blocks[2]);
  memory.empty_cache();
  CHECK(memory.allocate(13 * MiB)->offset == small);
}

TEST("memory: one page of small blocks, one chunk of medium ones, exact pages for large ones") {
  Memory memory(card(256 * MiB));
  const auto reserved = [&] { return static_cast<uint64_t>(memory.stats().reserved_bytes.current); };
  memory.allocate(128);
  memory.allocate(900 * KiB);
  CHECK(reserved() == 2 * MiB);
  memory.allocate(1 * MiB);
  memory.allocate(9 * MiB);
  CHECK(reserved() == 22 * MiB);
  memory.allocate(11 * MiB);
  CHECK(reserved() == 34 * MiB);
}

TEST("memory: a block never crosses a segment") {
  Memory memory(card(64 * MiB, 4));
  for (int i = 0; i < 4; ++i) {
    const Block* block = memory.allocate(12 * MiB);
    CHECK(block->offset / (16 * MiB) == (block->offset + block->bytes - 1) / (16 * MiB));
  }
  CHECK(contains(allocation_error(memory, 12 * MiB), "out of memory"));
  const std::string error = allocation_error(memory, 16 * MiB + 1);
  CHECK(contains(error, "One tensor cannot be larger than one segment, 16.00 MiB (16777216 bytes)"));
  memory.allocate(4 * MiB);

  Memory empty(card(64 * MiB, 4));
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(empty.allocate(16 * MiB));
  for (Block* block : blocks) empty.release(block);
  empty.empty_cache();
  CHECK(empty.allocate(12 * MiB)->offset == 0);
  CHECK(empty.allocate(12 * MiB)->offset == 16 * MiB);  // the freed segments did not become one range
}

TEST("memory: out of memory says what was asked, what is left and in which pieces; the card stays usable") {
  Memory memory(card(64 * MiB));
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(16 * MiB));
  memory.release(blocks[0]);
  memory.release(blocks[2]);
  const std::string error = allocation_error(memory, 20 * MiB);
  CHECK(contains(error,
                 "card 0 is out of memory: asked for 20.00 MiB (20971520 bytes), free 32.00 MiB (33554432 bytes), "
                 "largest free block 16.00 MiB (16777216 bytes) of 64.00 MiB (67108864 bytes)."));
  CHECK(contains(error, "in pieces"));
  CHECK(contains(error, "Free tensors"));
  CHECK(memory.stats().out_of_memory == 1);
  CHECK(memory.free_bytes() == 32 * MiB);
  CHECK(memory.allocate(16 * MiB) != nullptr);
  memory.release(blocks[1]);
  CHECK(contains(allocation_error(memory, ~0ull), "18446744073709551615 bytes"));
}

TEST("memory: a tiny card gives every byte it has and no more") {
  for (const uint64_t capacity : std::vector<uint64_t>{128, 1000000, 3 * MiB + 1000}) {
    Memory memory(card(capacity));
    CHECK(memory.capacity() == capacity / 128 * 128);
    uint64_t blocks = 0;
    while (allocation_error(memory, 128) == "no error") ++blocks;
    CHECK(blocks == capacity / 128);
    CHECK(memory.free_bytes() == 0);
  }
  Memory memory(card(1000000));
  Block* block = memory.allocate(900000);
  std::memset(memory.card_address(block), 1, block->bytes);
  CHECK_THROWS(memory.allocate(200000), OutOfMemory, "largest free block");
  memory.release(block);
  CHECK(memory.allocate(999936) != nullptr);
}

TEST("memory: small requests use large chunks when no address is left, and the reverse") {
  Memory memory(card(20 * MiB));
  Block* large = memory.allocate(5 * MiB);
  CHECK(memory.stats().reserved_bytes.current == 20 * static_cast<int64_t>(MiB));
  Block* small = memory.allocate(128);
  CHECK(small->chunk == large->chunk);
  memory.release(small);
  memory.release(large);
  memory.empty_cache();
  for (int i = 0; i < 10; ++i) memory.release(memory.allocate(18 * MiB)), memory.allocate(128);
  memory.allocate(1900 * KiB);
  CHECK(memory.stats().out_of_memory == 0);
}

TEST("memory: cached chunks are given up when another size needs the addresses") {
  Memory memory(card(64 * MiB));
  memory.release(memory.allocate(40 * MiB));
  CHECK(memory.stats().retries == 0);
  memory.release(memory.allocate(64 * MiB));
  CHECK(memory.stats().retries == 1);
  memory.release(memory.allocate(40 * MiB));  // fits into what is cached now
  CHECK(memory.stats().retries == 1);
  CHECK(memory.stats().out_of_memory == 0);
}

TEST("memory: empty_cache returns pages to the system and keeps live chunks") {
  Memory memory(card(256 * MiB));
  Block* kept = memory.allocate(12 * MiB);
  Block* freed = memory.allocate(64 * MiB);
  std::byte* kept_data = memory.card_address(kept);
  std::byte* freed_data = memory.card_address(freed);
  std::memset(kept_data, 1, kept->bytes);
  std::memset(freed_data, 1, freed->bytes);
  memory.release(freed);
  CHECK(resident_bytes(freed_data, 64 * MiB) == 64 * MiB);
  memory.empty_cache();
  CHECK(resident_bytes(freed_data, 64 * MiB) == 0);
  CHECK(resident_bytes(kept_data, 12 * MiB) == 12 * MiB);
  CHECK(kept_data[5] == std::byte{1});
  CHECK(memory.stats().reserved_bytes.current == 12 * static_cast<int64_t>(MiB));
}

TEST("memory: a released block waits for its uses on every stream") {
  Memory memory(card(64 * MiB));
  Progress progress;
  Block* block = memory.allocate(2 * KiB);
  memory.note_use(block, progress, 3, 7);
  memory.note_use(block, progress, 3, 5);
  memory.note_use(block, progress, 40, 2);
  CHECK(block->uses.size() == 2);
  memory.release(block);
  CHECK(memory.stats().pending_bytes == 2048);
  CHECK(memory.stats().allocated_bytes.current == 0);
  CHECK(memory.free_bytes() == 64 * MiB - 2048);
  Block* other = memory.allocate(2 * KiB);
  CHECK(other->offset != 0);
  progress.completed[3] = 5;
  progress.completed[40] = 1;
  CHECK(memory.stats().pending_bytes == 2048);
  progress.completed[40] = 2;
  CHECK(memory.stats().pending_bytes == 2048);
  progress.completed[3] = 7;
  CHECK(memory.stats().pending_bytes == 0);
  block = memory.allocate(2 * KiB);
  CHECK(block->offset == 0);
  CHECK(block->uses.empty());
}

TEST("memory: a finished block does not wait for unfinished ones released before it") {
  Memory memory(card(64 * MiB));
  Progress progress;
  Block* late = memory.allocate(128);
  Block* early = memory.allocate(256);
  memory.note_use(late, progress, 0, 9);
  memory.note_use(early, progress, 0, 4);
  memory.release(late);
  memory.release(early);
  progress.completed[0] = 4;
  CHECK(memory.stats().pending_bytes == 128);
}

TEST("memory: finished uses cost no wait") {
  Memory memory(card(64 * MiB));
  Progress progress;
  progress.completed[1] = 5;
  Block* block = memory.allocate(128);
  memory.note_use(block, progress, 1, 5);
  memory.release(block);
  CHECK(memory.allocate(128) == block);
}

TEST("memory: record_stream holds the block for what the stream was issued before the release") {
  Memory memory(card(64 * MiB));
  Progress progress;
  progress.issued[2] = 3;
  Block* block = memory.allocate(128);
  memory.record_stream(block, progress, 2);
  memory.note_use(block, progress, 2, 1);
  progress.issued[2] = 8;
  memory.release(block);
  progress.issued[2] = 20;
  progress.completed[2] = 7;
  CHECK(memory.stats().pending_bytes == 128);
  progress.completed[2] = 8;
  CHECK(memory.stats().pending_bytes == 0);

  block = memory.allocate(128);
  memory.record_stream(block, progress, 2);
  memory.note_use(block, progress, 2, 21);  // noted, about to be issued
  memory.release(block);
  progress.completed[2] = 20;
  CHECK(memory.stats().pending_bytes == 128);
}

TEST("memory: the host waits when freed-but-used bytes pass the limit") {
  Memory memory(card(64 * MiB));
  Progress progress;
  std::vector<uint64_t> waited;
  memory.pending_limit = 10 * KiB;
  memory.wait_for = [&](const Use& use) {
    CHECK(use.progress == &progress && use.stream == 1);
    memory.free_bytes();  // would deadlock if the lock were held
    waited.push_back(use.sequence);
    progress.completed[1] = use.sequence;
  };
  for (uint64_t i = 1; i <= 20; ++i) {
    Block* block = memory.allocate(1 * KiB);
    CHECK(memory.stats().pending_bytes <= 10 * static_cast<int64_t>(KiB));
    memory.note_use(block, progress, 1, i);
    memory.release(block);
  }
  std::vector<uint64_t> oldest_first;
  for (uint64_t i = 1; i <= 9; ++i) oldest_first.push_back(i);
  CHECK(waited == oldest_first);
}

TEST("memory: of several streams, the one with the oldest release is waited for") {
  Memory memory(card(64 * MiB));
  Progress progress;
  std::vector<int> streams;
  memory.pending_limit = 0;
  memory.wait_for = [&](const Use& use) {
    streams.push_back(use.stream);
    progress.completed[use.stream] = use.sequence;
  };
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(128));
  for (int i = 0; i < 4; ++i) memory.note_use(blocks[i], progress, i % 2 ? 7 : 9, 10 + i);
  for (Block* block : blocks) memory.release(block);
  memory.allocate(128);
  CHECK((streams == std::vector<int>{9, 7, 9, 7}));
}

TEST("memory: when only pending memory is left, allocate waits for it, and without a way to wait it throws") {
  Memory memory(card(64 * MiB));
  Progress progress;
  for (uint64_t i = 1; i <= 4; ++i) {
    Block* block = memory.allocate(16 * MiB);
    memory.note_use(block, progress, 0, i);
    memory.release(block);
  }
  CHECK(contains(allocation_error(memory, 32 * MiB), "Another 64.00 MiB (67108864 bytes) is freed but still used"));
  memory.wait_for = [](const Use&) { throw Interrupted("stopped"); };
  CHECK_THROWS(memory.allocate(32 * MiB), Interrupted, "stopped");
  int waits = 0;
  memory.wait_for = [&](const Use& use) {
    ++waits;
    progress.completed[0] = use.sequence;
  };
  CHECK(memory.allocate(32 * MiB)->bytes == 32 * MiB);
  CHECK(waits == 2);
}

TEST("memory: release forgets what lived in the block") {
  Memory memory(card(64 * MiB));
  Block* block = memory.allocate(128);
  block->describe = [](const void*, char*, size_t) {};
  block->owner = &memory;
  memory.release(block);
  CHECK(memory.allocate(128) == block);
  CHECK(block->describe == nullptr && block->owner == nullptr);
}

TEST("memory: statistics follow allocations") {
  Memory memory(card(64 * MiB));
  Block* a = memory.allocate(1000);
  memory.allocate(512 * KiB);
  memory.release(a);
  MemoryStats stats = memory.stats();
  CHECK(stats.allocation.current == 1 && stats.allocation.peak == 2);
  CHECK(stats.allocation.allocated == 2 && stats.allocation.freed == 1);
  CHECK(stats.allocated_bytes.current == 524288 && stats.allocated_bytes.peak == 524288 + 1024);
  CHECK(stats.allocated_bytes.freed == 1024);
  CHECK(stats.segment.current == 1 && stats.reserved_bytes.current == 2097152);
  CHECK(stats.inactive_split_bytes.current == 2097152 - 524288);
  memory.reset_peak();
  memory.reset_accumulated();
  stats = memory.stats();
  CHECK(stats.allocated_bytes.peak == 524288);
  CHECK(stats.allocation.allocated == 0 && stats.allocation.freed == 0);
}

TEST("memory: unbacked memory commits nothing") {
  MemoryOptions options;  // a whole card
  options.backed = false;
  options.poison = true;
  Memory memory(options);
  const auto resident_pages = [] {
    long total = 0, resident = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r")) {
      if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = -1;
      std::fclose(file);
    }
    return resident;
  };
  const long before = resident_pages();
  for (int i = 0; i < 7; ++i) {
    const Block* block = memory.allocate(16 * GiB);
    CHECK(block->bytes == 16 * GiB);
    CHECK(memory.owns(static_cast<char*>(memory.device_pointer(block)) + 32 * GiB - 1));
  }
  CHECK(contains(allocation_error(memory, 128), "free 0 bytes, largest free block 0 bytes of 112.00 GiB"));
  CHECK(before > 0 && resident_pages() - before < 256);
}

TEST("memory: address space that the system refuses is a configuration error") {
  CHECK_THROWS(Memory{card(1ull << 60)}, ConfigurationError, "1.00 EiB (1152921504606846976 bytes) of address space");
  CHECK_THROWS(Memory{card(1ull << 60)}, ConfigurationError, "SPYRE_MEMORY_GB sets a smaller card");
  CHECK_THROWS(Memory{card(6 * MiB, 2)}, ConfigurationError, "multiples of 2 MiB");
}

TEST("memory: destruction unmaps everything") {
  const auto mapped = [](const void* address) {
    unsigned char page;
    return mincore(const_cast<void*>(address), 1, &page) == 0;
  };
  const void *data, *pointer;
  {
    Memory memory(card(64 * MiB));
    const Block* block = memory.allocate(128);
    data = memory.card_address(block);
    pointer = memory.device_pointer(block);
    CHECK(mapped(data) && mapped(pointer));
  }
  CHECK(!mapped(data) && !mapped(pointer));
}

TEST("memory: strict mode poisons fresh bytes, and freed ones once no stream uses them") {
  MemoryOptions options = card(64 * MiB);
  options.poison = true;
  Memory memory(options);
  Progress progress;
  const auto poisoned = [&](const std::byte* data, size_t bytes) {
    const auto* words = reinterpret_cast<const uint16_t*>(data);
    return std::all_of(words, words + bytes / 2, [](uint16_t word) { return word == 0x7ffe; });
  };
  for (uint64_t bytes : {2 * KiB, 12 * MiB}) {
    Block* block = memory.allocate(bytes);
    std::byte* data = memory.card_address(block);
    CHECK(poisoned(data, bytes));
    std::memset(data, 0, bytes);
    memory.note_use(block, progress, 0, bytes);
    memory.release(block);
    CHECK(data[0] == std::byte{0} && data[bytes - 1] == std::byte{0});
    progress.completed[0] = bytes;
    memory.stats();
    CHECK(poisoned(data, bytes));
    std::memset(data, 0, bytes);
    CHECK(memory.allocate(bytes)->bytes == bytes && poisoned(data, bytes));
  }
}

TEST("memory: find gives the live block of any device pointer into it") {
  Memory memory(card(64 * MiB));
  std::vector<Block*> blocks;
  for (const uint64_t bytes : std::vector<uint64_t>{128, 256, 100 * KiB, 3 * MiB, 20 * MiB})
    blocks.push_back(memory.allocate(bytes));
  for (Block* block : blocks) {
    const char* pointer = static_cast<char*>(memory.device_pointer(block));
    CHECK(memory.find(pointer) == block);
    CHECK(memory.find(pointer + 2 * block->bytes - 1) == block);
    CHECK(memory.find(pointer + 2 * block->bytes) != block);
  }
  const void* freed = memory.device_pointer(blocks[1]);
  memory.release(blocks[1]);
  CHECK(memory.find(freed) == nullptr && memory.owns(freed));
  CHECK(memory.find(&memory) == nullptr && !memory.owns(&memory));
  CHECK(memory.find(nullptr) == nullptr && !memory.owns(nullptr));
  CHECK(!memory.owns(memory.card_address(blocks[0])));

  MemoryOptions options = card(4 * MiB);
  options.faulting = false;
  Memory host(options);
  Block* block = host.allocate(300);
  char* pointer = static_cast<char*>(host.device_pointer(block));
  CHECK(pointer == reinterpret_cast<char*>(host.card_address(block)));
  std::memset(pointer, 1, 300);
  CHECK(host.find(pointer + 383) == block && host.find(pointer + 384) == nullptr);
  CHECK(host.owns(pointer + 4 * MiB - 1) && !host.owns(pointer + 4 * MiB));
}

TEST("memory: four threads never share a byte, reuse only finished blocks, and everything joins at the end") {
  constexpr int kThreads = 4, kRounds = (kSanitized ? 5000 : 50000);
  constexpr uint64_t kCapacity = 128 * MiB;
  Memory memory(card(kCapacity, 2));
  memory.pending_limit = 16 * MiB;
  Progress progress;
  memory.wait_for = [&](const Use& use) {
    while (!use.progress->finished(use.stream, use.sequence)) std::this_thread::yield();
  };
  std::atomic<bool> stop{false};
  std::thread device([&] {  // finishes what was issued, a little later
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      for (int stream = 0; stream < kThreads; ++stream) progress.completed[stream] = progress.issued[stream].load();
    }
  });

  struct Grain {
    std::atomic<uint32_t> owners{0};
    std::atomic<uint32_t> stream{0};
    std::atomic<uint64_t> sequence{0};
  };
  std::vector<Grain> grains(kCapacity / 128);
  std::atomic<int> shared{0}, early{0}, outs{0};
  const auto work = [&](int self) {
    std::mt19937 random(self);
    std::vector<Block*> mine;
    const auto drop = [&](size_t index) {
      Block* block = mine[index];
      mine[index] = mine.back();
      mine.pop_back();
      const uint64_t sequence = random() % 2 ? ++progress.issued[self] : 0;
      if (sequence) memory.note_use(block, progress, self, sequence);
      for (uint64_t i = block->offset / 128; i < (block->offset + block->bytes) / 128; ++i) {
        grains[i].stream = self;
        grains[i].sequence = sequence;
        --grains[i].owners;
      }
      memory.release(block);
    };
    for (int round = 0; round < kRounds; ++round) {
      const unsigned kind = random() % 1000;
      const uint64_t bytes = kind < 900   ? random() % (8 * KiB)
                             : kind < 998 ? random() % (200 * KiB)
                                          : random() % (8 * MiB);
      try {
        Block* block = memory.allocate(bytes);
        for (uint64_t i = block->offset / 128; i < (block->offset + block->bytes) / 128; ++i) {
          shared += grains[i].owners++ != 0;
          early += !progress.finished(static_cast<int>(grains[i].stream.load()), grains[i].sequence);
        }
        mine.push_back(block);
      } catch (const OutOfMemory&) {
        ++outs;
        while (!mine.empty()) drop(0);
      }
      if (mine.size() > 400 || (!mine.empty() && random() % 2)) drop(random() % mine.size());
      if (random() % 10000 == 0) memory.empty_cache();
    }
    while (!mine.empty()) drop(random() % mine.size());
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  stop = true;
  device.join();

  CHECK(shared == 0);
  CHECK(early == 0);
  CHECK(outs < kThreads * kRounds / 100);
  for (int stream = 0; stream < kThreads; ++stream) progress.completed[stream] = progress.issued[stream].load();
  memory.empty_cache();
  const MemoryStats stats = memory.stats();
  CHECK(stats.allocation.allocated + outs == kThreads * kRounds);
  CHECK(stats.allocation.current == 0 && stats.allocated_bytes.current == 0 && stats.pending_bytes == 0);
  CHECK(stats.reserved_bytes.current == 0 && stats.segment.current == 0 && stats.inactive_split_bytes.current == 0);
  CHECK(memory.allocate(64 * MiB) && memory.allocate(64 * MiB));
}

TEST("memory: the common allocate and release are fast") {
#ifdef __OPTIMIZE__
  if (kSanitized) return;
  Memory memory(card(1 * GiB));
  Progress progress;
  progress.completed[0] = 1;
  const auto best = [](auto&& body) {
    double least = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 10000; ++i) body();
      least = std::min(
          least, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 10000);
    }
    return least;
  };
  const double plain = best([&] { memory.release(memory.allocate(2 * KiB)); });
  const double used = best([&] {
    Block* block = memory.allocate(2 * KiB);
    memory.note_use(block, progress, 0, 1);
    memory.release(block);
  });
  const double large = best([&] { memory.release(memory.allocate(4 * MiB)); });
  if (std::getenv("SPYRE_TEST_VERBOSE"))
    std::printf("allocate + release: %.0f ns, with a use %.0f ns, 4 MiB %.0f ns\n", plain, used, large);
  CHECK(plain < 150);
  CHECK(used < 500);
  CHECK(large < 1500);
#endif
}

// Runs `body` in a child whose stderr is captured; gives what it wrote, and how it ended in *status.
std::string child(void (*body)(), int* status) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    alarm(5);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  close(ends[0]);
  waitpid(pid, status, 0);
  return text;
}

bool segmentation_fault(int status) {
  return kSanitized ? status != 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

[[gnu::noinline]] void touch(const void* pointer) { (void)*static_cast<const volatile char*>(pointer); }

void describe(const void* owner, char* text, size_t size) { std::strncpy(text, static_cast<const char*>(owner), size); }

void touch_tensor() {
  Memory memory(card(64 * MiB));
  memory.allocate(128);
  Block* block = memory.allocate(130);
  block->owner = "shape [2, 3], float16";
  block->describe = describe;
  touch(static_cast<char*>(memory.device_pointer(block)) + 500);
}

constexpr const char* kTensorMessage =
    ": tensor of shape [2, 3], float16, allocation of 256 bytes. Device memory is not "
    "readable from the host; use .cpu() to get a host copy.\n";

TEST("fault: touching device memory names the tensor, then ends as any segmentation fault") {
  int status = 0;
  const std::string text = child([] { install_fault_handler(), install_fault_handler(), touch_tensor(); }, &status);
  CHECK(segmentation_fault(status));
  CHECK(text.starts_with("torch_spyre: host code touched device memory of card 0 at 0x"));
  CHECK(contains(text, kTensorMessage));
}

TEST("fault: freed memory belongs to no live tensor") {
  int status = 0;
  const std::string text = child(
      [] {
        install_fault_handler();
        Memory other(card(2 * MiB)), memory(card(64 * MiB));
        Block* block = memory.allocate(128);
        memory.release(block);
        touch(memory.device_pointer(block));
      },
      &status);
  CHECK(segmentation_fault(status));
  CHECK(contains(text, "belongs to no live tensor (freed storage?). Device memory"));
}

TEST("fault: with the allocator busy the message comes without the tensor") {
  int status = 0;
  const std::string text = child(
      [] {
        install_fault_handler();
        Memory memory(card(64 * MiB));
        Block* block = memory.allocate(128);
        const auto touch_locked = [](const Block*, void* pointer) { touch(pointer); };
        memory.inspect(memory.device_pointer(block), touch_locked, memory.device_pointer(block));
      },
      &status);
  CHECK(segmentation_fault(status));
  CHECK(contains(text, "touched device memory of card 0"));
  CHECK(!contains(text, "allocation of") && !contains(text, "live tensor"));
}

TEST("fault: other faults and sent signals pass through in silence") {
  for (auto body : {+[] { touch(reinterpret_cast<void*>(16)); }, +[] { raise(SIGSEGV); },
                    +[] { kill(getpid(), SIGSEGV), pause(); }}) {
    static void (*fault)();
    fault = body;
    int status = 0;
    const std::string text = child(
        [] {
          install_fault_handler();
          Memory memory(card(64 * MiB));
          fault();
        },
        &status);
    CHECK(segmentation_fault(status));
    CHECK(!contains(text, "torch_spyre"));
  }
}

TEST("fault: a destroyed memory is forgotten") {
  int status = 0;
  const std::string text = child(
      [] {
        install_fault_handler();
        const void* pointer;
        {
          Memory memory(card(64 * MiB));
          pointer = memory.device_pointer(memory.allocate(128));
        }
        touch(pointer);
      },
      &status);
  CHECK(segmentation_fault(status));
  CHECK(!contains(text, "torch_spyre"));
}

TEST("fault: the handler that was there before is called after the message") {
  int status = 0;
  std::string text = child(
      [] {
        signal(SIGSEGV, [](int) { _exit(41); });
        install_fault_handler();
        touch_tensor();
      },
      &status);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 41);
  CHECK(contains(text, kTensorMessage));

  text = child(
      [] {
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t* info, void*) { _exit(info->si_addr ? 42 : 1); };
        sigaction(SIGSEGV, &action, nullptr);
        install_fault_handler();
        touch_tensor();
      },
      &status);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  CHECK(contains(text, kTensorMessage));
}

// What Python's faulthandler does: put back what was there, report, raise again.
struct sigaction replaced;
void install_like_faulthandler() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    sigaction(SIGSEGV, &replaced, nullptr);
    if (write(STDERR_FILENO, "Fatal Python error\n", 19) == 19) raise(SIGSEGV);
  };
  action.sa_flags = SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &replaced);
}

TEST("fault: Python's faulthandler works before and after") {
  int status = 0;
  std::string text = child([] { install_like_faulthandler(), install_fault_handler(), touch_tensor(); }, &status);
  CHECK(segmentation_fault(status));
  CHECK(contains(text, kTensorMessage) && contains(text, "Fatal Python error"));
  text = child([] { install_fault_handler(), install_like_faulthandler(), touch_tensor(); }, &status);
  CHECK(segmentation_fault(status));
  CHECK(contains(text, kTensorMessage) && contains(text, "Fatal Python error"));
}

}  // namespace
