#include "runtime/storage/storage_resize.h"

#include <algorithm>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/storage/allocator.h"
#include "runtime/storage/upload.h"

namespace torch_spyre {

void reshape_storage(SpyreStorageImpl& storage, c10::IntArrayRef size, c10::IntArrayRef strides) {
  const auto device = storage.device().index();
  auto fresh = make_storage(size, strides, storage.dtype, device);
  const int64_t kept = std::min(storage.elements(), fresh->elements());
  if (kept > 0 && storage.held().block) {
    spyre::DeviceView from = whole_view(storage), to = whole_view(*fresh);
    if (is_dense(storage.size, storage.strides)) {
      from.size = to.size = {kept};
      from.strides = to.strides = {1};
    } else {  // an explicit layout has no memory for gaps
      TORCH_CHECK(kept == storage.elements(), "a storage with gaps between its elements cannot be made smaller");
      to.size = from.size;
      to.strides = from.strides;
    }
    spyre::Card& on = card(device);
    run_blocking([&] { on.on_card(to, from, current_stream(device)); });
  }
  c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
  storage.adopt(fresh->nbytes(), std::move(data), std::move(*fresh));
}

void resize_storage_bytes(SpyreStorageImpl& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  const auto device = storage.device().index();
  if (bytes == 0) {  // the description stays, so that growing back gives the same layout
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.set_nbytes(0);
    storage.find_block();
    return;
  }
  if (storage.untyped) {
    auto fresh = make_untyped_storage(bytes, device);
    if (storage.held().block) {
      spyre::DeviceView from = whole_view(storage), to = whole_view(*fresh);
      from.size = to.size = {std::min(from.size[0], to.size[0])};
      run_blocking([&] { card(device).on_card(to, from, current_stream(device)); });
    }
    c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
    storage.adopt(bytes, std::move(data), std::move(*fresh));
    return;
  }
  const int64_t device_bytes = storage.layout().device_bytes();
  if (!storage.held().block && storage_bytes(device_bytes, storage.size, storage.strides, storage.dtype) == bytes) {
    storage.set_data_ptr_noswap(allocate(device, device_bytes));
    storage.set_nbytes(bytes);
    storage.find_block();
    return;
  }
  reshape_storage(storage, {static_cast<int64_t>(bytes / c10::elementSize(storage.dtype))}, {1});
}

void assign_dtype(SpyreStorageImpl& storage, at::ScalarType dtype, int64_t offset, c10::IntArrayRef size,
                  c10::IntArrayRef strides) {
  const auto device = storage.device().index();
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t elements = static_cast<int64_t>(storage.nbytes()) / item;
  const int64_t used = host_elements(size, strides);
  spyre::Card& on = card(device);
  run_blocking([&] { on.synchronize(current_stream(device)); });
  const spyre::Held bytes = storage.held();
  const std::byte* raw = bytes.block ? bytes.memory->card_address(bytes.block) : nullptr;
  // A storage that was saved from a card has the size of its device layout: after the tensor come zeros, which need no
  // memory on the card. Flat storages have memory for them all the same.
  const bool covers = offset == 0 && is_dense(size, strides) && used <= elements;
  bool zeros = false;
  if (covers && used < elements && size.size() > 1) {
    const int64_t device_bytes =
        spyre::default_layout(size.vec(), strides.vec(), spyre::format_of(host_type(dtype))).device_bytes();
    zeros = storage.nbytes() == storage_bytes(device_bytes, size, strides, dtype) &&
            (on.mode() == spyre::Mode::timing ||
             std::all_of(raw + used * item, raw + storage.nbytes(), [](std::byte b) { return b == std::byte{0}; }));
  }
  const bool shaped = covers && (used == elements || zeros);
  auto fresh = shaped ? make_storage(size, strides, dtype, device) : make_storage({elements}, {1}, dtype, device);
  if (bytes.block && elements > 0) {
    const spyre::HostView from{const_cast<std::byte*>(raw), host_type(dtype), fresh->size, fresh->strides, {}};
    upload(device, whole_view(*fresh), from, current_stream(device), spyre::Card::Wait::yes);
  }
  c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
  storage.adopt(std::max(fresh->nbytes(), storage.nbytes()), std::move(data), std::move(*fresh));
  storage.zero_tail = zeros;
}

void materialize_zero_tail(SpyreStorageImpl& storage, const StoredView& view) {
  const int64_t needed = view.offset + host_elements(view.size, view.strides), held = storage.elements();
  const auto elements = static_cast<int64_t>(storage.nbytes() / c10::elementSize(storage.dtype));
  if (!storage.zero_tail || needed <= held || needed > elements) return;
  reshape_storage(storage, {elements}, {1});
  const auto device = storage.device().index();
  spyre::DeviceView tail = whole_view(storage);
  tail.size = {elements - held};
  tail.offset = held;
  card(device).fill(tail, 0, current_stream(device));
}

}  // namespace torch_spyre
