// Sparse and nested tensors on the card: their parts lie on it, and the host computes with them.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_spyre {

inline bool is_strided(const at::Tensor& tensor) { return !tensor.is_nested() && tensor.layout() == at::kStrided; }

// A sparse or nested tensor of any device with its parts on this one.
at::Tensor with_parts_on(const at::Tensor& tensor, c10::Device device);
// Gives one sparse tensor the contents of another.
void take_contents(const at::Tensor& to, const at::Tensor& from);

// The elements of a nested tensor's storage, up to the last that it shows.
at::Tensor nested_buffer(const at::Tensor& nested);
at::Tensor make_nested(const at::Tensor& buffer, const at::Tensor& like);

}  // namespace torch_spyre
