// A message under way, as this side asks for it.
#pragma once

#include <string>

#include "distributed/group.h"

namespace torch_spyre::distributed {

// Before the elements of a message.
struct MessageHeader {
  int32_t tag, dtype;
  int64_t elements, bytes;
  spyre::Picoseconds clock;  // when it is there, by the sender's clock
};

inline std::string described(at::ScalarType dtype, int64_t elements) {
  return std::to_string(elements) + " elements of " + c10::toString(dtype);
}

// A message that Gloo has brought, once it is done.
struct GlooArrival {
  std::atomic<bool> done{false};
  int from = -1;
  at::Tensor message;
  std::exception_ptr error;
};

struct MessageItem {
  bool sends;
  int peer, tag;
  spyre::Card* card;
  Operand operand;
  spyre::Event ready, done;
  uint64_t interrupts;
  milliseconds timeout;
  std::chrono::steady_clock::time_point deadline;
  std::shared_ptr<Pending> pending;
  bool begun = false;
  int64_t sent = 0;  // elements

  const std::shared_ptr<GlooArrival> arrival = std::make_shared<GlooArrival>();

  int64_t width() const { return spyre::element_bytes(operand.layout->format); }
  // Elements whose values travel: none do where none are computed.
  int64_t values() const { return card->mode() == spyre::Mode::timing ? 0 : operand.elements(); }
  int64_t value_bytes() const { return values() * width(); }
};

}  // namespace torch_spyre::distributed
