#include "runtime/storage/allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include <array>
#include <utility>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/storage/storage.h"

namespace torch_spyre {

namespace {

using c10::CachingAllocator::StatType;

// For torch.profiler with profile_memory.
void report(spyre::Memory& memory, void* address, int64_t bytes, int index) {
  if (!c10::memoryProfilingEnabled()) [[likely]]
    return;
  const spyre::MemoryStats stats = memory.stats();
  c10::reportMemoryUsageToProfiler(address, bytes, stats.allocated_bytes.current, stats.reserved_bytes.current,
                                   c10::Device(kSpyre, static_cast<c10::DeviceIndex>(index)));
}

// PyTorch gives a deleter the block alone, so each card has a deleter of its own.
template <int index>
void release(void* block) {
  if (!spyre::Runtime::started() || spyre::Runtime::forked()) return;
  spyre::Memory& memory = spyre::Runtime::get().card(index).memory();
  auto* const released = static_cast<spyre::Block*>(block);
  void* const address = memory.device_pointer(released);
  const auto bytes = static_cast<int64_t>(released->bytes);
  memory.release(released);
  report(memory, address, -bytes, index);
}
constexpr std::array<c10::DeleterFnPtr, kMaxCards> kRelease = {release<0>, release<1>, release<2>, release<3>,
                                                               release<4>, release<5>, release<6>, release<7>};

void release_pinned(void* block) {
  if (!spyre::Runtime::started() || spyre::Runtime::forked()) return;
  spyre::Runtime::get().pinned().release(static_cast<spyre::Block*>(block));
}

c10::CachingAllocator::Stat stat_of(const spyre::MemoryStats::Counter& counter) {
  c10::CachingAllocator::Stat stat;
  stat.current = counter.current;
  stat.peak = counter.peak;
  stat.allocated = counter.allocated;
  stat.freed = counter.freed;
  return stat;
}

void fill_stat(c10::CachingAllocator::StatArray& stats, const spyre::MemoryStats::Counter& counter) {
  stats[static_cast<size_t>(StatType::AGGREGATE)] = stat_of(counter);
}

struct SpyreAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return torch_spyre::allocate(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "spyre device memory is copied through tensors, not addresses");
  }
  bool initialized() override { return spyre::Runtime::started(); }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); ++i) card(static_cast<c10::DeviceIndex>(i)).memory().empty_cache();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (!data.get()) return;
    spyre::Card& on = card(stream.device_index());
    const int id = on.stream(static_cast<int>(stream.id())).id;  // raises for a stream that does not exist
    for (int i = 0; i < device_count(); ++i) {
      spyre::Memory& memory = card(static_cast<c10::DeviceIndex>(i)).memory();
      if (spyre::Block* block = memory.find(data.get())) memory.record_stream(block, on.progress(), id);
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const spyre::MemoryStats from = card(device).memory().stats();
    c10::CachingDeviceAllocator::DeviceStats to;
    fill_stat(to.allocation, from.allocation);
    fill_stat(to.active, from.allocation);
    fill_stat(to.segment, from.segment);
    fill_stat(to.allocated_bytes, from.allocated_bytes);
    fill_stat(to.active_bytes, from.allocated_bytes);
    fill_stat(to.requested_bytes, from.allocated_bytes);
    fill_stat(to.reserved_bytes, from.reserved_bytes);
    fill_stat(to.inactive_split_bytes, from.inactive_split_bytes);
    to.num_alloc_retries = from.retries;
    to.num_ooms = from.out_of_memory;
    to.num_device_alloc = from.segment.allocated;
    to.num_device_free = from.segment.freed;
    return to;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { card(device).memory().reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { card(device).memory().reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    spyre::Memory& memory = card(device).memory();
    return {memory.free_bytes(), memory.capacity()};
  }
};

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    spyre::Memory& memory = spyre::Runtime::get().pinned();
    spyre::Block* block = nullptr;
    run_blocking([&] { block = memory.allocate(bytes); });
    return {memory.device_pointer(block), block, &release_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool record_event(void* pointer, void*, c10::Stream stream) override {
    if (!is_pinned(pointer)) return false;
    spyre::Memory& memory = spyre::Runtime::get().pinned();
    spyre::Block* block = memory.find(pointer);
    spyre::Card& on = card(stream.device_index());
    if (block) memory.record_stream(block, on.progress(), on.stream(static_cast<int>(stream.id())).id);
    return block != nullptr;
  }
  void empty_cache() override {
    if (spyre::Runtime::started()) spyre::Runtime::get().pinned().empty_cache();
  }
  at::HostStats get_stats() override {
    at::HostStats stats;
    if (!spyre::Runtime::started()) return stats;
    const spyre::MemoryStats from = spyre::Runtime::get().pinned().stats();
    stats.active_requests = stat_of(from.allocation);
    stats.active_bytes = stat_of(from.allocated_bytes);
    stats.allocations = stat_of(from.segment);
    stats.allocated_bytes = stat_of(from.reserved_bytes);
    return stats;
  }
  void reset_accumulated_stats() override {
    if (spyre::Runtime::started()) spyre::Runtime::get().pinned().reset_accumulated();
  }
  void reset_peak_stats() override {
    if (spyre::Runtime::started()) spyre::Runtime::get().pinned().reset_peak();
  }
};

SpyreAllocator the_allocator;
PinnedAllocator the_pinned_allocator;

}  // namespace

