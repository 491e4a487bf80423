#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_spyre {

// Adds `CompiledKernel`, the base class of kernels that generated code calls, and `launch_listeners`.
void bind_compiled_kernels(pybind11::module_& module);

}  // namespace torch_spyre
