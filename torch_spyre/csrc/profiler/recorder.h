// Records what is submitted to the cards while a profile runs. A launch only appends a record to a buffer of its
// thread; rows are made of the records when the profile stops.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <cstdint>
#include <tuple>
#include <vector>

#include "card/card.h"

namespace torch_spyre::profiler {

struct Record {
  spyre::Submission work;
  uint64_t op;                    // correlation of the host op that submitted it; 0: none
  int32_t thread;                 // as the system counts them
  c10::approx_time_t begin, end;  // of the call on the host

  auto lane_and_start() const { return std::tuple(work.card, work.stream, work.start()); }
};

// The records of one profile.
struct Records {
  std::vector<Record> all;
  int64_t dropped_rows = 0;  // of launches beyond the limit
};

inline std::atomic<bool> recording{false};
inline bool is_recording() { return recording.load(std::memory_order_relaxed); }

void start_recording();
Records stop_recording();

// Rows that one profile keeps at most: beyond it they are counted only.
int64_t row_limit();
void set_row_limit(int64_t rows);

// The host op under way on this thread, as PyTorch's profiler counts them. A user annotation counts where there is no
// op.
void push_op(uint64_t correlation);
void pop_op();
void push_annotation(uint64_t correlation);
void pop_annotation();

// While it lives, this thread is in a call that may submit work: the row of the launch on the host lasts as long.
class HostCall {
 public:
  HostCall() {
    if (is_recording()) [[unlikely]]
      begin();
  }
  ~HostCall() {
    if (begun_) [[unlikely]]
      end();
  }
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

 private:
  void begin();
  void end();
  bool begun_ = false;
};

}  // namespace torch_spyre::profiler
