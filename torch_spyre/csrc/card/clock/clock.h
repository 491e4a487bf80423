// The timing model: how long the real card would take. Exact and repeatable: picoseconds in integers.
#pragma once

#include <cstdint>

#include "card/clock/hardware.h"

namespace spyre {

using Picoseconds = int64_t;

struct Work;

// Where the time of a step goes.
struct StepTime {
  double begin_ns = 0;                                 // before it does anything
  double compute_ns = 0, memory_ns = 0, total_ns = 0;  // the first two overlap
  double matrix_ns = 0;                                // of compute_ns, in the matrix unit
  double ring_ns = 0;                                  // fetching from the LX of other cores, after that
  int64_t bytes_read = 0, bytes_written = 0;           // of device memory
  int64_t bytes_ring = 0;                              // from other cores, to all of them
};

Picoseconds picoseconds(const StepTime& time);

class Clock {
 public:
  explicit Clock(const Hardware& hardware) : hardware_(hardware) {}

  // Host memory to card or back.
  Picoseconds host_transfer(int64_t bytes) const;
  // How a step follows the one before: on its own, with operands in LX, or as the first of another iteration of a tile
  // loop.
  enum class Begin { fresh, in_lx, next_iteration };
  StepTime step(const Work& work, Begin begin) const;
  // A step on its own.
  Picoseconds kernel(const Work& work) const;
  // What most of a step's time is for: "start", "matrix unit", "vector unit", "memory", "memory pattern" where not the
  // bytes but the way they are walked decides, or "ring".
  const char* bound_by(const StepTime& time, bool on_matrix_unit) const;
  // Of the matrix units of all cores.
  double peak_multiplications_per_ns() const { return hardware_["cores"] * hardware_["pt_peak_mac_per_ns"]; }

 private:
  struct MemoryBytes {
    double read, written;
  };
  MemoryBytes through_memory(const Work& work) const;
  double memory(const Work& work, StepTime& time) const;
  double vector(const Work& work) const;
  double ring(const Work& work) const;
  void matrix(const Work& work, StepTime& time) const;
  void staged(const Work& work, StepTime& time) const;
  double loads(const Work& work, double bytes) const;

  const Hardware hardware_;
};

}  // namespace spyre
