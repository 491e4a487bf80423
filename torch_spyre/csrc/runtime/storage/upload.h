// Uploads: copies of host values to a card.
#pragma once

#include <c10/core/Device.h>

#include "card/card.h"

namespace torch_spyre {

// Copies, and warns once in a process where finite bf16 values are outside of the range of the card's 16-bit numbers.
// An upload that is not waited for is checked at a later upload.
void upload(c10::DeviceIndex device, const spyre::DeviceView& to, spyre::HostView from, int stream,
            spyre::Card::Wait wait);

}  // namespace torch_spyre
