#include "runtime/storage.h"

#include <ATen/ops/zeros.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <typeinfo>

#include "runtime/upload.h"

namespace torch_spyre {

namespace {

// Runs inside a signal handler: no allocation, no locks.
void describe(const void* owner, char* text, size_t room) {
  const auto& storage = *static_cast<const SpyreStorageImpl*>(owner);
  int used = std::snprintf(text, room, "shape [");
  for (size_t i = 0; i < storage.size.size() && used > 0 && static_cast<size_t>(used) < room; ++i)
    used += std::snprintf(text + used, room - used, "%s%lld", i ? ", " : "", static_cast<long long>(storage.size[i]));
  if (used > 0 && static_cast<size_t>(used) < room)
    std::snprintf(text + used, room - used, "], %s", storage.untyped ? "untyped bytes" : c10::toString(storage.dtype));
}

bool dense(c10::IntArrayRef size, c10::IntArrayRef strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t i = 0; i < size.size(); ++i)
    if (size[i] > 1) dims.emplace_back(strides[i], size[i]);
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, extent] : dims) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

int64_t host_elements(c10::IntArrayRef size, c10::IntArrayRef strides) {
  constexpr __int128 kMost = __int128{1} << 60;  // beyond all memory
  __int128 last = 0;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return 0;
    last = std::min(last + __int128{size[i] - 1} * strides[i], kMost);
  }
  return static_cast<int64_t>(last) + 1;
}

spyre::Layout byte_layout(int64_t bytes) { return spyre::default_layout({bytes}, {1}, spyre::DataFormat::SENINT8); }

}  // namespace

namespace {

// torch makes storages of no bytes from a pointer that names no device.
c10::DataPtr on_device(c10::DataPtr data) {
  if (data.device().type() == kSpyre) return data;
  return {nullptr, c10::Device(kSpyre, current_device())};
}

}  // namespace

SpyreStorageImpl::SpyreStorageImpl(size_t bytes, c10::DataPtr data, c10::Allocator* allocator, bool resizable)
    : c10::StorageImpl(use_byte_size_t(), static_cast<int64_t>(bytes), on_device(std::move(data)), allocator,
                       resizable) {}

SpyreStorageImpl::~SpyreStorageImpl() { delete layout_.load(); }

const spyre::Layout& SpyreStorageImpl::layout() const {
  const spyre::Layout* known = layout_.load(std::memory_order_acquire);
  if (known) return *known;
  auto* made = new spyre::Layout(spyre::default_layout(size, strides, spyre::format_of(host_type(dtype))));
  if (layout_.compare_exchange_strong(known, made)) return *made;
  delete made;  // another thread was first
  return *known;
}

bool SpyreStorageImpl::has_default_layout() const {
  const spyre::Layout* known = layout_.load(std::memory_order_acquire);
  return !known || *known == spyre::default_layout(size, strides, known->format);
}

int64_t SpyreStorageImpl::elements() const {
  const int64_t whole = host_elements(size, strides) - origin;
  // A window on another storage's memory reaches less than all of it.
  return untyped || resizable() ? whole : std::min(whole, static_cast<int64_t>(nbytes() / c10::elementSize(dtype)));
}

void SpyreStorageImpl::set_layout(spyre::Layout layout) {
  delete layout_.exchange(new spyre::Layout(std::move(layout)));
}

void SpyreStorageImpl::find_block() {
  bool own = false;
  held_ = block_of(data_ptr(), own);
  if (!held_.block) return;
  if (own) {
    held_.block->owner = this;
    held_.block->describe = describe;
  } else if (const auto* base = static_cast<const SpyreStorageImpl*>(held_.block->owner)) {
    untyped = base->untyped;  // a window shows what its base holds
  }
}

void SpyreStorageImpl::adopt(size_t bytes, c10::DataPtr data, SpyreStorageImpl&& from) {
  dtype = from.dtype;
  size = std::move(from.size);
  strides = std::move(from.strides);
  untyped = from.untyped;
  origin = from.origin;
  zero_tail = false;
  delete layout_.exchange(from.layout_.exchange(nullptr));
  set_data_ptr_noswap(std::move(data));
  set_nbytes(bytes);
  find_block();
}

namespace {

bool is_ours(const c10::StorageImpl& storage) { return typeid(storage) == typeid(SpyreStorageImpl); }

}  // namespace

