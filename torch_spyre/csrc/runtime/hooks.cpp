// The hooks through which PyTorch's device-agnostic code reaches the device.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "runtime/device/device.h"
#include "runtime/device/generator.h"
#include "runtime/storage/allocator.h"
#include "runtime/storage/storage_resize.h"

namespace torch_spyre {

namespace {

struct SpyreHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return spyre::Runtime::started(); }
  void init() const override { spyre::Runtime::get(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    if (device >= 0) set_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    for (int i = 0; i < device_count(); ++i)
      if (card(static_cast<c10::DeviceIndex>(i)).memory().owns(data)) return {kSpyre, static_cast<c10::DeviceIndex>(i)};
    TORCH_CHECK(false, "the address ", data, " belongs to no spyre card");
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SpyreGeneratorImpl>(resolve(device));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage_bytes(*static_cast<SpyreStorageImpl*>(storage.unsafeGetStorageImpl()), bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new SpyreHooks);
  register_allocators();
  return true;
}();

}  // namespace

}  // namespace torch_spyre
