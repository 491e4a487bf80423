// Streams without a card, and means to hold threads where a test wants them.
#pragma once

#include <unistd.h>

#include <atomic>
#include <vector>

#include "card/engine/engine.h"

namespace spyre::testing {

// The streams of one card, without the card. They must outlive the engine.
struct Streams {
  Progress progress;
  std::vector<Stream> all;
  explicit Streams(int count) : all(count) {
    for (int id = 0; id < count; ++id) {
      all[id].card = 0;
      all[id].id = id;
      all[id].high_priority = id > 32;
      all[id].progress = &progress;
    }
  }
  Stream& operator[](int id) { return all[id]; }
};

// Closed until someone opens it.
class Gate {
 public:
  void open() { open_.store(true), open_.notify_all(); }
  void pass() const { open_.wait(false); }
  bool is_open() const { return open_; }

 private:
  std::atomic<bool> open_{false};
};

// A test that hangs kills the process instead of stopping the whole run.
struct Deadline {
  explicit Deadline(unsigned seconds) { alarm(seconds); }
  ~Deadline() { alarm(0); }
};

inline const InterruptCheck never;

}  // namespace spyre::testing
