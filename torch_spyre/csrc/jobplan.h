#pragma once

#include <pybind11/pytypes.h>

#include "device.h"

namespace torch_spyre {

// Builds and validates a plan from a dictionary: name, arguments (bytes each), allocate, buffers, steps.
std::shared_ptr<const spyre::JobPlan> prepare_kernel(const pybind11::dict& code);
// Asynchronous, on the current stream of the tensors' card. `numbers`: those that the plan leaves to its launches.
void launch_jobplan(const std::shared_ptr<const spyre::JobPlan>& plan, const std::vector<at::Tensor>& tensors,
                    const std::vector<double>& numbers = {});

}  // namespace torch_spyre
