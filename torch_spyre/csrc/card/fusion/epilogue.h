// The epilogue of a matmul: a fused loop right behind it (a bias, an activation, a residual) that each task of the
// matmul goes on with, while what the task has written is in the host's caches.
#pragma once

#include "card/fusion/fusion_group.h"
#include "card/program/program.h"

namespace spyre {

// For each task of the matmul, which rows and sticks of the group are what it has written. Empty if the group has to
// wait for all of the matmul: it reads more than that, or overwrites what the matmul reads.
std::vector<std::vector<RowBlock>> blocks_after_tasks(const Program& program, size_t matmul, const FusionGroup& next);

}  // namespace spyre
