// The card's C++ API, timed from inside: what the benchmarks compare PyTorch's way to the card with.
#include "measure.h"

#include <chrono>

#include "storage.h"

namespace torch_spyre {

namespace {

template <typename Body>
double best_seconds(int repeats, const Body& body) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

spyre::HostView host_view(const at::Tensor& tensor) {
  return {tensor.data_ptr(), host_type(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(), {}};
}

}  // namespace

double measure_to_card(const at::Tensor& to, const at::Tensor& from, int repeats) {
  spyre::Card& on = card(to.device().index());
  const spyre::DeviceView target = device_view(to);
  const spyre::HostView source = host_view(from);
  return best_seconds(repeats, [&] { on.to_card(target, source, 0, spyre::Card::Wait::yes); });
}

double measure_to_host(const at::Tensor& to, const at::Tensor& from, int repeats) {
  spyre::Card& on = card(from.device().index());
  const spyre::DeviceView source = device_view(from);
  const spyre::HostView target = host_view(to);
  return best_seconds(repeats, [&] { on.to_host(target, source, 0, spyre::Card::Wait::yes); });
}

double measure_launch(const std::shared_ptr<const spyre::JobPlan>& plan, int repeats) {
  spyre::Card& on = card(-1);
  const double best = best_seconds(repeats, [&] { on.launch(plan, {}, 0); });
  on.synchronize(0);
  return best;
}

}  // namespace torch_spyre