c10::Storage spyre_storage(const c10::Storage& storage) {
  if (is_ours(*storage.unsafeGetStorageImpl())) return storage;
  auto* reference = new c10::Storage(storage);
  c10::DataPtr data(
      storage.data_ptr().get(), reference, [](void* ctx) { delete static_cast<c10::Storage*>(ctx); }, storage.device());
  auto window = c10::make_intrusive<SpyreStorageImpl>(storage.nbytes(), std::move(data), nullptr, false);
  window->find_block();
  if (!window->held().block) return c10::Storage(std::move(window));  // no bytes, no base
  const auto* base = static_cast<const SpyreStorageImpl*>(window->held().block->owner);
  TORCH_CHECK(base, "this spyre memory does not say which tensor it holds");
  window->base = base;
  window->dtype = base->dtype;
  window->size = base->size;
  window->strides = base->strides;
  window->set_layout(base->layout());
  window->origin = (static_cast<const char*>(window->data()) - static_cast<const char*>(base->data())) /
                   static_cast<int64_t>(c10::elementSize(base->dtype));
  return c10::Storage(std::move(window));
}

SpyreStorageImpl& storage_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kSpyre, "expected a spyre tensor, got one on ", tensor.device());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // A fake tensor says it is on the card; its storage says the truth.
  TORCH_CHECK(impl->unsafe_storage() && impl->unsafe_storage().device_type() == kSpyre,
              "expected a tensor with memory on the card, got a fake one");
  if (!is_ours(*impl->unsafe_storage().unsafeGetStorageImpl()))
    impl->set_storage_keep_dtype(spyre_storage(impl->unsafe_storage()));
  return *static_cast<SpyreStorageImpl*>(impl->unsafe_storage().unsafeGetStorageImpl());
}

StoredView as_stored(at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef strides, int64_t offset) {
  StoredView view{dtype, size.vec(), strides.vec(), offset};
  if (parts(dtype) == 1) return view;
  view.dtype = at::kFloat;
  view.offset = std::min(view.offset, int64_t{1} << 61) * 2;
  for (int64_t& stride : view.strides) stride *= 2;
  view.size.push_back(2);
  view.strides.push_back(1);
  return view;
}

size_t storage_bytes(int64_t device_bytes, c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype) {
  return std::max<int64_t>(device_bytes, host_elements(size, strides) * static_cast<int64_t>(c10::elementSize(dtype)));
}

namespace {

c10::intrusive_ptr<SpyreStorageImpl> new_storage(size_t bytes, int64_t device_bytes, c10::DeviceIndex device) {
  return c10::make_intrusive<SpyreStorageImpl>(bytes, allocate(device, device_bytes), device_allocator(), true);
}

}  // namespace

c10::intrusive_ptr<SpyreStorageImpl> make_contiguous_storage(c10::IntArrayRef size, at::ScalarType dtype,
                                                             c10::DeviceIndex device) {
  // Pairs would be the last dimension, and fill a stick each: they lie flat, in host order.
  if (parts(dtype) == 2) return make_contiguous_storage({2 * c10::multiply_integers(size)}, at::kFloat, device);
  const int64_t device_bytes =
      spyre::default_layout_bytes(size.data(), size.size(), spyre::format_of(host_type(dtype)));
  const int64_t host_bytes = c10::multiply_integers(size) * static_cast<int64_t>(c10::elementSize(dtype));
  auto storage = new_storage(std::max(device_bytes, host_bytes), device_bytes, device);
  storage->dtype = dtype;
  storage->size.assign(size.begin(), size.end());
  storage->strides.resize(size.size());
  int64_t step = 1;
  for (size_t i = size.size(); i-- > 0;) {
    storage->strides[i] = step;
    step *= std::max<int64_t>(size[i], 1);
  }
  storage->find_block();
  return storage;
}

