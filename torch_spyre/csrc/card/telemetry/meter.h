// Counts the work of one card. The engine calls it, under its lock.
#pragma once

#include <cstdint>

#include "card/telemetry/counters.h"

namespace spyre {

class Meter {
 public:
  explicit Meter(CardCounters& counters) : counters_(counters) {}

  // A task takes `duration`, and its stream has got to `time`, in modelled picoseconds.
  void submitted(int stream, uint64_t issued, int64_t time, int64_t duration, const Usage* usage);
  void completed(int stream, uint64_t completed) { counters_.streams[stream].completed.set(completed); }
  // Around the carrying out of a task. Tasks of several streams may overlap: the card works as long as one does.
  void begin();
  void end();

 private:
  CardCounters& counters_;
  int under_way_ = 0;
};

}  // namespace spyre
