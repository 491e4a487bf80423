// Copies, with conversion between formats, and fills, over affine loop nests.
#pragma once

#include <cstddef>

#include "card/engine/engine.h"
#include "card/memory/loop_nest.h"
#include "card/numeric/formats.h"

namespace spyre {

// One side of a copy: where element 0 is, and how wide an element.
struct ElementPointer {
  std::byte* base;
  int64_t element_bytes;
};

// Side 0 is written, side 1 read. Returns false when there is a value that `convert` cannot represent. `losses`,
// where given, looks at all that is read, which is bf16.
bool copy_nest(Engine& engine, const Nest& nest, ElementPointer to, ElementPointer from, Convert convert,
               Bf16Losses* losses = nullptr);

// Writes one element's bytes (1, 2, 4 or 8) to every point of side 0.
void fill_nest(Engine& engine, const Nest& nest, ElementPointer to, const void* element);

}  // namespace spyre
