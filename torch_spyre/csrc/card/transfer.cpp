#include "transfer.h"

#include <algorithm>
#include <cstring>

namespace spyre {

namespace {

// Elements of one block in each direction when both sides are strided: two blocks of 8-byte elements fit L1.
constexpr int64_t kBlock = 32;
// A task for the pool should be worth a thread switch.
constexpr int64_t kTaskBytes = 256 << 10;


int64_t elements(const std::vector<Loop>& loops) {
  int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.count;
  return count;
}

// Walks the outer loops over [begin, end) of their flattened index, calling body(offset0, offset1).
template <typename Body>
void walk(const std::vector<Loop>& loops, int64_t begin, int64_t end, const int64_t start[2], const Body& body) {
  std::vector<int64_t> index(loops.size());
  int64_t at0 = start[0], at1 = start[1], rest = begin;
  for (size_t i = loops.size(); i-- > 0;) {
    index[i] = rest % loops[i].count;
    rest /= loops[i].count;
    at0 += index[i] * loops[i].stride[0];
    at1 += index[i] * loops[i].stride[1];
  }
  for (int64_t n = begin; n < end; ++n) {
    body(at0, at1);
    for (size_t i = loops.size(); i-- > 0;) {
      at0 += loops[i].stride[0];
      at1 += loops[i].stride[1];
      if (++index[i] < loops[i].count) break;
      index[i] = 0;
      at0 -= loops[i].count * loops[i].stride[0];
      at1 -= loops[i].count * loops[i].stride[1];
    }
  }
}

// Runs body(begin, end) over [0, count), in parallel where there are bytes enough for it.
template <typename Body>
void spread(Engine& engine, int64_t count, int64_t bytes_each, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(1, bytes_each));
  const int64_t tasks = engine.threads() == 1 ? 1 : (count + grain - 1) / grain;
  if (tasks <= 1) return body(int64_t{0}, count);
  engine.parallel_for(tasks, [&](int64_t task) { body(count * task / tasks, count * (task + 1) / tasks); });
}

template <typename Element>
void move_block(std::byte* to, int64_t to_a, int64_t to_b, const std::byte* from, int64_t from_a, int64_t from_b,
                int64_t a, int64_t b) {
  auto* out = reinterpret_cast<Element*>(to);
  auto* in = reinterpret_cast<const Element*>(from);
  for (int64_t i = 0; i < a; ++i)
    for (int64_t j = 0; j < b; ++j) out[i * to_a + j * to_b] = in[i * from_a + j * from_b];
}

using MoveBlock = decltype(&move_block<uint8_t>);
MoveBlock mover(int64_t element_bytes) {
  switch (element_bytes) {
    case 1: return move_block<uint8_t>;
    case 2: return move_block<uint16_t>;
    case 4: return move_block<uint32_t>;
    default: return move_block<uint64_t>;
  }
}

struct Copy {
  Side to, from;
  Convert convert;
  std::atomic<bool> good{true};

  void run(int64_t to_at, int64_t from_at, int64_t count) {
    if (!convert(to.base + to_at * to.element_bytes, from.base + from_at * from.element_bytes, count))
      good.store(false, std::memory_order_relaxed);
  }

  // Runs that both sides hold in order.
  void contiguous(Engine& engine, const std::vector<Loop>& outer, const int64_t start[2], int64_t run_length) {
    const int64_t bytes = run_length * std::max(to.element_bytes, from.element_bytes);
    if (outer.empty()) {
      spread(engine, (run_length + 1023) / 1024, 1024 * to.element_bytes, [&](int64_t begin, int64_t end) {
        run(start[0] + begin * 1024, start[1] + begin * 1024, std::min(run_length, end * 1024) - begin * 1024);
      });
      return;
    }
    spread(engine, elements(outer), bytes, [&](int64_t begin, int64_t end) {
      walk(outer, begin, end, start, [&](int64_t to_at, int64_t from_at) { run(to_at, from_at, run_length); });
    });
  }

