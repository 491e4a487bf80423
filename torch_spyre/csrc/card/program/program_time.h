// The modelled time of programs and plans.
#pragma once

#include <vector>

#include "card/clock/clock.h"
#include "card/program/job_plan.h"
#include "card/program/program.h"

namespace spyre {

std::vector<StepTime> step_times(const Program& program, const Clock& clock);
// Throws InvalidProgram where it is more than can be counted.
Picoseconds duration(const Program& program, const Clock& clock);
// Of a plan whose programs have their time.
Picoseconds duration(const JobPlan& plan, const Clock& clock);
// Sets `fresh` and `last_written`.
void settle_neighbours(JobPlan& plan, const Clock& clock);

}  // namespace spyre
