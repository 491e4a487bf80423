// Modelled times of steps.
#pragma once

#include <pybind11/pytypes.h>

#include <vector>

#include "card/card.h"

namespace torch_spyre {

// The microseconds that each of these steps takes on its own. `fresh` has, for each step, the operand that was written
// just before it, or -1.
std::vector<double> time_of_steps(const pybind11::list& steps, const std::vector<int>& fresh);
// The modelled time of each step of a plan's programs, by what it is spent on.
pybind11::list step_times(const spyre::JobPlan& plan);

}  // namespace torch_spyre
