#include "card/memory/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "card/error.h"

namespace spyre {

namespace {

std::mutex shadows_mutex;
std::vector<std::pair<const Memory*, Shadow*>> shadows;

}  // namespace

Shadow::Shadow(const Memory& memory) : memory_(memory), bytes_(memory.capacity()) {
  void* range = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    throw ConfigurationError(
        "SPYRE_CARD=strict: no address space for the shadow of device memory; SPYRE_MEMORY_GB sets a smaller card");
  marks_ = static_cast<uint8_t*>(range);
  std::lock_guard lock(shadows_mutex);
  shadows.emplace_back(&memory, this);
}

Shadow::~Shadow() {
  {
    std::lock_guard lock(shadows_mutex);
    std::erase(shadows, std::pair{&memory_, this});
  }
  munmap(marks_, bytes_);
}

Shadow* Shadow::of(const Memory* memory) {
  std::lock_guard lock(shadows_mutex);
  const auto found = std::find_if(shadows.begin(), shadows.end(), [&](const auto& s) { return s.first == memory; });
  return found == shadows.end() ? nullptr : found->second;
}

void Shadow::forget(const Block& block) {
  // Whole pages are given back instead of written: gigabytes would take seconds, and memory.
  constexpr uint64_t kPage = 4096;
  const uint64_t end = block.offset + block.bytes, from = (block.offset + kPage - 1) / kPage * kPage,
                 to = end / kPage * kPage;
  if (from >= to || madvise(marks_ + from, to - from, MADV_DONTNEED) != 0)
    return void(std::memset(marks_ + block.offset, 0, block.bytes));
  std::memset(marks_ + block.offset, 0, from - block.offset);
  std::memset(marks_ + to, 0, end - to);
}

void Shadow::wrote(const Block& block, int64_t offset, int64_t bytes) {
  std::memset(marks_ + block.offset + offset, 1, bytes);
}

void Shadow::wrote(const Block& block, const Nest& nest, int side, int64_t element_bytes) {
  for_each_element(nest, side, element_bytes, [&](int64_t at) { wrote(block, at, element_bytes); });
}

int64_t Shadow::unwritten(const Block& block, const Nest& nest, int side, int64_t element_bytes) const {
  int64_t first = -1;
  const uint8_t* marks = marks_ + block.offset;
  for_each_element(nest, side, element_bytes, [&](int64_t at) {
    if (first < 0 && !std::all_of(marks + at, marks + at + element_bytes, std::identity{})) first = at;
  });
  return first;
}

}  // namespace spyre
