#include "strict.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "error.h"

namespace spyre {

Shadow::Shadow(uint64_t bytes) : bytes_(bytes) {
  void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    throw ConfigurationError("SPYRE_CARD=strict: no address space for the shadow of device memory; "
                             "SPYRE_MEMORY_GB sets a smaller card");
  marks_ = static_cast<uint8_t*>(range);
}

Shadow::~Shadow() { munmap(marks_, bytes_); }

void Shadow::forget(uint64_t begin, uint64_t bytes) { std::memset(marks_ + begin, 0, bytes); }

void Shadow::wrote(uint64_t at, int64_t bytes) { std::memset(marks_ + at, 1, bytes); }

bool Shadow::written(uint64_t at, int64_t bytes) const {
  return std::all_of(marks_ + at, marks_ + at + bytes, [](uint8_t mark) { return mark != 0; });
}

}  // namespace spyre
