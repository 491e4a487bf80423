// What a trace says about the steps of a plan: the same for all of its launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/card.h"

namespace torch_spyre::profiler {

struct StepFacts {
  enum class Kind { kernel, to_card, to_host } kind;
  std::string name;
  spyre::Picoseconds duration = 0;
  int64_t bytes = 0;                    // of transfers
  double ideal_ns = 0;                  // its multiply-adds at the full rate of all matrix units
  const std::string* source = nullptr;  // file:line, where it is known
  std::string args;                     // members of a JSON object
};

// In order. Steps that take no time are there too.
std::vector<StepFacts> facts_of(const spyre::JobPlan& plan, const spyre::Card& card);

// "file:line" of a step's source, which has the form of a line of a traceback; as it is where it has another form.
std::string place_of(const std::string& source);
std::string quoted(const std::string& text);  // as JSON has it
std::string decimal(double value);
// Nanoseconds as JSON has them, exact.
std::string nanoseconds(spyre::Picoseconds time);

}  // namespace torch_spyre::profiler
