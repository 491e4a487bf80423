// Affine loop nests over several memories.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spyre {

using Dims = std::vector<int64_t>;

Dims contiguous_strides(const Dims& size);
int64_t product(const Dims& size);

// A loop nest over several sides (two for a copy, one per operand for an operation); strides and offsets are in
// elements of each side.
constexpr size_t kSides = 4;
struct Loop {
  int64_t count;
  int64_t stride[kSides];
};
struct Nest {
  std::vector<Loop> loops;
  int64_t offset[kSides] = {};
};

// The same points with loops of count 1 dropped, sorted by decreasing stride of `side`, and joined where both sides
// continue with the same stride from one loop to the next.
Nest simplified(const Nest& nest, int side);

// Sorts the loops by decreasing stride of `side`: after lower(), the "transfer" that users see.
void sort_by_stride(Nest& nest, int side);

// Calls body(byte offset on `side`) for every element. Slow: for strict mode and tests.
template <typename Body>
void for_each_element(const Nest& nest, int side, int64_t element_bytes, const Body& body) {
  const auto& loops = nest.loops;
  if (std::any_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.count == 0; })) return;
  std::vector<int64_t> index(loops.size(), 0);
  int64_t at = nest.offset[side];
  for (bool more = true; more;) {
    body(at * element_bytes);
    more = false;
    for (size_t i = loops.size(); i-- > 0 && !more;) {
      at += loops[i].stride[side];
      more = ++index[i] < loops[i].count;
      if (more) continue;
      at -= loops[i].count * loops[i].stride[side];
      index[i] = 0;
    }
  }
}

}  // namespace spyre