c10::intrusive_ptr<SpyreStorageImpl> make_storage(c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype,
                                                  c10::DeviceIndex device, const spyre::Layout* layout) {
  if (parts(dtype) == 2 && !layout)
    return make_contiguous_storage({2 * host_elements(size, strides)}, at::kFloat, device);
  const auto format = spyre::format_of(host_type(dtype));
  spyre::Dims host_size = size.vec(), host_strides = strides.vec();
  spyre::Layout own;
  if (layout) {
    own = *layout;
    TORCH_CHECK(own.format == format, "layout does not match the tensor: ", dtype_name(dtype), " is ",
                spyre::name(format), " on the card, the layout says ", spyre::name(own.format));
    spyre::check_layout(own, host_size, host_strides);
  } else {
    // Gaps and overlaps belong to no dimension: such a storage is laid out flat, in host order.
    if (!dense(size, strides)) host_size = {host_elements(size, strides)}, host_strides = {1};
    own = spyre::default_layout(host_size, host_strides, format);
  }
  auto storage = new_storage(storage_bytes(own.device_bytes(), size, strides, dtype), own.device_bytes(), device);
  storage->dtype = dtype;
  storage->size = std::move(host_size);
  storage->strides = std::move(host_strides);
  storage->set_layout(std::move(own));
  storage->find_block();
  return storage;
}

c10::intrusive_ptr<SpyreStorageImpl> alias_storage(const at::Tensor& base, c10::IntArrayRef size,
                                                   c10::IntArrayRef strides, at::ScalarType dtype,
                                                   const spyre::Layout& layout) {
  SpyreStorageImpl& owner = storage_of(base);
  const auto format = spyre::format_of(host_type(dtype));
  TORCH_CHECK(layout.format == format, "layout does not match the tensor: ", dtype_name(dtype), " is ",
              spyre::name(format), " on the card, the layout says ", spyre::name(layout.format));
  spyre::check_layout(layout, size.vec(), strides.vec());
  TORCH_CHECK(!owner.held().block || layout.device_bytes() <= static_cast<int64_t>(owner.held().block->bytes),
              "the layout needs ", layout.device_bytes(), " bytes, the storage it should share has ",
              owner.held().block->bytes);
  auto* reference = new c10::Storage(base.storage());
  c10::DataPtr data(
      owner.data_ptr().get(), reference, [](void* ctx) { delete static_cast<c10::Storage*>(ctx); }, base.device());
  auto storage = c10::make_intrusive<SpyreStorageImpl>(storage_bytes(layout.device_bytes(), size, strides, dtype),
                                                       std::move(data), nullptr, false);
  storage->base = &owner;  // which the reference keeps
  storage->dtype = dtype;
  storage->size = size.vec();
  storage->strides = strides.vec();
  storage->set_layout(layout);
  storage->find_block();
  return storage;
}

spyre::DeviceView whole_view(SpyreStorageImpl& storage) {
  return {storage.held(), &storage.layout(), storage.type(), storage.size, storage.strides, 0};
}

