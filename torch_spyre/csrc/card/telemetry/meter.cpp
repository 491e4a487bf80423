#include "card/telemetry/meter.h"

#include <chrono>

namespace spyre {

namespace {

uint64_t now() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot).count());
}

}  // namespace

void Meter::submitted(int stream, uint64_t issued, int64_t time, int64_t duration, const Usage* usage) {
  counters_.streams[stream].issued.set(issued);
  counters_.streams[stream].time_ps.set(time);
  WorkCounters& work = counters_.work;
  work.busy_ps.add(duration);
  if (!usage) return;
  work.matrix_ps.add(usage->matrix_ps);
  work.vector_ps.add(usage->vector_ps);
  work.memory_ps.add(usage->memory_ps);
  work.ring_ps.add(usage->ring_ps);
  work.host_ps.add(usage->host_ps);
  work.kernels.add(usage->kernels);
  work.transfers.add(usage->transfers);
  work.bytes_read.add(usage->bytes_read);
  work.bytes_written.add(usage->bytes_written);
  work.bytes_from_host.add(usage->bytes_from_host);
  work.bytes_to_host.add(usage->bytes_to_host);
}

void Meter::begin() {
  if (under_way_++ == 0) counters_.work.working_ns.add(-now());
}

void Meter::end() {
  if (--under_way_ == 0) counters_.work.working_ns.add(now());
}

}  // namespace spyre
