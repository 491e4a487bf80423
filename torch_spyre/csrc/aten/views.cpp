// Tensors over an existing storage: views, and set_. Views change host sizes and strides only; the storage keeps its
// layout.
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "runtime/device/device.h"
#include "runtime/storage/storage_resize.h"

namespace torch_spyre {

namespace {

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef strides) {
  TORCH_CHECK(source.device().type() == kSpyre, "a spyre tensor cannot use a storage on ", source.device());
  source = spyre_storage(source);
  auto& storage = *static_cast<SpyreStorageImpl*>(source.unsafeGetStorageImpl());
  const spyre::Dims own = spyre::contiguous_strides(size.vec());
  if (strides.size() != size.size()) strides = own;
  const StoredView view = stored_view(self.scalar_type(), size, strides, offset);
  if (storage.untyped && stored_per_element(self.scalar_type()) == 2) {
    const auto floats = static_cast<int64_t>(storage.nbytes() / c10::elementSize(view.dtype));
    assign_dtype(storage, view.dtype, 0, {floats}, {1});
  } else if (storage.untyped) {
    assign_dtype(storage, self.scalar_type(), offset, size, strides);
  } else {
    TORCH_CHECK(storage.dtype == view.dtype, "this storage holds ", dtype_name(storage.dtype),
                " in the card's number format; it cannot be used as ", dtype_name(self.scalar_type()),
                ". Convert the tensor with .to(dtype).");
  }
  at::native::checkInBoundsForStorage(size, strides, offset, self.dtype(), source);
  materialize_zero_tail(storage, view);
  const bool with_padding = size.size() == 1 && size[0] > storage.elements() / stored_per_element(self.scalar_type()) &&
                            static_cast<size_t>(size[0]) * self.element_size() == source.nbytes();
  TORCH_CHECK_NOT_IMPLEMENTED(!with_padding,
                              "memory of the card cannot be read with its padding; torch.jit.save, which "
                              "asks for that, takes modules on the CPU, and torch.jit.load(..., map_location='spyre') "
                              "brings them to the card");
  check_inside(storage, view);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return self;
}

// PyTorch copies untyped storages through a uint8 tensor over all of them. Over a typed storage that tensor is a byte
// view: it stands for the bytes that the elements have on the host.
at::Tensor& set_bytes(at::Tensor& self, at::Storage source) {
  TORCH_CHECK(source.device().type() == kSpyre, "a spyre tensor cannot use a storage on ", source.device());
  source = spyre_storage(source);
  auto& storage = *static_cast<SpyreStorageImpl*>(source.unsafeGetStorageImpl());
  if (self.scalar_type() != at::kByte) {
    const bool stored = !storage.untyped && storage.dtype == stored_view(self.scalar_type(), {}, {}, 0).dtype;
    const int64_t count = stored ? storage.elements() / stored_per_element(self.scalar_type())
                                 : static_cast<int64_t>(source.nbytes() / self.element_size());
    return set_storage(self, source, 0, {count}, {});
  }
  const auto bytes = static_cast<int64_t>(source.nbytes());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::Storage(make_contiguous_storage({0}, self.scalar_type(), self.device().index())));
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return self;
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  const int64_t begin = offset.value_or(self.storage_offset());
  if (!is_byte_view(self)) check_inside(storage_of(self), stored_view(self.scalar_type(), size, strides, begin));
  return at::native::as_strided_tensorimpl(self, size, strides, offset);
}

at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  if (self.scalar_type() == dtype) return self.alias();
  const auto as_pairs = [](at::ScalarType type) { return stored_view(type, {}, {}, 0).dtype == at::kFloat; };
  if (as_pairs(self.scalar_type()) && as_pairs(dtype)) return at::native::view_dtype(self, dtype);
  TORCH_CHECK(false, "view(dtype): ", dtype_name(self.scalar_type()), " and ", dtype_name(dtype),
              " are kept in the card's own number formats, so their bits cannot be reinterpreted on the card. "
              "Use .to(dtype) to convert values, or .cpu().view(dtype).to('spyre') to reinterpret host bits.");
}

at::Tensor view_as_complex(const at::Tensor& self) {
  if (self.scalar_type() != at::kFloat && at::isFloatingType(self.scalar_type()))
    host_type(at::toComplexType(self.scalar_type()));  // raises
  return at::native::view_as_complex(self);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_bytes);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("as_strided", as_strided);
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view.dtype", view_dtype);
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", view_as_complex);
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}

}  // namespace torch_spyre
