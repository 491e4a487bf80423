// Strict mode: which bytes of a card's memory were ever written. Stricter than silicon, and slow.
#pragma once

#include <cstdint>

#include "card/memory/loop_nest.h"
#include "card/memory/memory.h"

namespace spyre {

class Shadow {
 public:
  explicit Shadow(const Memory& memory);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // The shadow that was made for this memory, or null: a copy between cards needs the other card's.
  static Shadow* of(const Memory* memory);

  void forget(const Block& block);  // fresh memory
  void wrote(const Block& block, int64_t offset, int64_t bytes);
  void wrote(const Block& block, const Nest& nest, int side, int64_t element_bytes);
  // The first element of a nest, by its first byte in the block, that was not written as a whole; -1: all were.
  int64_t unwritten(const Block& block, const Nest& nest, int side, int64_t element_bytes) const;

 private:
  const Memory& memory_;
  uint64_t bytes_;
  uint8_t* marks_;  // one per byte of device memory, committed where touched
};

}  // namespace spyre
