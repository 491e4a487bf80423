#include "runtime/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

namespace torch_spyre {

SpyreGeneratorImpl::SpyreGeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : SpyreGeneratorImpl(device, at::detail::createCPUGenerator(seed)) {}

SpyreGeneratorImpl::SpyreGeneratorImpl(c10::DeviceIndex device, at::Generator host)
    : c10::GeneratorImpl(c10::Device(kSpyre, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(std::move(host)) {}

// Random ops lock the host's generator, so everything that touches its state locks it too.
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
  if (generator.device().type() != kSpyre) return generator;
  return static_cast<SpyreGeneratorImpl*>(generator.unsafeGetGeneratorImpl())->host();
}

}  // namespace torch_spyre
