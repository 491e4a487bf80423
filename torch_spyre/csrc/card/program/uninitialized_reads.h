// Reads of memory that a program has not written before: its scratchpads, and the allocations of its plan.
#pragma once

#include <vector>

#include "card/program/job_plan.h"
#include "card/program/program.h"

namespace spyre {

// Throws InvalidProgram where something is read from LX that no earlier step wrote there, or that the tiles of a step
// since have overwritten.
void check_scratchpad(const Program& program);

// Bytes of each core's LX that may be read before they are written: a layout may have holes, and a core no points.
Ranges undefined_in_lx(const Program& program);
// The same for each allocation of a plan.
std::vector<Ranges> undefined_in_allocations(const JobPlan& plan);

}  // namespace spyre
