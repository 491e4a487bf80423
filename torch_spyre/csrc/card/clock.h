// The timing model: how long the real card would take. Exact and repeatable: picoseconds in integers.
#pragma once

#include <cstdint>

#include "hardware.h"

namespace spyre {

using Picoseconds = int64_t;

class Clock {
 public:
  Clock(const Hardware& hardware, int cores);

  // Host memory to card or back.
  Picoseconds host_transfer(int64_t bytes) const;
  // One kernel that streams device memory through the cores.
  enum class Pattern { stream, restickify };
  Picoseconds kernel(int64_t bytes_read, int64_t bytes_written, int cores, Pattern pattern) const;
  // A matrix product: the longer of its arithmetic and its memory traffic.
  Picoseconds matmul(int64_t multiplications, int64_t bytes_read, int64_t bytes_written, int cores) const;
  // Device memory to the cores' scratchpads.
  Picoseconds load(int64_t bytes, int cores) const;
  // So many partial results of each group of cores, passed on so many times along the ring.
  Picoseconds partial_results(int64_t elements, int hops) const;

 private:
  double fraction(int cores) const;
  double dram_, restickify_, turnaround_, fixed_us_, mac_per_ns_, psum_ns_, host_small_, host_large_, small_bytes_,
      large_bytes_;
  double fractions_[5];
  int all_cores_;
};

}  // namespace spyre
