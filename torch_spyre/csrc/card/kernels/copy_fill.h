// Carrying out affine loop nests over memory: copies with conversion, and fills.
#pragma once

#include <algorithm>
#include <cstddef>

#include "card/engine/engine.h"
#include "card/memory/layout.h"
#include "card/numeric/formats.h"

namespace spyre {

// A side of a copy: where element 0 is, and how wide an element.
struct Side {
  std::byte* base;
  int64_t element_bytes;
};

// Side 0 is written, side 1 read. Returns false when `convert` met a value it cannot represent. `losses`, where given,
// looks at all that is read, which is bf16.
bool copy_nest(Engine& engine, const Nest& nest, Side to, Side from, Convert convert, Bf16Losses* losses = nullptr);

// Writes one element's bytes (1, 2, 4 or 8) to every place of side 0.
void fill_nest(Engine& engine, const Nest& nest, Side to, const void* element);

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
