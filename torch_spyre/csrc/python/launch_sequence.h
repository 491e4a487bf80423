#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_spyre {

// Adds `LaunchSequence`: the kernels of a graph and the collectives between them, as one call of generated code.
void bind_launch_sequences(pybind11::module_& module);

}  // namespace torch_spyre