c10::DataPtr allocate(c10::DeviceIndex device, size_t bytes) {
  device = resolve(device);
  const c10::Device where(kSpyre, device);
  if (bytes == 0) return {nullptr, nullptr, kRelease[device], where};
  spyre::Card& on = card(device);
  spyre::Block* block = nullptr;
  // Where no other memory is left, this waits for memory that queued work still uses.
  run_blocking([&] { block = on.allocate(bytes); });
  report(on.memory(), on.memory().device_pointer(block), static_cast<int64_t>(block->bytes), device);
  return {on.memory().device_pointer(block), block, kRelease[device], where};
}

spyre::Held block_of(const c10::DataPtr& data, bool& own) {
  if (!data.get()) return {};
  own = data.get_deleter() == kRelease[data.device().index()];
  spyre::Memory& memory = card(data.device().index()).memory();
  if (own) return {&memory, static_cast<spyre::Block*>(data.get_context())};
  spyre::Block* block = memory.find(data.get());
  TORCH_CHECK(block, "this address does not belong to a live spyre tensor (freed storage?)");
  return {&memory, block};
}

c10::Allocator* device_allocator() { return &the_allocator; }
c10::Allocator* pinned_allocator() { return &the_pinned_allocator; }

bool is_pinned(const void* pointer) {
  return pointer && spyre::Runtime::started() && !spyre::Runtime::forked() &&
         spyre::Runtime::get().pinned().owns(pointer);
}

spyre::Held pinned_block(const c10::DataPtr& data) {
  if (!is_pinned(data.get())) return {};
  spyre::Memory& memory = spyre::Runtime::get().pinned();
  const bool own = data.get_deleter() == &release_pinned;
  return {&memory, own ? static_cast<spyre::Block*>(data.get_context()) : memory.find(data.get())};
}

namespace {

// torch makes storages for this device with this function: untyped bytes, or a storage on memory that exists already.
c10::intrusive_ptr<c10::StorageImpl> create(c10::StorageImpl::use_byte_size_t, c10::SymInt size_bytes,
                                            c10::DataPtr data, c10::Allocator*, bool resizable) {
  const auto bytes = static_cast<size_t>(size_bytes.expect_int());
  if (data.get() && data.get_deleter() != kRelease[data.device().index()]) {
    const c10::Storage foreign(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), std::move(data), nullptr, false));
    return spyre_storage(foreign).getWeakStorageImpl().lock();
  }
  const bool placed = data.device().type() == kSpyre && data.device().has_index();
  if (!data.get()) data = allocate(placed ? data.device().index() : current_device(), bytes);
  auto storage = c10::make_intrusive<SpyreStorageImpl>(bytes, std::move(data), &the_allocator, resizable);
  storage->set_untyped();
  return storage;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kSpyre, "record_stream: ", stream, " is not a stream of a spyre card");
  the_allocator.recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", record_stream); }

}  // namespace

void register_allocators() {
  c10::SetAllocator(kSpyre, &the_allocator);
  at::setHostAllocator(kSpyre, &the_pinned_allocator);
  c10::SetStorageImplCreate(kSpyre, &create);
}

}  // namespace torch_spyre
