#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/card.h"
#include "card/runtime/tensor_info.h"

namespace spyre {

// One launch of a plan.
struct Card::Job {
  const std::shared_ptr<const JobPlan> plan;
  std::vector<Held> arguments;  // the caller's, then the plan's own
  std::vector<std::string> buffers;
  Held lx;                  // the scratchpads of all cores, where a program uses them
  TensorInfos described{};  // strict mode: the caller's arguments
};

}  // namespace spyre
