// Making, viewing and resizing tensors.
#include "aten/factories.h"

#include <ATen/EmptyTensor.h>
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

#include "runtime/storage.h"

namespace torch_spyre {

namespace {

using OptionalInts = at::OptionalIntArrayRef;

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "Spyre backend only supports strided tensors, asked for ", *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "only host memory can be pinned, not memory of the card");
}

// The strides that a memory format asks for. The default device layout goes by dimensions, whatever their strides.
spyre::Dims strides_in(c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  switch (format.value_or(at::MemoryFormat::Contiguous)) {
    case at::MemoryFormat::ChannelsLast:
      TORCH_CHECK(size.size() == 4, "required rank 4 tensor to use channels_last format");
      return c10::get_channels_last_strides_2d(size);
    case at::MemoryFormat::ChannelsLast3d:
      TORCH_CHECK(size.size() == 5, "required rank 5 tensor to use channels_last_3d format");
      return c10::get_channels_last_strides_3d(size);
    default:
      return spyre::contiguous_strides(size.vec());
  }
}

bool orders_channels(std::optional<at::MemoryFormat> format) {
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

at::Tensor wrap(c10::intrusive_ptr<SpyreStorageImpl> storage, at::ScalarType dtype) {
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

// Sizes that can be counted in bytes, also after padding the last dimension to whole sticks.
void check_sizes(c10::IntArrayRef size) {
  int64_t bytes = spyre::kStickBytes;
  bool overflow = false;
  for (int64_t extent : size) {
    TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent, ": ", size);
    overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes);
  }
  TORCH_CHECK(!overflow, "Storage size calculation overflowed with sizes=", size);
}

