// Carrying out affine loop nests over memory: copies with conversion, and fills.
#pragma once

#include <cstddef>

#include "engine.h"
#include "formats.h"
#include "layout.h"

namespace spyre {

// A side of a copy: where element 0 is, and how wide an element.
struct Side {
  std::byte* base;
  int64_t element_bytes;
};

// Side 0 is written, side 1 read. Returns false when `convert` met a value it cannot represent.
bool copy_nest(Engine& engine, const Nest& nest, Side to, Side from, Convert convert);

// Writes one element's bytes (1, 2 or 4) to every place of side 0.
void fill_nest(Engine& engine, const Nest& nest, Side to, const void* element);

// Calls body(byte offset on `side`) for every element. Slow: for strict mode and tests.
template <typename Body>
void for_each_element(const Nest& nest, int side, int64_t element_bytes, const Body& body) {
  std::vector<int64_t> index(nest.loops.size(), 0);
  for (const Loop& loop : nest.loops)
    if (loop.count == 0) return;
  int64_t at = nest.offset[side];
  while (true) {
    body(at * element_bytes);
    size_t i = nest.loops.size();
    while (i > 0) {
      const Loop& loop = nest.loops[--i];
      at += loop.stride[side];
      if (++index[i] < loop.count) break;
      at -= loop.count * loop.stride[side];
      index[i] = 0;
      if (i == 0) return;
    }
    if (nest.loops.empty()) return;
  }
}

}  // namespace spyre
