#include "device.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>

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

// A rank's default card is its own.
c10::DeviceIndex first_device() {
  static const c10::DeviceIndex index = [] {
    const char* rank = std::getenv("LOCAL_RANK");
    const int count = device_count();
    return static_cast<c10::DeviceIndex>(rank && count > 0 ? std::atoi(rank) % count : 0);
  }();
  return index;
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
  TORCH_CHECK(index >= 0 && index < device_count(), "invalid device index ", static_cast<int>(index),
              ": this process sees ", device_count(), " spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which");
  this_device = index;
}

c10::DeviceIndex resolve(std::optional<c10::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

int current_stream(c10::DeviceIndex index) { return this_stream[index < 0 ? current_device() : index]; }

int exchange_stream(c10::DeviceIndex index, int stream) {
  TORCH_CHECK(stream >= 0 && stream < spyre::kStreams, "spyre has no stream ", stream);
  return std::exchange(this_stream[index < 0 ? current_device() : index], stream);
}

int new_stream(c10::DeviceIndex index, bool high_priority) {
  static std::array<std::array<std::atomic<uint32_t>, 2>, kMostCards> next{};
  const uint32_t turn = next[index < 0 ? current_device() : index][high_priority].fetch_add(1);
  return static_cast<int>((high_priority ? 33 : 1) + turn % 32);
}

spyre::Card& card(c10::DeviceIndex index) { return spyre::Runtime::get().card(index < 0 ? current_device() : index); }

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
    const PyGILState_STATE gil = PyGILState_Ensure();
    python_error raised;
    raised.persist();  // the KeyboardInterrupt that the check below left on this thread
    PyGILState_Release(gil);
    throw raised;
  }
  if (error) std::rethrow_exception(error);
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
