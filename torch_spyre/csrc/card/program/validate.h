// Refuses programs and plans that break a rule of the hardware or ask for too much, before they run.
#pragma once

#include <vector>

#include "card/program/job_plan.h"
#include "card/program/program.h"

namespace spyre {

// What the card has.
struct CardLimits {
  int cores;
  int64_t span_bytes;
  int64_t lx_bytes;
};

// Throws InvalidProgram naming program, step and field.
void validate(const Program& program, const CardLimits& limits);
// The same for all that does not depend on the sizes of arguments: enough for the clock.
void check_shapes(const Program& program, const CardLimits& limits);
// Throws InvalidProgram where a launch that gives one memory for several arguments makes a point of a step depend on
// another one; `memory[i]` is the first argument with the memory of argument i.
void check_same_memory(const Program& program, const CardLimits& limits, const std::vector<int>& memory);
// Throws InvalidProgram naming plan, step and field. The plan's programs are validated apart.
void validate(const JobPlan& plan);

// Throws InvalidProgram where a constant of a step is not what its operation takes.
void check_constants(const Program& program, size_t step);
// Whether an operation on this operand's kind of numbers can take its value.
bool value_fits(const Operand& operand);

}  // namespace spyre
