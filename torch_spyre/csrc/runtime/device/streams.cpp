#include "runtime/device/streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <utility>

#include "runtime/device/device.h"

namespace torch_spyre {

namespace {

thread_local std::array<int, kMaxCards> current{};

}  // namespace

int current_stream(c10::DeviceIndex index) { return current[resolve(index)]; }

int exchange_stream(c10::DeviceIndex index, int stream) {
  TORCH_CHECK(stream >= 0 && stream < spyre::kStreams, "stream ", stream, " does not exist: a card has streams 0 to ",
              spyre::kStreams - 1);
  return std::exchange(current[resolve(index)], stream);
}

int stream_from_pool(c10::DeviceIndex index, bool high_priority) {
  constexpr int kFirstLow = 1, kFirstHigh = 33, kPoolSize = 32;
  static std::array<std::array<std::atomic<uint32_t>, 2>, kMaxCards> taken{};
  const uint32_t before = taken[resolve(index)][high_priority].fetch_add(1);
  return (high_priority ? kFirstHigh : kFirstLow) + static_cast<int>(before % kPoolSize);
}

}  // namespace torch_spyre
