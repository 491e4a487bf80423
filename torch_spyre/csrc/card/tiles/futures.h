// Partial results that cores produce for each other.
#pragma once

#include <map>
#include <mutex>

#include "card/tiles/core.h"

namespace spyre::tiles {

// By group, then by core.
struct Future {
  std::mutex mutex;
  std::map<std::vector<int64_t>, std::map<int64_t, Tile>> partials;
  int group_dimensions = 0;
  std::string where;
};

// Which groups a core belongs to: points of the set are the group, then the core's coordinates.
std::vector<std::vector<int64_t>> groups_of(const Core& core, const Instruction& at, int group_dimensions);

}  // namespace spyre::tiles
