// Finds elements that one core writes while another one reads or writes them.
#pragma once

#include <vector>

#include "card/tiles/core.h"

namespace spyre::tiles {

// Raises UndefinedBehavior at the later of two instructions, by the numbers of their cores, that touch an element
// between the same two meetings of the cores, where at least one of them writes it.
void check_races(const std::vector<Core>& cores);

}  // namespace spyre::tiles
