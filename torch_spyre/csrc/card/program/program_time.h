// The modelled time of programs and plans.
#pragma once

#include <vector>

#include "card/clock/clock.h"
#include "card/program/job_plan.h"
#include "card/program/program.h"

namespace spyre {

std::vector<StepTime> step_times(const Program& program, const Clock& clock);
// How long the card and its parts are busy. Throws InvalidProgram where it is more than can be counted.
Usage usage_of(const Program& program, const Clock& clock);
// Of a plan whose programs have theirs.
Usage usage_of(const JobPlan& plan, const Clock& clock);
// Whether the time of a step follows from the numbers of a launch.
bool time_of_numbers(const Step& step);
// The same plan with the numbers of a launch: its time and usage.
Usage usage_with_numbers(const JobPlan& prepared, const JobPlan& launched, const Clock& clock);
// Of a copy over PCIe: between host and card, or from another card.
enum class Direction { from_host, to_host };
Usage usage_of_transfer(int64_t bytes, Direction direction, const Clock& clock);
// Of a step on its own.
Usage usage_of(const Work& work, const Clock& clock);
Picoseconds duration(const Program& program, const Clock& clock);
// Sets `fresh` and `last_written`.
void settle_neighbours(JobPlan& plan, const Clock& clock);

}  // namespace spyre
