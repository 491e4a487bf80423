#include "fallback.h"

#include <ATen/native/CPUFallback.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <set>

#include "device.h"
#include "generator.h"

namespace torch_spyre {

namespace {

std::mutex mutex;
std::map<std::string, int64_t> counts;
std::set<std::string> warned;
std::atomic<FallbackMode> mode{[] {
  const char* value = std::getenv("TORCH_SPYRE_FALLBACK_WARN");
  return value && std::string(value) == "0" ? FallbackMode::count : FallbackMode::warn;
}()};

void warn(const std::string& op) {
  pybind11::gil_scoped_acquire gil;
  const auto category = pybind11::module_::import("torch_spyre.ops.fallbacks").attr("FallbackWarning");
  const std::string text = op + " has no kernel on the card yet and runs on the CPU: its tensors travel to the host and "
                           "back. torch.spyre.fallback('error') makes this an error, torch.spyre.fallback_counts() counts.";
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) != 0) {
    python_error error;
    error.persist();
    throw error;
  }
}

// Random ops draw on the host, from the CPU generator behind the device's.
void use_host_generators(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& type = arguments[i].type();
    const bool is_generator = type->kind() == c10::TypeKind::GeneratorType ||
                              (type->kind() == c10::TypeKind::OptionalType &&
                               type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType);
    if (!is_generator) continue;
    c10::IValue& value = (*stack)[first + i];
    value = host_generator(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), current_device());
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  use_host_generators(op, stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  const FallbackMode now = mode;
  TORCH_CHECK_NOT_IMPLEMENTED(now != FallbackMode::error, name,
                              " has no kernel on the card yet, and falling back to the CPU is an error now "
                              "(torch.spyre.fallback('warn') allows it)");
  bool first = false;
  {
    std::lock_guard lock(mutex);
    ++counts[name];
    first = now == FallbackMode::warn && warned.insert(name).second;
  }
  if (first) warn(name);
  if (debugging()) log_line("CPU fallback: " + name);
  run_on_host(op, stack);
}

}  // namespace

FallbackMode fallback_mode() { return mode; }
void set_fallback_mode(FallbackMode wanted) { mode = wanted; }

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard lock(mutex);
  return counts;
}

void reset_fallback_counts() {
  std::lock_guard lock(mutex);
  counts.clear();
  warned.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// Factories whose values the host makes: sending them is their job, not a detour.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"arange.start_out", "range.out", "linspace.out", "logspace.out", "eye.out", "eye.m_out", "tril_indices",
        "triu_indices", "randperm.generator_out", "normal_", "uniform_", "random_", "random_.from", "random_.to",
        "bernoulli_.float", "bernoulli_.Tensor", "exponential_", "geometric_", "log_normal_", "cauchy_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace torch_spyre
