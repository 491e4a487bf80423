// The allocators of device memory and of pinned host memory.
#pragma once

#include <c10/core/Allocator.h>

#include "card/card.h"

namespace torch_spyre {

c10::DataPtr allocate(c10::DeviceIndex device, size_t bytes);
// The block behind a data pointer. `own` says whether the device allocator returned the pointer; otherwise it points
// into the memory of another storage.
spyre::Held block_of(const c10::DataPtr& data, bool& own);
c10::Allocator* device_allocator();

c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
// The block of a pinned host tensor; a null block where it is not pinned.
spyre::Held pinned_block(const c10::DataPtr& data);

void register_allocators();

}  // namespace torch_spyre
