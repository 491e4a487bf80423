#include "runtime/launch.h"

#include "runtime/calls/blocking.h"
#include "runtime/calls/logging.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

namespace {

// The arguments as the program knows them, which errors of strict mode name.
spyre::TensorInfos described(c10::ArrayRef<const at::Tensor*> tensors) {
  std::vector<spyre::TensorInfo> all;
  for (const at::Tensor* tensor : tensors) {
    const spyre::DeviceView view = device_view(*tensor);
    all.push_back({name(view.type), view.size, view.strides, view.offset, *view.layout});
  }
  return std::make_shared<const std::vector<spyre::TensorInfo>>(std::move(all));
}

}  // namespace

void launch_jobplan(const std::shared_ptr<const spyre::JobPlan>& plan, c10::ArrayRef<const at::Tensor*> tensors,
                    const std::vector<double>& runtime_scalars, c10::ArrayRef<int64_t> shifts) {
  const c10::DeviceIndex device = tensors.empty() ? current_device() : tensors[0]->device().index();
  std::vector<spyre::Held> arguments;
  arguments.reserve(tensors.size());
  for (const at::Tensor* tensor : tensors) {
    TORCH_CHECK(tensor->device() == c10::Device(kSpyre, device), "kernel '", plan->name,
                "' takes tensors of one card, got one on ", tensor->device());
    const SpyreStorageImpl& storage = storage_of(*tensor);
    TORCH_CHECK(storage.alive() || tensor->numel() == 0, "kernel '", plan->name, "' got a tensor without memory");
    arguments.push_back(storage.held());
    if (!shifts.empty()) arguments.back().shift = shifts[arguments.size() - 1];
  }
  if (logging_enabled()) {
    std::string line = "launch '" + plan->name + "' on stream " + std::to_string(current_stream(device));
    for (const at::Tensor* tensor : tensors) line += "; " + storage_of(*tensor).layout().str();
    log_line(line);
  }
  const bool strict = card(device).mode() == spyre::Mode::strict;
  const spyre::DescribedArguments scope(strict ? described(tensors) : nullptr);
  // Memory for the plan's own allocations may have to wait for queued work.
  run_blocking([&] { card(device).launch(plan, std::move(arguments), current_stream(device), runtime_scalars); });
}

}  // namespace torch_spyre
