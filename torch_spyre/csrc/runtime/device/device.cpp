#include "runtime/device/device.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <atomic>
#include <cstdlib>

#include "runtime/calls/interrupts.h"

namespace torch_spyre {

namespace {

thread_local c10::DeviceIndex current = -1;  // negative: the thread has set none

// Each rank defaults to a card of its own; ranks beyond the number of cards share them.
c10::DeviceIndex default_device() {
  static const c10::DeviceIndex index = [] {
    const char* rank = std::getenv("LOCAL_RANK");
    const int count = device_count();
    if (!rank || !*rank || count == 0) return c10::DeviceIndex{0};
    char* end = nullptr;
    const long number = std::strtol(rank, &end, 10);
    TORCH_CHECK(!*end && number >= 0, "LOCAL_RANK=", rank, ": expected a rank, 0 or more");
    return static_cast<c10::DeviceIndex>(number % count);
  }();
  return index;
}

[[noreturn]] void raise_no_such_card(int index) {
  spyre::Runtime::device_count();  // raises what is wrong with the environment, if that is the reason
  TORCH_CHECK(false, "invalid device index ", index, ": this process sees ", device_count(),
              " spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which");
}

}  // namespace

int device_count() noexcept {
  static const int count = [] {
    try {
      return spyre::Runtime::device_count();
    } catch (const std::exception&) {
      return 0;
    }
  }();
  return count;
}

c10::DeviceIndex current_device() { return current >= 0 ? current : default_device(); }

void set_device(c10::DeviceIndex index) {
  if (index < 0) raise_no_such_card(index);
  current = resolve(index);
}

c10::DeviceIndex resolve(c10::DeviceIndex index) {
  if (index < 0) index = current_device();
  if (index >= device_count()) [[unlikely]]
    raise_no_such_card(index);
  return index;
}

c10::DeviceIndex resolve(std::optional<c10::Device> device) { return resolve(device ? device->index() : -1); }

spyre::Card& card(c10::DeviceIndex index) {
  spyre::Card& found = spyre::Runtime::get().card(resolve(index));
  // PyTorch skips synchronization on a device that it has not seen start, and work may be queued before the first
  // tensor exists.
  static std::atomic<bool> announced{false};
  if (!announced.load(std::memory_order_relaxed)) [[unlikely]] {
    torch::utils::device_lazy_init(kSpyre);
    announced = true;
  }
  drop_work_if_interrupted();
  return found;
}

}  // namespace torch_spyre
