// Work as it is submitted to a card, for profilers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "card/clock/clock.h"
#include "card/engine/engine.h"
#include "card/error.h"
#include "card/program/job_plan.h"

namespace spyre {

// What a card moves: between it and the host, within its memory, from another card, or a value to all of a tensor.
struct Transfer {
  enum class Kind { to_card, to_host, on_card, from_peer, fill } kind;
  int64_t bytes_read, bytes_written;  // of device memory
};

// A collective. What is known when it has ended is written before its `end` is settled, if it does not fail.
struct Exchange {
  Event done;
  std::string name, group;
  Picoseconds begin = 0;   // of this card
  Picoseconds waited = 0;  // for the other cards
  int64_t bytes = 0;       // that one card has of it
  const char* algorithm = "";
};
constexpr int kFirstGroupLane = kStreams;  // of process groups, which are no streams of the card

struct Submission {
  int card, stream;
  std::shared_ptr<const ModelledEnd> end;  // on the stream's modelled clock; behind a collective it is settled later
  Picoseconds duration;
  std::shared_ptr<const JobPlan> plan;  // of a launch; otherwise it is a transfer
  Picoseconds waited = 0;               // part of a launch's duration: for what the launch before has written
  Transfer transfer{};
  Origin origin{};
  std::shared_ptr<const Exchange> exchange{};  // of a collective, whose duration is known when it has ended

  Picoseconds start() const { return end->time - duration; }  // once it is settled
};

// Called by the thread that submits. Null, as it is by default: nobody wants to know.
using SubmissionObserver = void (*)(Submission&&);
inline std::atomic<SubmissionObserver> submission_observer{nullptr};

}  // namespace spyre
