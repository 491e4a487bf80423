// Resizing of tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_spyre {

// Resizes an output as PyTorch does, with a warning unless the output was empty. Its contents are lost. Without
// `strides` it becomes contiguous.
void resize_output(const at::Tensor& output, c10::IntArrayRef size, c10::IntArrayRef strides = {});

}  // namespace torch_spyre