  // Each side is in order along another loop (or along none): through blocks that fit the cache.
  void blocked(Engine& engine, const std::vector<Loop>& outer, const int64_t start[2], Loop a, Loop b) {
    const MoveBlock gather = mover(from.element_bytes), scatter = mover(to.element_bytes);
    const int64_t blocks_a = (a.count + kBlock - 1) / kBlock, blocks_b = (b.count + kBlock - 1) / kBlock;
    std::vector<Loop> loops = outer;
    loops.push_back({blocks_a, {a.stride[0] * kBlock, a.stride[1] * kBlock}});
    loops.push_back({blocks_b, {b.stride[0] * kBlock, b.stride[1] * kBlock}});
    spread(engine, elements(loops), kBlock * kBlock * to.element_bytes, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte gathered[kBlock * kBlock * 8], converted[kBlock * kBlock * 8];
      int64_t n = begin;
      walk(loops, begin, end, start, [&](int64_t to_at, int64_t from_at) {
        const int64_t block_b = n % blocks_b, block_a = n / blocks_b % blocks_a;
        ++n;
        const int64_t na = std::min(kBlock, a.count - block_a * kBlock), nb = std::min(kBlock, b.count - block_b * kBlock);
        // gathered[b][a]: runs of a, in which order the written side takes them
        gather(gathered, 1, na, from.base + from_at * from.element_bytes, a.stride[1], b.stride[1], na, nb);
        if (!convert(converted, gathered, na * nb)) good.store(false, std::memory_order_relaxed);
        scatter(to.base + to_at * to.element_bytes, a.stride[0], b.stride[0], converted, 1, na, na, nb);
      });
    });
  }
};

}  // namespace

bool copy_nest(Engine& engine, const Nest& given, Side to, Side from, Convert convert) {
  Nest nest = simplified(given, 0);
  auto& loops = nest.loops;
  for (const Loop& loop : given.loops)
    if (loop.count == 0) return true;
  Copy copy{to, from, convert};
  auto take = [&](auto&& wanted) {
    const auto found = std::find_if(loops.begin(), loops.end(), wanted);
    if (found == loops.end()) return Loop{1, {0, 0}};
    const Loop loop = *found;
    loops.erase(found);
    return loop;
  };
  const Loop both = take([](const Loop& loop) { return loop.stride[0] == 1 && loop.stride[1] == 1; });
  if (both.count > 1 || loops.empty()) {
    // Rows in blocks: the reading side is walked in its own order within a block, so each page is visited once.
    if (loops.size() >= 2) {
      Loop& inner = loops.back();
      Loop& outer = loops[loops.size() - 2];
      constexpr int64_t kRows = 64;
      if (outer.stride[1] < inner.stride[1] && inner.count > kRows && inner.count % kRows == 0) {
        const Loop rows{inner.count / kRows, {inner.stride[0] * kRows, inner.stride[1] * kRows}};
        inner.count = kRows;
        loops.insert(loops.end() - 2, rows);
      }
    }
    copy.contiguous(engine, loops, nest.offset, both.count);
  } else {
    const Loop a = take([](const Loop& loop) { return loop.stride[0] == 1; });
    Loop b = take([](const Loop& loop) { return loop.stride[1] == 1; });
    if (b.count == 1) {  // no loop reads in order: the longest will do
      const auto longest = std::max_element(loops.begin(), loops.end(),
                                            [](const Loop& x, const Loop& y) { return x.count < y.count; });
      if (longest != loops.end()) {
        b = *longest;
        loops.erase(longest);
      }
    }
    copy.blocked(engine, loops, nest.offset, a, b);
  }
  return copy.good;
}

void fill_nest(Engine& engine, const Nest& given, Side to, const void* element) {
  for (const Loop& loop : given.loops)
    if (loop.count == 0) return;
  Nest nest = given;
  for (Loop& loop : nest.loops) loop.stride[1] = loop.stride[0];  // one side only: joins as side 0 does
  nest = simplified(nest, 0);
  Loop inner{1, {1, 0}};
  if (!nest.loops.empty()) {
    inner = nest.loops.back();
    nest.loops.pop_back();
  }
  auto fill = [&](auto value) {
    using Element = decltype(value);
    std::memcpy(&value, element, sizeof value);
    auto* base = reinterpret_cast<Element*>(to.base);
    auto run = [&](int64_t at, int64_t count) {
      if (inner.stride[0] == 1) {
        std::fill_n(base + at, count, value);
      } else {
        for (int64_t i = 0; i < count; ++i) base[at + i * inner.stride[0]] = value;
      }
    };
    if (nest.loops.empty()) {
      spread(engine, (inner.count + 1023) / 1024, 1024 * sizeof value, [&](int64_t begin, int64_t end) {
        run(nest.offset[0] + begin * 1024 * inner.stride[0], std::min(inner.count, end * 1024) - begin * 1024);
      });
    } else {
      spread(engine, elements(nest.loops), inner.count * sizeof value, [&](int64_t begin, int64_t end) {
        walk(nest.loops, begin, end, nest.offset, [&](int64_t at, int64_t) { run(at, inner.count); });
      });
    }
  };
  switch (to.element_bytes) {
    case 1: return fill(uint8_t{});
    case 2: return fill(uint16_t{});
    default: return fill(uint32_t{});
  }
}

}  // namespace spyre
