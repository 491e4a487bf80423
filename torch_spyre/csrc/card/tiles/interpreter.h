// Runs tile programs: every core its own slots, all of them together where they meet.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "card/clock/clock.h"
#include "card/tiles/core.h"

namespace spyre::tiles {

// What an argument is given: a number, or an address in elements.
struct Argument {
  bool real = false;
  int64_t integer = 0;
  double number = 0;
};

// Calls body(core) for 0 <= core < cores, on any threads; returns when all are done.
using EachCore = std::function<void(int64_t cores, const std::function<void(int64_t)>& body)>;

struct Outcome {
  std::vector<Core> cores;  // what they did, for the clock
};

// Raises InvalidProgram, with the position of the instruction, where a program leads outside of its memory or does not
// end. Of several cores that fail the first one's error is raised.
Outcome run(Launch& launch, const std::vector<Argument>& arguments, const EachCore& each_core);

}  // namespace spyre::tiles
