#include "runtime/storage/storage_view.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/storage/upload.h"

namespace torch_spyre {

StoredView stored_view(at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset) {
  StoredView view{dtype, size.vec(), strides.vec(), offset};
  if (stored_per_element(dtype) == 1) return view;
  view.dtype = at::kFloat;
  view.offset = std::min(view.offset, int64_t{1} << 61) * 2;
  for (int64_t& stride : view.strides) stride *= 2;
  view.size.push_back(2);
  view.strides.push_back(1);
  return view;
}

void check_inside(const SpyreStorageImpl& storage, const StoredView& view) {
  const int64_t reach = host_elements(view.size, view.strides);
  TORCH_CHECK(reach == 0 || view.offset <= storage.elements() - reach, "sizes ", view.size, ", strides ", view.strides,
              ", offset ", view.offset, " reach past the end of a storage of ", storage.elements(), " elements");
}

spyre::DeviceView whole_view(SpyreStorageImpl& storage) {
  return {storage.held(), &storage.layout(), storage.type(), storage.size, storage.strides, 0};
}

spyre::DeviceView device_view(const at::Tensor& tensor) {
  SpyreStorageImpl& storage = storage_of(tensor);
  TORCH_CHECK(storage.alive() || tensor.numel() == 0,
              "this spyre tensor's storage was freed (resized to 0 bytes, or the storage it shares was)");
  TORCH_CHECK(!is_byte_view(tensor), "the bytes of a storage that holds ", dtype_name(storage.dtype),
              " exist only on the host: the card keeps another number format");
  StoredView view = stored_view(tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
  TORCH_CHECK(view.dtype == storage.dtype, "a tensor of ", dtype_name(tensor.scalar_type()),
              " cannot read a storage that holds ", dtype_name(storage.dtype), " in the card's number format");
  spyre::DeviceView result{storage.held(),       &storage.layout(),       storage.type(),
                           std::move(view.size), std::move(view.strides), view.offset + storage.base_offset};
  const int64_t sticks = (storage.layout().device_bytes() + spyre::kStickBytes - 1) / spyre::kStickBytes;
  result.whole = storage.base_offset == 0 && spyre::product(result.size) == storage.elements() &&
                 storage.held().block &&
                 sticks * spyre::kStickBytes == static_cast<int64_t>(storage.held().block->bytes);
  return result;
}

bool is_byte_view(const at::Tensor& tensor) {
  const SpyreStorageImpl& storage = storage_of(tensor);
  if (tensor.scalar_type() != at::kByte || storage.untyped) return false;
  // uint8 is wider on the card: only a byte view reaches past the elements.
  const int64_t reach = host_elements(tensor.sizes(), tensor.strides());
  return storage.dtype != at::kByte || (reach > 0 && tensor.storage_offset() + reach > storage.elements());
}

namespace {

// The elements of a storage on the card, and as host bytes.
struct Image {
  spyre::DeviceView device;
  spyre::HostView host;
};

Image image_of(SpyreStorageImpl& storage, const at::Tensor& bytes) {
  Image image{whole_view(storage), {bytes.data_ptr(), storage.type(), storage.size, storage.strides, {}}};
  if (storage.base_offset != 0 || storage.elements() < host_elements(storage.size, storage.strides)) {
    image.device.offset = storage.base_offset;
    image.device.size = image.host.size = {storage.elements()};
    image.device.strides = image.host.strides = {1};
  }
  return image;
}

}  // namespace

at::Tensor read_bytes(SpyreStorageImpl& storage) {
  const auto device = storage.device().index();
  at::Tensor bytes = at::zeros({static_cast<int64_t>(storage.nbytes())}, at::kByte);
  if (!storage.held().block) return bytes;
  const Image image = image_of(storage, bytes);
  run_blocking([&] { card(device).to_host(image.host, image.device, current_stream(device), spyre::Card::Wait::yes); });
  return bytes;
}

void write_bytes(SpyreStorageImpl& storage, const at::Tensor& bytes) {
  if (!storage.held().block) return;
  const auto device = storage.device().index();
  const Image image = image_of(storage, bytes);
  upload(device, image.device, image.host, current_stream(device), spyre::Card::Wait::yes);
}

}  // namespace torch_spyre