spyre::DeviceView device_view(const at::Tensor& tensor) {
  SpyreStorageImpl& storage = storage_of(tensor);
  TORCH_CHECK(storage.alive() || tensor.numel() == 0,
              "this spyre tensor's storage was freed (resized to 0 bytes, or the storage it shares was)");
  TORCH_CHECK(!byte_window(tensor), "the bytes of a storage that holds ", dtype_name(storage.dtype),
              " exist only on the host: the card keeps another number format");
  StoredView view = as_stored(tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
  TORCH_CHECK(view.dtype == storage.dtype, "a tensor of ", dtype_name(tensor.scalar_type()),
              " cannot read a storage that holds ", dtype_name(storage.dtype), " in the card's number format");
  spyre::DeviceView result{storage.held(),       &storage.layout(),       storage.type(),
                           std::move(view.size), std::move(view.strides), view.offset + storage.origin};
  const int64_t sticks = (storage.layout().device_bytes() + spyre::kStickBytes - 1) / spyre::kStickBytes;
  result.whole = storage.origin == 0 && spyre::product(result.size) == storage.elements() && storage.held().block &&
                 sticks * spyre::kStickBytes == static_cast<int64_t>(storage.held().block->bytes);
  return result;
}

bool byte_window(const at::Tensor& tensor) {
  const SpyreStorageImpl& storage = storage_of(tensor);
  if (tensor.scalar_type() != at::kByte || storage.untyped) return false;
  // uint8 is wider on the card: only a byte window reaches past the elements.
  return storage.dtype != at::kByte ||
         tensor.storage_offset() + host_elements(tensor.sizes(), tensor.strides()) > storage.elements();
}

namespace {

struct Image {
  spyre::DeviceView device;
  spyre::HostView host;
};

Image image_of(SpyreStorageImpl& storage, const at::Tensor& bytes) {
  Image image{whole_view(storage), {bytes.data_ptr(), storage.type(), storage.size, storage.strides, {}}};
  if (storage.origin != 0 || storage.elements() < host_elements(storage.size, storage.strides)) {
    image.device.offset = storage.origin;
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
  waiting([&] { card(device).to_host(image.host, image.device, current_stream(device), spyre::Card::Wait::yes); });
  return bytes;
}

void write_bytes(SpyreStorageImpl& storage, const at::Tensor& bytes) {
  if (!storage.held().block) return;
  const auto device = storage.device().index();
  const Image image = image_of(storage, bytes);
  send(device, image.device, image.host, current_stream(device), spyre::Card::Wait::yes);
}

void check_inside(const SpyreStorageImpl& storage, const StoredView& view) {
  const int64_t reach = host_elements(view.size, view.strides);
  TORCH_CHECK(reach == 0 || view.offset <= storage.elements() - reach, "sizes ", view.size, ", strides ", view.strides,
              ", offset ", view.offset, " reach past the end of a storage of ", storage.elements(), " elements");
}

void reshape_storage(SpyreStorageImpl& storage, c10::IntArrayRef size, c10::IntArrayRef strides) {
  const auto device = storage.device().index();
  auto fresh = make_storage(size, strides, storage.dtype, device);
  const int64_t kept = std::min(storage.elements(), fresh->elements());
  if (kept > 0 && storage.held().block) {
    spyre::DeviceView from = whole_view(storage), to = whole_view(*fresh);
    if (dense(storage.size, storage.strides)) {
      from.size = to.size = {kept};
      from.strides = to.strides = {1};
    } else {  // gaps have no place in an explicit layout
      TORCH_CHECK(kept == storage.elements(), "a storage with gaps between its elements cannot be made smaller");
      to.size = from.size;
      to.strides = from.strides;
    }
    spyre::Card& on = card(device);
    waiting([&] { on.on_card(to, from, current_stream(device)); });
  }
  c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
  storage.adopt(fresh->nbytes(), std::move(data), std::move(*fresh));
}

void resize_storage_bytes(SpyreStorageImpl& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  const auto device = storage.device().index();
  if (bytes == 0) {  // memory goes, the description stays: growing back gives the same layout
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
    storage.set_nbytes(0);
    storage.find_block();
    return;
  }
  if (storage.untyped) {
    auto fresh = new_storage(bytes, static_cast<int64_t>(bytes), device);
    fresh->untyped = true;
    fresh->size = {static_cast<int64_t>(bytes)};
    fresh->strides = {1};
    fresh->set_layout(byte_layout(static_cast<int64_t>(bytes)));
    fresh->find_block();
    if (storage.held().block) {
      spyre::DeviceView from = whole_view(storage), to = whole_view(*fresh);
      from.size = to.size = {std::min(from.size[0], to.size[0])};
      waiting([&] { card(device).on_card(to, from, current_stream(device)); });
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

void give_dtype(SpyreStorageImpl& storage, at::ScalarType dtype, int64_t offset, c10::IntArrayRef size,
                c10::IntArrayRef strides) {
  const auto device = storage.device().index();
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t elements = static_cast<int64_t>(storage.nbytes()) / item;
  const int64_t used = host_elements(size, strides);
  spyre::Card& on = card(device);
  waiting([&] { on.synchronize(current_stream(device)); });
  const spyre::Held bytes = storage.held();
  const std::byte* raw = bytes.block ? bytes.memory->card_address(bytes.block) : nullptr;
  // A storage that was saved from a card is as long as its layout needs: behind the tensor come zeros, which need no
  // place. Flat storages have one for them all the same.
  const bool covers = offset == 0 && dense(size, strides) && used <= elements;
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
    send(device, whole_view(*fresh), from, current_stream(device), spyre::Card::Wait::yes);
  }
  c10::DataPtr data = std::move(fresh->_mutable_data_ptr_no_checks());
  storage.adopt(std::max(fresh->nbytes(), storage.nbytes()), std::move(data), std::move(*fresh));
  storage.zero_tail = zeros;
}

void reach_zero_tail(SpyreStorageImpl& storage, const StoredView& view) {
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
