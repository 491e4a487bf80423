#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace torch_spyre {

// Adds `CompiledKernel`, the base class of kernels that generated code calls, and `launch_listeners`.
void bind_compiled_kernels(pybind11::module_& module);

// One more call of a kernel or a launch sequence by the host.
void count_start();

// What a kernel returns for these inputs. Throws python_error for what Python raises.
std::vector<at::Tensor> call_compiled_kernel(PyObject* kernel, c10::ArrayRef<const at::Tensor*> inputs);

}  // namespace torch_spyre
