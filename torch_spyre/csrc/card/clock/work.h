// What a step asks of the card, as the clock sees it: units, bytes, strides, cores. Never what the step is called.
#pragma once

#include <cstdint>
#include <vector>

namespace spyre {

// One operand, over all cores.
struct Traffic {
  bool written = false;
  bool in_lx = false;
  int64_t bytes = 0;        // whole sticks, each counted once: what several cores read goes to all of them at a time;
                            // in LX every core has its own
  int64_t run = 0;          // contiguous bytes that a core touches before its address jumps
  int64_t lane_stride = 0;  // read along the sticks, which are folded: from one stick to the next
  int64_t blocks = 1;       // written: how many, with gaps in between, or in another order than they are read
  bool gaps = false, permuted = false;
  bool broadcast = false;  // the same for all points along a dimension that the result has
  bool splat = false;      // the same for all lanes of the result's sticks
  bool fresh = false;      // the step before has written it to device memory
  int share = 1;           // cores that read the same part
};

struct Work {
  enum class Unit { vector, matrix, move } unit = Unit::vector;
  int cores = 1;
  std::vector<Traffic> traffic;  // written first
  double sticks = 0;             // that one core works on
  bool special = false;          // a special function
  bool folds_lanes = false, folds_rows = false;
  bool restickifies = false;
  double area = 0;  // results of one core where something is folded
  int partial = 1;  // cores with partial ones of the same results
  // From the LX of other cores, of one core: bytes, in how many contiguous runs, and from how many cores.
  double fetched_bytes = 0, fetched_runs = 0, fetched_from = 0;
  // Matrix unit, of one core.
  double multiplications = 0, rows = 0, depth = 0;
  double all_rows = 0;  // of all cores
  bool restickifies_b =
      false;  // the second operand is in sticks along the depth: the unit wants them along the columns
  enum class Batch { none, outside, next_to_sticks } batch = Batch::none;
  // What a core does one after the other between its loads and its stores, with tiles in LX.
  std::vector<Work> stages{};
  // What the card does one after the other, each with loads, stages and stores of its own.
  std::vector<Work> parts{};
};

// Data moved by all cores: so many bytes from one place of device memory to another, in long runs.
Work move_of(int64_t bytes_read, int64_t bytes_written, int cores, bool restickifies);

}  // namespace spyre
