#include "clock.h"

#include <algorithm>
#include <cmath>

namespace spyre {

Clock::Clock(const Hardware& h, int cores)
    : dram_(h["dram_gb_per_s"]),
      restickify_(h["restickify_gb_per_s"]),
      turnaround_(h["dram_turnaround_ns_per_byte"]),
      fixed_us_(h["kernel_fixed_us"]),
      mac_per_ns_(h["pt_mac_per_ns"]),
      psum_ns_(h["psum_ns_per_element_hop"]),
      host_small_(h["host_gb_per_s_small"]),
      host_large_(h["host_gb_per_s_large"]),
      small_bytes_(h["host_small_bytes"]),
      large_bytes_(h["host_large_bytes"]),
      fractions_{h["dram_fraction_1_core"], h["dram_fraction_2_cores"], h["dram_fraction_4_cores"],
                 h["dram_fraction_8_cores"], h["dram_fraction_16_cores"]},
      all_cores_(cores) {}

double Clock::fraction(int cores) const {
  if (cores >= 32) return 1.0;
  int step = 0;
  while (step < 4 && (2 << step) <= cores) ++step;
  return fractions_[step];
}

Picoseconds Clock::host_transfer(int64_t bytes) const {
  double rate = host_small_;
  if (bytes > small_bytes_) {
    const double way = std::log(bytes / small_bytes_) / std::log(large_bytes_ / small_bytes_);
    rate += (host_large_ - host_small_) * std::min(1.0, way);
  }
  return std::llround(bytes / rate * 1000);
}

Picoseconds Clock::kernel(int64_t read, int64_t written, int cores, Pattern pattern) const {
  const double rate = (pattern == Pattern::restickify ? restickify_ : dram_) * fraction(std::min(cores, all_cores_));
  const double ns = (read + written) / rate + std::min(read, written) * turnaround_;
  return std::llround(ns * 1000 + fixed_us_ * 1e6);
}

Picoseconds Clock::matmul(int64_t multiplications, int64_t read, int64_t written, int cores) const {
  const double arithmetic_ns = static_cast<double>(multiplications) / (mac_per_ns_ * std::min(cores, all_cores_));
  return std::max<Picoseconds>(std::llround(arithmetic_ns * 1000 + fixed_us_ * 1e6),
                               kernel(read, written, cores, Pattern::stream));
}

Picoseconds Clock::load(int64_t bytes, int cores) const {
  return std::llround(bytes / (dram_ * fraction(std::min(cores, all_cores_))) * 1000);
}

Picoseconds Clock::partial_results(int64_t elements, int hops) const {
  return std::llround(static_cast<double>(elements) * hops * psum_ns_ * 1000);
}

}  // namespace spyre
