// The generator, and the hooks through which PyTorch's device-agnostic code reaches the device.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "runtime/generator.h"
#include "runtime/storage.h"

namespace torch_spyre {

SpyreGeneratorImpl::SpyreGeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : SpyreGeneratorImpl(device, at::detail::createCPUGenerator(seed)) {}

SpyreGeneratorImpl::SpyreGeneratorImpl(c10::DeviceIndex device, at::Generator host)
    : c10::GeneratorImpl(c10::Device(kSpyre, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(std::move(host)) {}

// Ops that draw lock the host's generator, so everything that touches its state does.
void SpyreGeneratorImpl::set_current_seed(uint64_t seed) {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  host_.set_current_seed(seed);
}
void SpyreGeneratorImpl::set_offset(uint64_t) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a spyre generator has a state, not an offset: use get_state and set_state");
}
uint64_t SpyreGeneratorImpl::get_offset() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a spyre generator has a state, not an offset: use get_state and set_state");
}
uint64_t SpyreGeneratorImpl::current_seed() const {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  return host_.current_seed();
}
uint64_t SpyreGeneratorImpl::seed() {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  return host_.seed();
}
void SpyreGeneratorImpl::set_state(const c10::TensorImpl& state) {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  host_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> SpyreGeneratorImpl::get_state() const {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  return host_.unsafeGetGeneratorImpl()->get_state();
}
SpyreGeneratorImpl* SpyreGeneratorImpl::clone_impl() const {
  std::lock_guard lock(host_.unsafeGetGeneratorImpl()->mutex_);
  return new SpyreGeneratorImpl(device_.index(), host_.clone());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> all;
    for (int i = 0; i < device_count(); ++i)
      all.push_back(at::make_generator<SpyreGeneratorImpl>(static_cast<c10::DeviceIndex>(i)));
    return all;
  }();
  return generators[resolve(device)];
}

at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device) {
  at::Generator generator = given && given->defined() ? *given : default_generator(device);
  if (generator.device().type() != kSpyre) return generator;  // a CPU generator gives CPU numbers
  return static_cast<SpyreGeneratorImpl*>(generator.unsafeGetGeneratorImpl())->host();
}

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
