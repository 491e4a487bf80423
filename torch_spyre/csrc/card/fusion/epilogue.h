// A pass right behind a product, which goes on with each part of the result while the host has it in its caches.
#pragma once

#include "card/fusion/fusion_group.h"
#include "card/program/program.h"

namespace spyre {

// For each task of the product, which rows and sticks of the pass are what it has written. Empty if the pass has to
// wait for all of the product: it reads more than that, or overwrites what the product reads.
std::vector<std::vector<RowBlock>> blocks_behind_tasks(const Program& program, size_t product, const Segment& next);

}  // namespace spyre
