// Devices, streams and events as PyTorch's device guard.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/numbers/dtypes.h"
#include "runtime/storage/allocator.h"

namespace torch_spyre {

namespace {

spyre::Event* event_of(void* event) { return static_cast<spyre::Event*>(event); }

spyre::Stream& stream_of(const c10::Stream& stream) {
  return card(stream.device_index()).stream(static_cast<int>(stream.id()));
}

// Behind a collective it is known only when the other cards have come there.
spyre::Picoseconds time_of(const spyre::Event& event) {
  spyre::Picoseconds time = 0;
  run_blocking([&] { time = spyre::Runtime::get().engine().time(event, spyre::Runtime::interrupted); });
  return time;
}

struct SpyreGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSpyre; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.index() != before.index()) setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSpyre, current_device()}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    resolve(device);
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (int i = 0; i < static_cast<int>(c10::NUMBER_OF_DEVICE_CAPABILITIES) && i < 64; ++i)
      if (is_supported(static_cast<at::ScalarType>(i))) capability.capability_data.capability_bits |= 1ULL << i;
    return capability;
  }

  c10::Stream make(c10::DeviceIndex index, int stream) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSpyre, index), stream);
  }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = resolve(device);
    return make(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make(resolve(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const auto index = resolve(device);
    return make(index, stream_from_pool(index, high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority != 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return make(stream.device_index(), exchange_stream(stream.device_index(), static_cast<int>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &stream_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return card(stream.device_index()).engine().finished(stream_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    run_blocking([&] { card(stream.device_index()).synchronize(static_cast<int>(stream.id())); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    resolve(index);
    if (!spyre::Runtime::started()) return;  // nothing was ever queued
    run_blocking([&] { card(index).synchronize(); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new spyre::Event;
    card(stream.device_index()).engine().record(stream_of(stream), *event_of(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) card(stream.device_index()).engine().wait_event(stream_of(stream), *event_of(event));
  }
  bool queryEvent(void* event) const override {
    return !event || spyre::Runtime::get().engine().finished(*event_of(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event)
      run_blocking([&] { spyre::Runtime::get().engine().wait(*event_of(event), spyre::Runtime::interrupted); });
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete event_of(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second && event_of(first)->record && event_of(second)->record,
                "both events must be recorded before their distance in time can be taken");
    constexpr double kPerMillisecond = 1e9;
    return static_cast<double>(time_of(*event_of(second)) - time_of(*event_of(first))) / kPerMillisecond;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuard);

}  // namespace

}  // namespace torch_spyre
