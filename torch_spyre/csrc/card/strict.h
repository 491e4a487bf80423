// Strict mode: which bytes of a card's memory were ever written. Stricter than silicon, and slow.
#pragma once

#include <cstdint>

namespace spyre {

class Shadow {
 public:
  explicit Shadow(uint64_t bytes);
  ~Shadow();
  void forget(uint64_t begin, uint64_t bytes);  // a fresh block
  void wrote(uint64_t at, int64_t bytes);
  bool written(uint64_t at, int64_t bytes) const;

 private:
  uint64_t bytes_;
  uint8_t* marks_;  // one per byte of device memory, committed where touched
};

}  // namespace spyre
