// Tensors with a layout of the caller's choosing.
#pragma once

#include "runtime/device.h"

namespace torch_spyre {

// A tensor that a kernel is to write.
struct Output {
  spyre::Dims size, strides;
  at::ScalarType dtype;
  std::optional<spyre::Layout> layout;  // none: the default one, which has shorter ways
};
void drop_default_layout(Output& output);
at::Tensor empty_output(const Output& output, c10::DeviceIndex device);

at::Tensor empty_with_layout(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                             const spyre::Layout& layout, c10::DeviceIndex device);
// A tensor on the same memory as `base`, read through another layout.
at::Tensor alias_with_layout(const at::Tensor& base, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset,
                             at::ScalarType dtype, const spyre::Layout& layout);

}  // namespace torch_spyre
