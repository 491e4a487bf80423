// Guards of compiled code on the device layout of its inputs.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_spyre {

// A Python function of one tensor that tells whether it has the layout that `tensor` has now. Dynamo calls such guards
// for every tensor at every call, so the function is a plain C function.
pybind11::object layout_guard(const at::Tensor& tensor);

}  // namespace torch_spyre
