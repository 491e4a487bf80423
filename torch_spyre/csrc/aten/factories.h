// New tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "card/card.h"

namespace torch_spyre {

// Raise unless a storage of these sizes and strides can be counted in bytes, padded to whole sticks.
void check_sizes(c10::IntArrayRef size);
void check_strides(c10::IntArrayRef size, c10::IntArrayRef strides);
// The strides of a memory format. The default device layout follows the dimensions, whatever their strides.
spyre::Dims strides_in(c10::IntArrayRef size, std::optional<at::MemoryFormat> format);
bool is_channels_last(std::optional<at::MemoryFormat> format);

at::Tensor empty_with_layout(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                             const spyre::Layout& layout, c10::DeviceIndex device);
// A tensor on the same memory as `base`, read through another layout.
at::Tensor alias_with_layout(const at::Tensor& base, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset,
                             at::ScalarType dtype, const spyre::Layout& layout);

// A tensor for a kernel to write.
struct Output {
  spyre::Dims size, strides;
  at::ScalarType dtype;
  std::optional<spyre::Layout> layout;  // none: the default layout, which is faster to allocate
};
// Removes the layout of an output where it is the default one.
void drop_default_layout(Output& output);
at::Tensor empty_output(const Output& output, c10::DeviceIndex device);

}  // namespace torch_spyre
