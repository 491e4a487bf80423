#include "runtime/calls/logging.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace torch_spyre {

bool logging_enabled() {
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_SPYRE_DEBUG");
    return value && *value && std::string(value) != "0";
  }();
  return enabled;
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
