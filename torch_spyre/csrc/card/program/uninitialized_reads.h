// What a program finds in memory that no one has given it: the scratchpads, and the plan's own allocations.
#pragma once

#include "card/program/program.h"

namespace spyre {

// Bytes of LX for two tiles of every operand in device memory; 0 where the step names no tile.
int64_t tile_bytes(const Step& step);

// Throws InvalidProgram where something is read from LX that no earlier step left there, or that the tiles of one since
// have overwritten.
void check_scratchpad(const Program& program);

// Bytes of each core's LX that may be read before they are written: a layout may have holes, and cores no points.
Ranges undefined_in_lx(const Program& program);
// The same for each allocation of a plan.
std::vector<Ranges> undefined_in_allocations(const JobPlan& plan);

}  // namespace spyre
