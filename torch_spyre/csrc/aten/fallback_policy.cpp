#include "aten/fallback_policy.h"

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

#include "runtime/calls/blocking.h"
#include "runtime/calls/logging.h"

namespace torch_spyre {

namespace {

std::mutex mutex;
std::map<std::string, int64_t> counts;
std::set<std::string> warned, refused;
std::atomic<FallbackMode> mode{[] {
  const char* value = std::getenv("TORCH_SPYRE_FALLBACK_WARN");
  return value && std::string(value) == "0" ? FallbackMode::count : FallbackMode::warn;
}()};

void warn(const std::string& op, const std::string& reason) {
  pybind11::gil_scoped_acquire gil;
  const auto category = pybind11::module_::import("torch_spyre.ops.fallbacks").attr("FallbackWarning");
  const std::string text =
      op +
      " has no kernel on the card yet and runs on the CPU: its tensors travel to the host and "
      "back. torch.spyre.fallback('error') makes this an error, torch.spyre.fallback_counts() counts." +
      reason;
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) != 0) throw_python_error();
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
  refused.clear();
}

void refuse_fallback(const std::string& op, const std::string& reason) {
  bool first = false;
  {
    std::lock_guard lock(mutex);
    first = refused.insert(op).second;
  }
  const std::string text = op +
                           " has no kernel on the card yet, and falling back to the CPU is an error now "
                           "(torch.spyre.fallback('warn') allows it)." +
                           reason;
  if (first) tell_listeners("NotImplementedError", text.c_str(), op);
  TORCH_CHECK_NOT_IMPLEMENTED(false, text);
}

void report_fallback(const std::string& op, const std::string& reason, FallbackMode now) {
  bool first = false;
  {
    std::lock_guard lock(mutex);
    first = now == FallbackMode::warn && warned.insert(op).second;
  }
  if (first) {
    try {
      warn(op, reason);
    } catch (...) {  // warnings are errors (python -W error): the op has no effect, and the next call raises too
      std::lock_guard lock(mutex);
      warned.erase(op);
      throw;
    }
  }
  {
    std::lock_guard lock(mutex);
    ++counts[op];
  }
  if (logging_enabled()) log_line("CPU fallback: " + op);
}

}  // namespace torch_spyre
