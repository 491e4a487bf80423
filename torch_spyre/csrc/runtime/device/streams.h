// Streams of the calling thread: one current stream for each card.
#pragma once

#include <c10/core/Device.h>

namespace torch_spyre {

int current_stream(c10::DeviceIndex index);
// Sets the current stream and returns the former one. Raises for a stream that does not exist.
int exchange_stream(c10::DeviceIndex index, int stream);
// A stream of the low or the high priority pool, round robin.
int stream_from_pool(c10::DeviceIndex index, bool high_priority);

}  // namespace torch_spyre
