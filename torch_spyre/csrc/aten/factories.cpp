#include "aten/factories.h"

#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "runtime/device/device.h"
#include "runtime/storage/storage.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

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

bool is_channels_last(std::optional<at::MemoryFormat> format) {
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

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

namespace {

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "Spyre backend only supports strided tensors, asked for ", *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "only host memory can be pinned, not memory of the card");
}

at::Tensor wrap(c10::intrusive_ptr<SpyreStorageImpl> storage, at::ScalarType dtype) {
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::scalarTypeToTypeMeta(dtype));
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
  if (is_channels_last(memory_format))
    return empty_strided(size, strides_in(size, memory_format), dtype, layout, device, pin_memory);
  check_options(layout, pin_memory);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  at::Tensor tensor = wrap(make_contiguous_storage(size, type, resolve(device)), type);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
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
  check_inside(storage_of(tensor), stored_view(dtype, size, strides, offset));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
}

}  // namespace torch_spyre
