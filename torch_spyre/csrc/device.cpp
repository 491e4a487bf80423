#include "device.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

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

[[noreturn]] void raise_as_torch(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const spyre::OutOfMemory& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
  } catch (const spyre::IndexRange& e) {
    TORCH_CHECK_INDEX(false, e.what());
  } catch (const spyre::ValueRange& e) {
    TORCH_CHECK_VALUE(false, e.what());
  } catch (const spyre::InvalidLayout& e) {
    TORCH_CHECK_VALUE(false, e.what());
  } catch (const spyre::InvalidProgram& e) {
    TORCH_CHECK_VALUE(false, e.what());
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
  TORCH_CHECK_TYPE(false, "Spyre backend does not support dtype ", dtype_name(dtype),
                   ": the card has no such number format. Convert first, for example with .to(torch.float32) "
                   "or .to(torch.float16).");
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
  return found;
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
  if (interrupted) {
    pybind11::gil_scoped_acquire gil;
    throw_python_error();  // the KeyboardInterrupt that the check below left on this thread
  }
  if (error) raise_as_torch(error);
}

void install_interrupt_check() {
  spyre::Runtime::interrupted = [] {
    if (!Py_IsInitialized()) return false;
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool stop = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    return stop;
  };
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
