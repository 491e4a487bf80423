#include "card/memory/loop_nest.h"

#include <functional>
#include <numeric>

namespace spyre {

int64_t product(const Dims& size) { return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>()); }

Dims contiguous_strides(const Dims& size) {
  Dims strides(size.size());
  uint64_t step = 1;  // of sizes that were not checked: too many elements wrap around
  for (size_t i = size.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(std::max<int64_t>(size[i], 1));
  }
  return strides;
}

Nest simplified(const Nest& nest, int side) {
  Nest result = nest;
  std::erase_if(result.loops, [](const Loop& loop) { return loop.count == 1; });
  sort_by_stride(result, side);
  auto& loops = result.loops;
  const auto joins = [](const Loop& outer, const Loop& inner) {
    return outer.stride[0] == inner.count * inner.stride[0] && outer.stride[1] == inner.count * inner.stride[1];
  };
  for (size_t i = loops.size(); i-- > 1;) {
    if (!joins(loops[i - 1], loops[i])) continue;
    loops[i].count *= loops[i - 1].count;
    loops[i - 1] = loops[i];
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return result;
}

void sort_by_stride(Nest& nest, int side) {
  std::stable_sort(nest.loops.begin(), nest.loops.end(),
                   [side](const Loop& a, const Loop& b) { return a.stride[side] > b.stride[side]; });
}

}  // namespace spyre
