#include "aten/eager_kernels.h"

#include <c10/util/SmallVector.h>

#include <atomic>
#include <list>
#include <mutex>
#include <unordered_map>

#include "aten/call_signature.h"
#include "aten/op_listener.h"
#include "aten/resize.h"
#include "python/eager_compiler.h"
#include "runtime/calls/origin.h"
#include "runtime/launch.h"
#include "runtime/numbers/scalars.h"

namespace torch_spyre {

namespace {

using KernelPtr = std::shared_ptr<const EagerKernel>;

// The kernels used last, by signature. Kernels are freed outside of the lock: a plan may hold Python objects, and a
// thread that waits for the GIL must not hold a lock that the holder of the GIL may wait for.
class KernelCache {
 public:
  KernelPtr find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->second;
  }

  void add(std::string key, KernelPtr kernel) {
    Order dropped;
    const std::lock_guard lock(mutex_);  // released before `dropped`
    if (by_key_.count(key)) return;      // another thread was first
    order_.emplace_front(std::move(key), std::move(kernel));
    by_key_.emplace(order_.front().first, order_.begin());
    if (order_.size() <= kMost) return;
    by_key_.erase(order_.back().first);
    dropped.splice(dropped.begin(), order_, std::prev(order_.end()));
  }

  void clear() {
    Order dropped;
    const std::lock_guard lock(mutex_);
    by_key_.clear();
    dropped.swap(order_);
  }

  size_t size() {
    const std::lock_guard lock(mutex_);
    return order_.size();
  }

 private:
  static constexpr size_t kMost = 4096;
  using Order = std::list<std::pair<std::string, KernelPtr>>;
  std::mutex mutex_;
  Order order_;  // most recently used first
  std::unordered_map<std::string_view, Order::iterator> by_key_;
};

KernelCache& kernels() {
  static auto* all = new KernelCache;  // outlives the interpreter, whose objects plans may hold
  return *all;
}
std::atomic<int64_t> launched{0}, compiled{0};

void run(const EagerKernel& kernel, const CallSignature& call, size_t arguments, torch::jit::Stack* stack,
         c10::Device device) {
  const OriginScope origin(kernel.op);
  c10::SmallVector<at::Tensor, 4> outputs;
  for (const Output& output : kernel.outputs) outputs.push_back(empty_output(output, device.index()));
  if (kernel.plan) {
    std::vector<double> scalars;
    for (const EagerKernel::RuntimeScalar& scalar : kernel.runtime_scalars) {
      const double value = scalar.negated ? -call.scalars[scalar.index] : call.scalars[scalar.index];
      scalars.push_back(scalar.rounded_to ? round_to_device(value, *scalar.rounded_to) : value);
    }
    c10::SmallVector<const at::Tensor*, 8> tensors;
    c10::SmallVector<int64_t, 8> shifts;
    for (const size_t i : kernel.arguments) {
      tensors.push_back(call.tensors[i]);
      shifts.push_back(call.moved[i].shift);
    }
    for (const at::Tensor& output : outputs) tensors.push_back(&output);
    shifts.resize(tensors.size());
    launch_jobplan(kernel.plan, tensors, scalars, shifts);
    launched.fetch_add(1, std::memory_order_relaxed);
    notify_op_listener(OpEvent::launched, *kernel.op, kernel.plan, "");
  }
  for (const auto& [target, source] : kernel.copies) call.tensors[target]->copy_(outputs[source]);
  c10::SmallVector<c10::IValue, 4> results;
  for (const EagerKernel::Return& result : kernel.returns) {
    using From = EagerKernel::Return::From;
    results.emplace_back(result.from == From::argument ? *call.tensors[result.index]
                         : result.from == From::output ? outputs[result.index]
                                                       : at::Tensor());
  }
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// The argument with the tensors at the places of the signature; `next` is the first of them.
c10::IValue at_places(const c10::IValue& value, const CallSignature& call, size_t& next) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || tensor.device().is_cpu()) return value;
    const MovedArgument& place = call.moved[next++];
    return place.shift ? c10::IValue(at_place(tensor, place)) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(at_places(element, call, next).toTensor());
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(at_places(element, call, next).to<std::optional<at::Tensor>>());
    return list;
  }
  return value;
}

std::vector<c10::IValue> at_places(c10::ArrayRef<c10::IValue> arguments, const CallSignature& call) {
  size_t next = 0;
  std::vector<c10::IValue> moved;
  moved.reserve(arguments.size());
  for (const c10::IValue& argument : arguments) moved.push_back(at_places(argument, call, next));
  return moved;
}

// The kernel for a call, compiled if it is the first with its signature.
KernelPtr kernel_for(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, const CallSignature& call,
                     c10::Device device) {
  KernelPtr kernel = kernels().find(call.key);
  const bool value_specific = kernel && kernel->value_specific;
  if (value_specific) kernel = kernels().find(call.key_with_scalars(arguments));
  if (kernel) return kernel;
  kernel = compile_eager_kernel(op, at_places(arguments, call), call.tensors.size(),
                                value_specific ? c10::ArrayRef<size_t>() : call.scalar_arguments, device);
  if (kernel->plan) ++compiled;
  if (!value_specific && !kernel->value_specific) {
    kernels().add(call.key, kernel);
    return kernel;
  }
  auto marker = std::make_shared<EagerKernel>();
  marker->value_specific = true;
  kernels().add(call.key, std::move(marker));
  kernels().add(call.key_with_scalars(arguments), kernel);
  return kernel;
}

}  // namespace

bool run_eager_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device,
                      std::string& reason) {
  const size_t count = op.schema().arguments().size();
  for (bool resized = false;; resized = true) {
    const auto arguments = torch::jit::last(*stack, count);
    CallSignature call(op, arguments);
    if (!call.complete) return false;
    const KernelPtr kernel = kernel_for(op, arguments, call, device);
    if (!kernel->native || (resized && !kernel->resize.empty())) {
      reason = kernel->reason;
      return false;
    }
    if (kernel->resize.empty()) {
      run(*kernel, call, count, stack, device);
      return true;
    }
    for (const auto& [tensor, size, strides] : kernel->resize) resize_output(*call.tensors[tensor], size, strides);
  }
}

std::map<std::string, int64_t> kernel_counts() {
  return {{"launched", launched}, {"compiled", compiled}, {"kept", static_cast<int64_t>(kernels().size())}};
}

void forget_kernels() { kernels().clear(); }

}  // namespace torch_spyre
