// The device's random generator. PyTorch's CPU generator draws the numbers on the host, and they are sent to the card,
// so that a seed gives the same numbers as on the CPU.
#pragma once

#include <ATen/core/Generator.h>

#include "runtime/device/device.h"

namespace torch_spyre {

class SpyreGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit SpyreGeneratorImpl(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);
  explicit SpyreGeneratorImpl(c10::DeviceIndex device, at::Generator host);

  at::Generator& host() { return host_; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return kSpyre; }

 private:
  SpyreGeneratorImpl* clone_impl() const override;
  at::Generator host_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
// The CPU generator to draw from for an op that was given this generator, or none. A CPU generator draws as it is.
at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device);

}  // namespace torch_spyre
