#include "runtime/device.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "runtime/origin.h"

namespace torch_spyre {

namespace {

constexpr std::pair<at::ScalarType, spyre::HostType> kTypes[] = {
    {at::kHalf, spyre::HostType::F16},
    {at::kBFloat16, spyre::HostType::BF16},
    {at::kFloat, spyre::HostType::F32},
    {at::kFloat8_e4m3fn, spyre::HostType::F8E4M3},
    {at::kFloat8_e5m2, spyre::HostType::F8E5M2},
    {at::kChar, spyre::HostType::I8},
    {at::kShort, spyre::HostType::I16},
    {at::kByte, spyre::HostType::U8},
    {at::kInt, spyre::HostType::I32},
    {at::kLong, spyre::HostType::I64},
    {at::kBool, spyre::HostType::Bool},
};

constexpr int kMostCards = 8;

// A rank's default card is its own; ranks beyond the cards share them.
c10::DeviceIndex first_device() {
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

[[noreturn]] void no_such_card(int index) {
  spyre::Runtime::device_count();  // raises what is wrong with the environment, if that is why
  TORCH_CHECK(false, "invalid device index ", index, ": this process sees ", device_count(),
              " spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which");
}

[[noreturn]] void throw_python_error() {
  python_error raised;
  raised.persist();
  throw raised;
}

// --- interrupts

// What a signal's Python handler raised inside a wait of this thread, until the wait has ended.
thread_local PyObject *raised_type = nullptr, *raised_value = nullptr, *raised_trace = nullptr;

// Runs Python's handlers of signals that have come; true if one raised. In threads other than the main one none run.
bool handlers_raise() {
  if (!Py_IsInitialized()) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  if (raised) PyErr_Fetch(&raised_type, &raised_value, &raised_trace);
  PyGILState_Release(gil);
  return raised;
}

[[noreturn]] void raise_interrupt() {
  pybind11::gil_scoped_acquire gil;
  PyErr_Restore(std::exchange(raised_type, nullptr), std::exchange(raised_value, nullptr),
                std::exchange(raised_trace, nullptr));
  throw_python_error();
}

// A Ctrl-C that comes while no wait is under way: Python raises KeyboardInterrupt by itself, and what was queued before
// is dropped when the card is used next. Its handler is told of the signal as if this one were not here. Who sets a
// handler of their own takes this one out, as they should: whether theirs raises, only they know.
std::atomic<bool> ctrl_c{false};
struct sigaction handler_before{};

void handle_ctrl_c(int signal, siginfo_t* info, void* context) {
  ctrl_c.store(true, std::memory_order_relaxed);
  if (handler_before.sa_flags & SA_SIGINFO)
    handler_before.sa_sigaction(signal, info, context);
  else
    handler_before.sa_handler(signal);
}

bool handled_by_default() {
  const auto signals = pybind11::module_::import("signal");
  return signals.attr("getsignal")(static_cast<int>(SIGINT)).is(signals.attr("default_int_handler"));
}

[[noreturn]] void raise_as_torch(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const spyre::Dropped& e) {
    if (handlers_raise()) raise_interrupt();  // a Ctrl-C that Python has not raised yet is why
    TORCH_CHECK(false, e.what());
  } catch (const spyre::OutOfMemory& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
  } catch (const spyre::IndexRange& e) {
    TORCH_CHECK_INDEX(false, e.what(), text_of(e.origin));
  } catch (const spyre::ValueRange& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::InvalidLayout& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::InvalidProgram& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::Error& e) {
    TORCH_CHECK(false, e.what(), text_of(e.origin));
  } catch (const pybind11::error_already_set& e) {
    // Others may hold the same exception (an event does), and this class can be restored only once.
    pybind11::gil_scoped_acquire gil;
    PyErr_Restore(e.type().inc_ref().ptr(), e.value().inc_ref().ptr(), e.trace().inc_ref().ptr());
    throw_python_error();
  }
}

thread_local c10::DeviceIndex this_device = -1;
thread_local std::array<int, kMostCards> this_stream{};

}  // namespace

bool supported(at::ScalarType dtype) {
  for (const auto& [scalar, host] : kTypes)
    if (scalar == dtype) return true;
  return false;
}

spyre::HostType host_type(at::ScalarType dtype) {
  for (const auto& [scalar, host] : kTypes)
    if (scalar == dtype) return host;
  const char* near = c10::isComplexType(dtype)           ? "torch.complex64"
                     : c10::isIntegralType(dtype, false) ? "torch.int32"
                     : c10::elementSize(dtype) == 1      ? "torch.float8_e4m3fn"
                                                         : "torch.float32";
  TORCH_CHECK_TYPE(false, "Spyre backend does not support dtype ", dtype_name(dtype),
                   ": the card has no such number format. Convert first, for example with .to(", near, ").");
}

std::string dtype_name(at::ScalarType dtype) { return "torch." + std::string(c10::getDtypeNames(dtype).first); }

int device_count() noexcept {
  static const int count = [] {
    try {
      return spyre::Runtime::device_count();
    } catch (const std::exception&) {
      return 0;  // a wrong environment is reported when the card is used
    }
  }();
  return count;
}

c10::DeviceIndex current_device() { return this_device >= 0 ? this_device : first_device(); }

void set_device(c10::DeviceIndex index) {
  if (index < 0) no_such_card(index);
  this_device = resolve(index);
}

c10::DeviceIndex resolve(c10::DeviceIndex index) {
  if (index < 0) index = current_device();
  if (index >= device_count()) [[unlikely]]
    no_such_card(index);
  return index;
}

c10::DeviceIndex resolve(std::optional<c10::Device> device) { return resolve(device ? device->index() : -1); }

int current_stream(c10::DeviceIndex index) { return this_stream[resolve(index)]; }

int exchange_stream(c10::DeviceIndex index, int stream) {
  TORCH_CHECK(stream >= 0 && stream < spyre::kStreams, "stream ", stream, " does not exist: a card has streams 0 to ",
              spyre::kStreams - 1);
  return std::exchange(this_stream[resolve(index)], stream);
}

int new_stream(c10::DeviceIndex index, bool high_priority) {
  static std::array<std::array<std::atomic<uint32_t>, 2>, kMostCards> next{};
  const uint32_t turn = next[resolve(index)][high_priority].fetch_add(1);
  return static_cast<int>((high_priority ? 33 : 1) + turn % 32);
}

spyre::Card& card(c10::DeviceIndex index) {
  spyre::Card& found = spyre::Runtime::get().card(resolve(index));
  // PyTorch skips waits on a device that it has not seen start, and work may be queued before the first tensor.
  static std::atomic<bool> told{false};
  if (!told.load(std::memory_order_relaxed)) [[unlikely]] {
    torch::utils::device_lazy_init(kSpyre);
    told = true;
  }
  if (ctrl_c.load(std::memory_order_relaxed)) [[unlikely]]
    drop_if_interrupted();
  return found;
}

void drop_if_interrupted() {
  if (ctrl_c.exchange(false) && spyre::Runtime::started() && !spyre::Runtime::forked())
    spyre::Runtime::get().engine().drop_all();
}

void waiting(const std::function<void()>& body) {
  PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  std::exception_ptr error;
  bool interrupted = false;
  try {
    body();
  } catch (const spyre::Interrupted&) {
    interrupted = true;
  } catch (...) {
    error = std::current_exception();
  }
  if (released) PyEval_RestoreThread(released);
  if (interrupted) raise_interrupt();
  if (error) raise_as_torch(error);
}

void install_interrupt_check() {
  spyre::Runtime::interrupted = [] {
    const bool raised = handlers_raise();
    if (raised) ctrl_c = false;  // the wait drops what is queued
    return raised;
  };
  watch_ctrl_c();
}

void note_ctrl_c() { ctrl_c.store(true, std::memory_order_relaxed); }

void watch_ctrl_c() {
  struct sigaction now{};
  if (!handled_by_default() || sigaction(SIGINT, nullptr, &now) != 0) return;
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_sigaction == handle_ctrl_c) return;
  handler_before = now;
  struct sigaction chained = now;
  chained.sa_flags |= SA_SIGINFO;
  chained.sa_sigaction = handle_ctrl_c;
  sigaction(SIGINT, &chained, nullptr);
}

bool debugging() {
  static const bool on = [] {
    const char* value = std::getenv("TORCH_SPYRE_DEBUG");
    return value && *value && std::string(value) != "0";
  }();
  return on;
}

void log_line(const std::string& line) {
  static std::mutex mutex;
  static FILE* out = [] {
    const char* path = std::getenv("SPYRE_LOG_FILE");
    FILE* file = path && *path ? std::fopen(path, "a") : nullptr;
    return file ? file : stderr;
  }();
  std::lock_guard lock(mutex);
  std::fprintf(out, "[spyre] %s\n", line.c_str());
  std::fflush(out);
}

}  // namespace torch_spyre
