#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_spyre {

// Adds `CompiledKernel`, the base class of kernels that generated code calls, and `launch_listeners`.
void bind_compiled_kernels(pybind11::module_& module);

// A guard of compiled code, called for every tensor at every call: whether another tensor lies as this one does.
pybind11::object lies_like(const at::Tensor& tensor);

}  // namespace torch_spyre
