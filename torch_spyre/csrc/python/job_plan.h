#pragma once

#include <pybind11/pytypes.h>

#include "runtime/device.h"

namespace torch_spyre {

// Builds and validates a plan from a dictionary: name, arguments (bytes each), allocate, buffers, steps.
std::shared_ptr<const spyre::JobPlan> prepare_kernel(const pybind11::dict& code);
// Microseconds that each of these steps takes on its own, by the clock; `fresh`: which of its operands was written just
// before, -1 if none.
std::vector<double> time_of_steps(const pybind11::list& steps, const std::vector<int>& fresh);
// Where the modelled time of each step of its programs goes.
pybind11::list step_times(const spyre::JobPlan& plan);
// Asynchronous, on the current stream of the tensors' card. `numbers`: those that the plan leaves to its launches.
void launch_jobplan(const std::shared_ptr<const spyre::JobPlan>& plan, c10::ArrayRef<const at::Tensor*> tensors,
                    const std::vector<double>& numbers = {});

}  // namespace torch_spyre
