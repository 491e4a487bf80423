// The times that DistributedDataParallel reports of its iterations: modelled, as all times on the card are.
#include <array>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"

namespace torch_spyre::distributed {

namespace {

class CardTimer final : public c10d::Timer {
 public:
  explicit CardTimer(c10::Device device) : device_(device.index()) {}

  void record(Event event) override {
    Timer::record(event);
    spyre::Card& on = card(device_);
    on.engine().record(on.stream(current_stream(device_)), events_[static_cast<size_t>(event)]);
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto begun = getTimestamp(start), ended = getTimestamp(end);
    if (!begun || !ended || *ended < *begun) return std::nullopt;  // not both in this iteration
    constexpr spyre::Picoseconds kNanosecond = 1000;
    spyre::Picoseconds took = 0;
    run_blocking([&] { took = time(end) - time(start); });
    return std::max<int64_t>(took / kNanosecond, 0);
  }

 private:
  spyre::Picoseconds time(Event event) {
    return card(device_).engine().time(events_[static_cast<size_t>(event)], spyre::Runtime::interrupted);
  }
  const c10::DeviceIndex device_;
  std::array<spyre::Event, 5> events_;
};

}  // namespace

}  // namespace torch_spyre::distributed

namespace c10d {

using torch_spyre::distributed::CardTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, CardTimer);

}  // namespace c10d
