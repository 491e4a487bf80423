#include "aten/sparse_and_nested.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unbind_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "aten/dispatch.h"
#include "runtime/device/device.h"

namespace torch_spyre {

namespace {

at::Tensor with_coo_components_on(const at::Tensor& tensor, c10::Device device) {
  const auto* impl = at::sparse::get_sparse_impl(tensor);
  return at::_sparse_coo_tensor_unsafe(impl->indices().to(device), impl->values().to(device), tensor.sizes(),
                                       tensor.options().device(device), impl->coalesced());
}

at::Tensor with_compressed_components_on(const at::Tensor& tensor, c10::Device device) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  return at::_sparse_compressed_tensor_unsafe(impl->compressed_indices().to(device), impl->plain_indices().to(device),
                                              impl->values().to(device), tensor.sizes(),
                                              tensor.options().device(device));
}

}  // namespace

at::Tensor nested_buffer(const at::Tensor& nested) {
  const auto* impl = at::native::get_nested_tensor_impl(nested);
  if (nested.device().type() != kSpyre) return impl->get_unsafe_storage_as_tensor();
  const at::Tensor &sizes = impl->get_nested_sizes(), &strides = impl->get_nested_strides();
  int64_t reach = 0;  // the storage's own size includes padding
  if (sizes.numel() != 0) {
    const at::Tensor last = ((sizes - 1) * strides).sum(1) + impl->get_storage_offsets() + 1;
    reach = last.masked_fill((sizes == 0).any(1), 0).max().item<int64_t>();
  }
  at::Tensor buffer = at::empty({0}, nested.options().layout(at::kStrided));
  return buffer.set_(nested.storage(), 0, {reach}, {1});
}

at::Tensor make_nested(const at::Tensor& buffer, const at::Tensor& like) {
  const auto* impl = at::native::get_nested_tensor_impl(like);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(buffer, impl->get_nested_sizes(),
                                                               impl->get_nested_strides(), impl->get_storage_offsets());
}

at::Tensor with_components_on(const at::Tensor& tensor, c10::Device device) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_nested() || tensor.is_sparse() || at::sparse_csr::is_sparse_compressed(tensor),
                              "the card has no tensors of the layout ", tensor.layout());
  if (tensor.is_nested()) return make_nested(nested_buffer(tensor).to(device), tensor);
  return tensor.is_sparse() ? with_coo_components_on(tensor, device) : with_compressed_components_on(tensor, device);
}

void replace_components(const at::Tensor& to, const at::Tensor& from) {
  const auto copied = [&](const at::Tensor& part, at::ScalarType dtype) {
    return part.to(to.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
  };
  TORCH_CHECK_NOT_IMPLEMENTED(!to.is_nested(), "a nested tensor of the card cannot be written into: make a new one");
  if (!to.is_sparse()) {
    const auto* contents = at::sparse_csr::get_sparse_csr_impl(from);
    at::sparse_csr::get_sparse_csr_impl(to)->set_member_tensors(
        copied(contents->compressed_indices(), at::kLong), copied(contents->plain_indices(), at::kLong),
        copied(contents->values(), to.scalar_type()), from.sizes());
    return;
  }
  const auto* contents = at::sparse::get_sparse_impl(from);
  auto* impl = at::sparse::get_sparse_impl(to);
  impl->raw_resize_(contents->sparse_dim(), contents->dense_dim(), from.sizes());
  impl->set_indices_and_values_unsafe(copied(contents->indices(), at::kLong),
                                      copied(contents->values(), to.scalar_type()));
  impl->set_coalesced(contents->coalesced());
}

namespace {

using Format = std::optional<at::MemoryFormat>;

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking, Format format) {
  at::Tensor host = with_components_on(self, at::kCPU);
  const c10::Device target = device.value_or(self.device());
  auto options = at::TensorOptions().dtype(dtype).layout(layout).pinned_memory(pin_memory);
  if (target.type() != kSpyre) return host.to(options.device(target), non_blocking, /*copy=*/false, format);
  host = host.to(options, non_blocking, /*copy=*/false, format);
  return is_strided(host) ? host.to(target) : with_components_on(host, target);
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.layout() == source.layout(), "copy_ from ", source.layout(), " to ", self.layout(),
                              " is not supported with tensors of the card; convert on the CPU");
  replace_components(self, source);
  return self;
}

at::Tensor nested_values(const at::Tensor& self) {
  TORCH_CHECK(self.is_contiguous(), "values() needs a contiguous nested tensor");
  return nested_buffer(self);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_op>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("_to_copy", to_copy);
  m.impl("copy_", copy);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("_to_copy", to_copy);
  m.impl("copy_", copy);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("alias", TORCH_FN(at::native::alias_nested));
  m.impl("detach", TORCH_FN(at::native::detach));
  m.impl("values", nested_values);
  m.impl("transpose.int", TORCH_FN(at::native::transpose_nested));
  m.impl("select.int", TORCH_FN(at::native::select_nested));
  m.impl("unsqueeze", TORCH_FN(at::native::unsqueeze_nested));
  m.impl("view", TORCH_FN(at::native::view_nested));
  m.impl("unbind.int", TORCH_FN(at::native::NestedTensor_unbind));
  m.impl("_to_copy", to_copy);
}

namespace {

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the card has no quantized tensors (", op.operator_name(),
                              "): keep integers and scales in tensors of their own, or stay on the CPU");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

namespace {

void register_host_ops(torch::Library& m, c10::DispatchKey host, c10::DispatchKey card) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op && op->hasSchema() && name.getNamespace() == "aten" && op->hasKernelForDispatchKey(host) &&
        !op->hasKernelForDispatchKey(card))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
  }
}

}  // namespace

void register_sparse_and_nested_ops() {
  static torch::Library sparse = MAKE_TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1);
  register_host_ops(sparse, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
  static torch::Library sparse_csr = MAKE_TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1);
  register_host_ops(sparse_csr, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrPrivateUse1);
  static torch::Library nested = MAKE_TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1);
  register_host_ops(nested, c10::DispatchKey::NestedTensorCPU, c10::DispatchKey::NestedTensorPrivateUse1);
}

}  // namespace torch_spyre
