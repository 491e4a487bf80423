// Sparse and nested tensors on the card: their component tensors are on the card, and the host computes with them.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_spyre {

inline bool is_strided(const at::Tensor& tensor) { return !tensor.is_nested() && tensor.layout() == at::kStrided; }

// A copy of a sparse or nested tensor with its components on this device.
at::Tensor with_components_on(const at::Tensor& tensor, c10::Device device);
// Gives one sparse tensor copies of the components of another.
void replace_components(const at::Tensor& to, const at::Tensor& from);

// The elements of a nested tensor's storage, up to the last that belongs to it.
at::Tensor nested_buffer(const at::Tensor& nested);
at::Tensor make_nested(const at::Tensor& buffer, const at::Tensor& like);

// Registers dispatch_op for ops that have a host kernel for sparse or nested tensors. PyTorch would decompose these ops
// here, into ops for strided tensors. Call it last: it leaves ops alone that have a kernel for the device.
void register_sparse_and_nested_ops();

}  // namespace torch_spyre
