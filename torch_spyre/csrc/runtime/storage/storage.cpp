#include "runtime/storage/storage.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdio>
#include <typeinfo>

#include "runtime/device/device.h"
#include "runtime/storage/allocator.h"
#include "runtime/storage/storage_view.h"

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

// torch gives a storage of no bytes a pointer without a device.
c10::DataPtr on_device(c10::DataPtr data) {
  if (data.device().type() == kSpyre) return data;
  return {nullptr, c10::Device(kSpyre, current_device())};
}

bool is_ours(const c10::StorageImpl& storage) { return typeid(storage) == typeid(SpyreStorageImpl); }

c10::intrusive_ptr<SpyreStorageImpl> new_storage(size_t bytes, int64_t device_bytes, c10::DeviceIndex device) {
  return c10::make_intrusive<SpyreStorageImpl>(bytes, allocate(device, device_bytes), device_allocator(), true);
}

// The data pointer of a storage that shares memory: it keeps the storage that owns the memory alive.
c10::DataPtr shared_data(const c10::Storage& owner) {
  auto* reference = new c10::Storage(owner);
  return {owner.data_ptr().get(), reference, [](void* ctx) { delete static_cast<c10::Storage*>(ctx); }, owner.device()};
}

void check_format(const spyre::Layout& layout, at::ScalarType dtype) {
  const auto format = spyre::format_of(host_type(dtype));
  TORCH_CHECK(layout.format == format, "layout does not match the tensor: ", dtype_name(dtype), " is ",
              spyre::name(format), " on the card, the layout says ", spyre::name(layout.format));
}

}  // namespace

bool is_dense(c10::IntArrayRef size, c10::IntArrayRef strides) {
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

size_t storage_bytes(int64_t device_bytes, c10::IntArrayRef size, c10::IntArrayRef strides, at::ScalarType dtype) {
  return std::max<int64_t>(device_bytes, host_elements(size, strides) * static_cast<int64_t>(c10::elementSize(dtype)));
}

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
  const int64_t whole = host_elements(size, strides) - base_offset;
  // A storage that shares memory may reach less than all of it.
  return untyped || resizable() ? whole : std::min(whole, static_cast<int64_t>(nbytes() / c10::elementSize(dtype)));
}

void SpyreStorageImpl::set_layout(spyre::Layout layout) {
  delete layout_.exchange(new spyre::Layout(std::move(layout)));
}

void SpyreStorageImpl::set_untyped() {
  untyped = true;
  size = {static_cast<int64_t>(nbytes())};
  strides = {1};
  set_layout(spyre::default_layout(size, strides, spyre::DataFormat::SENINT8));
  find_block();
}

void SpyreStorageImpl::find_block() {
  bool own = false;
  held_ = block_of(data_ptr(), own);
  if (!held_.block) return;
  if (own) {
    held_.block->owner = this;
    held_.block->describe = describe;
  } else if (const auto* base = static_cast<const SpyreStorageImpl*>(held_.block->owner)) {
    untyped = base->untyped;
  }
}

void SpyreStorageImpl::adopt(size_t bytes, c10::DataPtr data, SpyreStorageImpl&& from) {
  dtype = from.dtype;
  size = std::move(from.size);
  strides = std::move(from.strides);
  untyped = from.untyped;
  base_offset = from.base_offset;
  zero_tail = false;
  delete layout_.exchange(from.layout_.exchange(nullptr));
  set_data_ptr_noswap(std::move(data));
  set_nbytes(bytes);
  find_block();
}

c10::Storage spyre_storage(const c10::Storage& storage) {
  if (is_ours(*storage.unsafeGetStorageImpl())) return storage;
  auto shared = c10::make_intrusive<SpyreStorageImpl>(storage.nbytes(), shared_data(storage), nullptr, false);
  shared->find_block();
  if (!shared->held().block) return c10::Storage(std::move(shared));  // no bytes, no base
  const auto* base = static_cast<const SpyreStorageImpl*>(shared->held().block->owner);
  TORCH_CHECK(base, "this spyre memory does not say which tensor it holds");
  shared->base = base;
  shared->dtype = base->dtype;
  shared->size = base->size;
  shared->strides = base->strides;
  shared->set_layout(base->layout());
  shared->base_offset = (static_cast<const char*>(shared->data()) - static_cast<const char*>(base->data())) /
                        static_cast<int64_t>(c10::elementSize(base->dtype));
  return c10::Storage(std::move(shared));
}

SpyreStorageImpl& storage_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kSpyre, "expected a spyre tensor, got one on ", tensor.device());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // A fake tensor names the card as its device; its storage does not.
  TORCH_CHECK(impl->unsafe_storage() && impl->unsafe_storage().device_type() == kSpyre,
              "expected a tensor with memory on the card, got a fake one");
  if (!is_ours(*impl->unsafe_storage().unsafeGetStorageImpl()))
    impl->set_storage_keep_dtype(spyre_storage(impl->unsafe_storage()));
  return *static_cast<SpyreStorageImpl*>(impl->unsafe_storage().unsafeGetStorageImpl());
}

c10::intrusive_ptr<SpyreStorageImpl> make_untyped_storage(size_t bytes, c10::DeviceIndex device) {
  auto storage = new_storage(bytes, static_cast<int64_t>(bytes), device);
  storage->set_untyped();
  return storage;
}

c10::intrusive_ptr<SpyreStorageImpl> make_contiguous_storage(c10::IntArrayRef size, at::ScalarType dtype,
                                                             c10::DeviceIndex device) {
  // A last dimension of pairs would take a stick for each pair: complex storages are flat, in host order.
  if (stored_per_element(dtype) == 2)
    return make_contiguous_storage({2 * c10::multiply_integers(size)}, at::kFloat, device);
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
  if (stored_per_element(dtype) == 2 && !layout)
    return make_contiguous_storage({2 * host_elements(size, strides)}, at::kFloat, device);
  const auto format = spyre::format_of(host_type(dtype));
  spyre::Dims host_size = size.vec(), host_strides = strides.vec();
  spyre::Layout own;
  if (layout) {
    own = *layout;
    check_format(own, dtype);
    spyre::check_layout(own, host_size, host_strides);
  } else {
    // Gaps and overlaps belong to no dimension: such a storage is flat, in host order.
    if (!is_dense(size, strides)) host_size = {host_elements(size, strides)}, host_strides = {1};
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
  check_format(layout, dtype);
  spyre::check_layout(layout, size.vec(), strides.vec());
  TORCH_CHECK(!owner.held().block || layout.device_bytes() <= static_cast<int64_t>(owner.held().block->bytes),
              "the layout needs ", layout.device_bytes(), " bytes, the storage it should share has ",
              owner.held().block->bytes);
  auto storage = c10::make_intrusive<SpyreStorageImpl>(storage_bytes(layout.device_bytes(), size, strides, dtype),
                                                       shared_data(base.storage()), nullptr, false);
  storage->base = &owner;  // the data pointer keeps it alive
  storage->dtype = dtype;
  storage->size = size.vec();
  storage->strides = strides.vec();
  storage->set_layout(layout);
  storage->find_block();
  return storage;
}

}  // namespace torch_spyre
