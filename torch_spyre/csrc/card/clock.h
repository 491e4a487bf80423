// The timing model: how long the real card would take. Exact and repeatable: picoseconds in integers.
#pragma once

#include <cstdint>

#include "hardware.h"

namespace spyre {

using Picoseconds = int64_t;

struct Work;

// Where the time of a step goes.
struct StepTime {
  double compute_ns = 0, memory_ns = 0, total_ns = 0;  // the first two overlap
  int64_t bytes_read = 0, bytes_written = 0;           // of device memory
};

class Clock {
 public:
  Clock(const Hardware& hardware, int cores);

  // Host memory to card or back.
  Picoseconds host_transfer(int64_t bytes) const;
  StepTime step(const Work& work) const;
  // A step on its own.
  Picoseconds kernel(const Work& work) const;
  // Before a step, unless it goes on with what lies in LX; before another turn of a loop.
  Picoseconds begin_step() const { return fixed_; }
  Picoseconds begin_turn() const { return turn_; }
  int cores() const { return cores_; }

 private:
  double memory(const Work& work, StepTime& time) const;
  double vector(const Work& work) const;
  void matrix(const Work& work, StepTime& time) const;

  const Hardware hardware_;
  const int cores_;
  const Picoseconds fixed_, turn_;
};

}  // namespace spyre