void check_strides(c10::IntArrayRef size, c10::IntArrayRef strides) {
  TORCH_CHECK(size.size() == strides.size(), "sizes ", size, " and strides ", strides, " differ in rank");
  int64_t reach = spyre::kStickBytes;
  bool overflow = false;
  for (size_t i = 0; i < size.size(); ++i) {
    TORCH_CHECK(strides[i] >= 0, "strides must not be negative: ", strides);
    int64_t span = 0;
    overflow |= __builtin_mul_overflow(std::max<int64_t>(size[i] - 1, 0), strides[i], &span);
    overflow |= __builtin_mul_overflow(span, spyre::kStickBytes, &span);
    overflow |= __builtin_add_overflow(reach, span, &reach);
  }
  TORCH_CHECK(!overflow, "Storage size calculation overflowed with sizes=", size, " and strides=", strides);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  check_sizes(size);
  check_strides(size, strides);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  at::Tensor tensor = wrap(make_storage(size, strides, type, resolve(device)), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return tensor;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_sizes(size);
  if (orders_channels(memory_format))
    return empty_strided(size, strides_in(size, memory_format), dtype, layout, device, pin_memory);
  check_options(layout, pin_memory);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  at::Tensor tensor = wrap(make_contiguous_storage(size, type, resolve(device)), type);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  check_sizes(size);
  const spyre::Dims strides = strides_in(size, memory_format);
  // Without a format whatever strides there are: an in-place result goes back into a view.
  if (self.sizes() == size && (!orders_channels(memory_format) || self.strides() == c10::IntArrayRef(strides)))
    return self;
  SpyreStorageImpl& storage = storage_of(self);
  const int64_t each = parts(self.scalar_type());
  const int64_t held = storage.held().block ? storage.elements() / each : 0;
  const int64_t count = c10::multiply_integers(size), needed = count ? self.storage_offset() + count : 0;
  if (needed > held) {
    TORCH_CHECK(storage.resizable(), "this spyre tensor shares another's memory and cannot be made larger");
    if (self.storage_offset() == 0 && each == 1) {
      reshape_storage(storage, size, strides);
    } else {
      reshape_storage(storage, {each * needed}, {1});
    }
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return self;
}

// --- set_: a tensor over a given storage

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef strides) {
  TORCH_CHECK(source.device().type() == kSpyre, "a spyre tensor cannot use a storage on ", source.device());
  source = spyre_storage(source);
  auto& storage = *static_cast<SpyreStorageImpl*>(source.unsafeGetStorageImpl());
  const spyre::Dims own = spyre::contiguous_strides(size.vec());
  if (strides.size() != size.size()) strides = own;
  const StoredView view = as_stored(self.scalar_type(), size, strides, offset);
  if (storage.untyped && parts(self.scalar_type()) == 2) {
    const auto floats = static_cast<int64_t>(storage.nbytes() / c10::elementSize(view.dtype));
    give_dtype(storage, view.dtype, 0, {floats}, {1});
  } else if (storage.untyped) {
    give_dtype(storage, self.scalar_type(), offset, size, strides);
  } else {
    TORCH_CHECK(storage.dtype == view.dtype, "this storage holds ", dtype_name(storage.dtype),
                " in the card's number format; it cannot be used as ", dtype_name(self.scalar_type()),
                ". Convert the tensor with .to(dtype).");
  }
  at::native::checkInBoundsForStorage(size, strides, offset, self.dtype(), source);
  reach_zero_tail(storage, view);
  const bool with_padding = size.size() == 1 && size[0] > storage.elements() / parts(self.scalar_type()) &&
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

// The whole storage as host bytes: how PyTorch copies untyped storages. A typed storage is then seen as the bytes
// that its elements have on the host.
at::Tensor& set_bytes(at::Tensor& self, at::Storage source) {
  TORCH_CHECK(source.device().type() == kSpyre, "a spyre tensor cannot use a storage on ", source.device());
  source = spyre_storage(source);
  auto& storage = *static_cast<SpyreStorageImpl*>(source.unsafeGetStorageImpl());
  if (self.scalar_type() != at::kByte) {
    const bool stored = !storage.untyped && storage.dtype == as_stored(self.scalar_type(), {}, {}, 0).dtype;
    const int64_t count = stored ? storage.elements() / parts(self.scalar_type())
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

// --- views: host-side only, the storage keeps its layout

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  const int64_t begin = offset.value_or(self.storage_offset());
  if (!byte_window(self)) check_inside(storage_of(self), as_stored(self.scalar_type(), size, strides, begin));
  return at::native::as_strided_tensorimpl(self, size, strides, offset);
}

at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  if (self.scalar_type() == dtype) return self.alias();
  const auto as_pairs = [](at::ScalarType type) { return as_stored(type, {}, {}, 0).dtype == at::kFloat; };
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

at::Tensor empty_with_layout(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                             const spyre::Layout& layout, c10::DeviceIndex device) {
  check_sizes(size);
  check_strides(size, strides);
  at::Tensor tensor = wrap(make_storage(size, strides, dtype, device, &layout), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return tensor;
}

void drop_default_layout(Output& output) {
  if (!output.layout) return;
  const auto by_default = make_storage(output.size, output.strides, output.dtype, current_device());
  if (by_default->layout() == *output.layout) output.layout.reset();
}

at::Tensor empty_output(const Output& output, c10::DeviceIndex device) {
  if (output.layout) return empty_with_layout(output.size, output.strides, output.dtype, *output.layout, device);
  if (output.strides != spyre::contiguous_strides(output.size))
    return empty_strided(output.size, output.strides, output.dtype, {}, c10::Device(kSpyre, device), {});
  return empty(output.size, output.dtype, {}, c10::Device(kSpyre, device), {}, {});
}

at::Tensor alias_with_layout(const at::Tensor& base, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset,
                             at::ScalarType dtype, const spyre::Layout& layout) {
  check_sizes(size);
  check_strides(size, strides);
  TORCH_CHECK_VALUE(offset >= 0, "a tensor cannot begin at storage offset ", offset);
  at::Tensor tensor = wrap(alias_storage(base, size, strides, dtype, layout), dtype);
  check_inside(storage_of(tensor), as_stored(dtype, size, strides, offset));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
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
