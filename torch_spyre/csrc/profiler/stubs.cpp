// Marks on the modelled clock for torch.autograd.profiler.profile(use_device="spyre"), which takes the device time of
// an op from a mark before and one behind it.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"

namespace torch_spyre::profiler {

namespace {

bool has_runtime() { return spyre::Runtime::started() && !spyre::Runtime::forked(); }

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using Mark = torch::profiler::impl::ProfilerVoidEventStub;

  void record(c10::DeviceIndex* device, Mark* mark, int64_t* host_ns) const override {
    const c10::DeviceIndex on = current_device();
    // Modelled time is 0 where nothing was submitted. Behind a collective this waits for it.
    spyre::Picoseconds now = 0;
    if (has_runtime())
      run_blocking(
          [&] { now = card(on).engine().time(card(on).stream(current_stream(on)), spyre::Runtime::interrupted); });
    *mark = std::make_shared<spyre::Picoseconds>(now);
    if (device) *device = on;
    if (host_ns) *host_ns = c10::getTime();
  }
  // In microseconds.
  float elapsed(const Mark* from, const Mark* until) const override {
    const auto time = [](const Mark* mark) { return *static_cast<const spyre::Picoseconds*>(mark->get()); };
    return static_cast<float>(static_cast<double>(time(until) - time(from)) / 1e6);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> body) const override {
    for (int i = 0; i < device_count(); ++i) body(i);
  }
  void synchronize() const override {
    if (has_runtime()) run_blocking([] { card(-1).synchronize(); });
  }
};

Stubs stubs;
const bool registered = [] {
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace

}  // namespace torch_spyre::profiler
