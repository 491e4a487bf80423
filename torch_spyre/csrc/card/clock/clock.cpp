#include "card/clock/clock.h"

#include <algorithm>
#include <cmath>

#include "card/clock/work.h"

namespace spyre {

namespace {

// How many times `from` doubles up to `value`; 0 where it is larger.
double doublings(double value, double from) { return value > from ? std::log2(value / from) : 0; }

// Two overlapping times: the longer one, and somewhat more the closer the other is to it.
double overlapped(double a, double b, double exponent) {
  const double longer = std::max(a, b), shorter = std::min(a, b);
  return shorter <= 0 ? longer : longer * std::pow(1 + std::pow(shorter / longer, exponent), 1 / exponent);
}

}  // namespace

Picoseconds Clock::host_transfer(int64_t bytes) const {
  const double small = hardware_["host_small_bytes"], slow = hardware_["host_gb_per_s_large"];
  double rate = hardware_["host_gb_per_s_small"];
  if (static_cast<double>(bytes) > small) {
    const double way = std::log(static_cast<double>(bytes) / small) / std::log(hardware_["host_large_bytes"] / small);
    rate += (slow - rate) * std::min(1.0, way);
  }
  return std::llround(static_cast<double>(bytes) / rate * 1000);
}

// Device memory under vector and move steps. Reads and writes share the bus; turning it around, short runs, gaps and
// strided walks cost on top.
double Clock::memory(const Work& work, StepTime& time) const {
  const Hardware& h = hardware_;
  double read = 0, written = 0, extra = 0, largest = 0, fresh = 0;
  double run = 1LL << 30;
  bool broadcast = false, splat = false, strided = false;
  for (const Traffic& stream : work.traffic) {
    broadcast |= stream.broadcast;
    splat |= stream.splat;
    if (stream.in_lx || !stream.bytes) continue;
    const auto bytes = static_cast<double>(stream.bytes);
    (stream.written ? written : read) += bytes;
    largest = std::max(largest, bytes);
    if (stream.fresh) fresh = std::max(fresh, bytes);
    if (stream.lane_stride) {
      strided = true;
      extra += bytes * h["lane_stride_ns"] * doublings(static_cast<double>(stream.lane_stride), h["lane_stride_bytes"]);
    }
    if (stream.written && (stream.gaps || stream.permuted)) {
      strided = true;
      const double each = h["gap_ns"] * doublings(static_cast<double>(stream.blocks), h["gap_pieces"]) +
                          h["gap_size_ns"] * doublings(bytes, h["gap_bytes"]);
      extra += 2 * bytes * each * (stream.gaps ? 1 : h["permuted_share"]);
    }
  }
  time.bytes_read = static_cast<int64_t>(read);
  time.bytes_written = static_cast<int64_t>(written);
  for (const Traffic& stream : work.traffic)  // a small operand does not set the pace of the others
    if (!stream.in_lx && !stream.broadcast && 2 * static_cast<double>(stream.bytes) >= largest)
      run = std::min(run, static_cast<double>(stream.run));
  const double total = read + written, both = std::min(read, written);
  if (total == 0) return 0;
  const double size = doublings(total, h["dram_size_bytes"]);
  double ns = total / h["dram_gb_per_s"] + extra;
  if (work.unit == Work::Unit::move)
    ns += both * (h["move_turnaround_ns"] + (work.restickifies ? h["restickify_ns"] : 0));
  else if (broadcast)
    ns += total / 2 *
          std::min(h["dram_turnaround_ns"],
                   h["held_turnaround_ns"] + (splat ? h["splat_turnaround_ns"] : 0) + h["held_size_ns"] * size);
  else
    ns += both * h["dram_turnaround_ns"];
  if (work.folds_rows) ns += read * h["row_fold_ns"];
  if (2 * fresh >= largest) ns += total * h["read_after_write_ns"];
  if (work.unit == Work::Unit::vector) ns += total * h["run_size_ns"] * size * std::min(1.0, h["run_size_bytes"] / run);
  ns += total * h["short_run_ns"] / (1 + std::pow(run / h["short_run_bytes"], 4));
  if (work.cores < static_cast<int>(h["cores"])) ns *= h["few_cores"] * (strided ? h["few_cores_strided"] : 1);
  return ns;
}

// The vector unit of one core, by sticks.
double Clock::vector(const Work& work) const {
  const Hardware& h = hardware_;
  if (work.unit != Work::Unit::vector) return 0;
  bool broadcast = false, splat = false, from_memory = false;
  int streaming = 0;
  for (const Traffic& stream : work.traffic) {
    if (stream.written) continue;
    broadcast |= stream.broadcast;
    splat |= stream.splat;
    streaming += !stream.broadcast;
    from_memory |= !stream.in_lx && stream.bytes;
  }
  if (work.folds_lanes) return work.sticks * h[from_memory ? "lane_fold_request_ns" : "lane_fold_ns"];
  double ns = h["vector_stick_ns"] + (work.special ? h["special_function_ns"] : 0);
  ns += broadcast ? (splat ? h["splat_stick_ns"] : 0) : streaming * h["vector_operand_ns"];
  return work.sticks * ns;
}

// What several cores read is counted once for as many as one transfer reaches.
Clock::MemoryBytes Clock::through_memory(const Work& work) const {
  MemoryBytes total{0, 0};
  for (const Traffic& stream : work.traffic) {
    if (stream.in_lx) continue;
    const auto bytes = static_cast<double>(stream.bytes);
    if (stream.written)
      total.written += bytes;
    else
      total.read += bytes * std::max(1.0, stream.share / hardware_["multicast_cores"]);
  }
  return total;
}

// Loads overlap with the arithmetic, the result is written afterwards.
void Clock::matrix(const Work& work, StepTime& time) const {
  const Hardware& h = hardware_;
  const auto [read, written] = through_memory(work);
  double restickified = 0;
  // A B in sticks along the depth is restickified first, through device memory unless it is in LX.
  if (work.restickifies_b) {
    const Traffic& columns = work.traffic[2];
    const double through = columns.in_lx ? 0 : 2 / h["dram_gb_per_s"] + h["move_turnaround_ns"];
    restickified = static_cast<double>(columns.bytes) * (through + h["restickify_ns"]);
  }
  double rate = h["pt_mac_per_ns"];
  if (work.batch == Work::Batch::outside) rate = h["pt_batch_mac_per_ns"];
  if (work.batch == Work::Batch::next_to_sticks) rate = h["pt_inner_batch_mac_per_ns"];
  const double fill = std::pow(std::min(1.0, work.rows / h["pt_rows"]), h["pt_fill"]);
  time.bytes_read = static_cast<int64_t>(read);
  time.bytes_written = static_cast<int64_t>(written);
  time.compute_ns = time.matrix_ns = work.multiplications / (rate * fill);

  // Results that overflow the accumulators come block by block, wherever they go to, and operands are read again for
  // each block: from device memory, unless one of them is in LX, which blocks can be laid out along.
  const bool reads_again = !work.traffic[1].in_lx && !work.traffic[2].in_lx;
  const double spilled = reads_again ? std::min(1.0, doublings(work.area, h["pt_area"])) : 0;
  const double loaded = loads(work, read);
  time.memory_ns = loaded + written / h["dram_gb_per_s"] + restickified;
  time.total_ns = overlapped(time.compute_ns, loaded, h["pt_overlap"]) + written / h["dram_gb_per_s"] + restickified +
                  static_cast<double>(work.traffic[0].bytes) * h["pt_spill_ns"] * spilled *
                      std::sqrt(work.depth / h["pt_spill_depth"]);
}

// Where few rows use each block of weights, loads wait for one another.
double Clock::loads(const Work& work, double bytes) const {
  const Hardware& h = hardware_;
  const double few = std::max(0.0, 1 - std::log2(work.all_rows) / std::log2(h["pt_rows"]));
  return bytes / h["dram_gb_per_s"] / (1 - few * (1 - h["pt_single_row_load"]));
}

// Loads overlap with all that is done in between, the result is written afterwards.
void Clock::staged(const Work& work, StepTime& time) const {
  const Hardware& h = hardware_;
  const auto [read, written] = through_memory(work);
  for (const Work& stage : work.stages) {
    StepTime own;
    if (stage.unit == Work::Unit::matrix) matrix(stage, own);
    time.compute_ns += stage.unit == Work::Unit::matrix ? own.total_ns : vector(stage);
    time.matrix_ns += own.total_ns;
  }
  time.bytes_read = static_cast<int64_t>(read);
  time.bytes_written = static_cast<int64_t>(written);
  const double loaded = loads(work, read), stored = written / h["dram_gb_per_s"];
  time.memory_ns = loaded + stored;
  time.total_ns = overlapped(time.compute_ns, loaded, h["pt_overlap"]) + stored;
}

// Fetching from the LX of other cores, all cores at a time: a fixed time, one for each contiguous run that grows with
// the number of cores they come from, and one for the bytes.
double Clock::ring(const Work& work) const {
  const Hardware& h = hardware_;
  if (!work.fetched_bytes) return 0;
  const double each = h["ring_run_ns"] * doublings(work.fetched_from, h["ring_run_cores"]);
  return 1000 * h["ring_fixed_us"] + work.fetched_runs * each + work.fetched_bytes / h["ring_gb_per_s"];
}

StepTime Clock::step(const Work& work, Begin begin) const {
  StepTime time;
  if (begin != Begin::in_lx)
    time.begin_ns = 1000 * hardware_[begin == Begin::next_iteration ? "turn_fixed_us" : "step_fixed_us"];
  for (const Work& part : work.parts) {
    StepTime own;
    staged(part, own);
    time.compute_ns += own.compute_ns;
    time.matrix_ns += own.matrix_ns;
    time.memory_ns += own.memory_ns;
    time.total_ns += own.total_ns + hardware_["psum_ns_per_element_hop"] * (part.partial - 1) * part.area;
    time.bytes_read += own.bytes_read;
    time.bytes_written += own.bytes_written;
  }
  if (!work.parts.empty()) return time;
  if (!work.stages.empty()) {
    staged(work, time);
  } else if (work.unit == Work::Unit::matrix) {
    matrix(work, time);
  } else {
    time.memory_ns = memory(work, time);
    time.compute_ns = vector(work);
    time.total_ns = overlapped(time.compute_ns, time.memory_ns, hardware_["vector_overlap"]);
  }
  time.ring_ns = ring(work);
  time.bytes_ring = static_cast<int64_t>(work.fetched_bytes) * work.cores;
  time.total_ns += time.ring_ns;
  // Partial results go from core to core of a group, all groups at once.
  time.total_ns += hardware_["psum_ns_per_element_hop"] * (work.partial - 1) * work.area;
  return time;
}

const char* Clock::bound_by(const StepTime& time, bool on_matrix_unit) const {
  constexpr double kPatternShare = 0.25;  // of the time in device memory
  if (time.ring_ns > std::max({time.begin_ns, time.compute_ns, time.memory_ns})) return "ring";
  if (time.begin_ns >= std::max(time.compute_ns, time.memory_ns)) return "start";
  if (time.compute_ns >= time.memory_ns) return on_matrix_unit ? "matrix unit" : "vector unit";
  const double streaming = static_cast<double>(time.bytes_read + time.bytes_written) / hardware_["dram_gb_per_s"];
  return time.memory_ns - streaming > kPatternShare * time.memory_ns ? "memory pattern" : "memory";
}

Picoseconds Clock::kernel(const Work& work) const { return picoseconds(step(work, Begin::fresh)); }

Picoseconds picoseconds(const StepTime& time) { return std::llround((time.begin_ns + time.total_ns) * 1000); }

}  // namespace spyre
