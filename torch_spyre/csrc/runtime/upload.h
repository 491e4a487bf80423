// Host values on their way to a card.
#pragma once

#include "runtime/device.h"

namespace torch_spyre {

// Copies, and warns once in a process where finite bf16 values lie outside of the range of the card's 16-bit numbers.
// What is sent without waiting is looked into when something is sent later.
void send(c10::DeviceIndex device, const spyre::DeviceView& to, spyre::HostView from, int stream,
          spyre::Card::Wait wait);

}  // namespace torch_spyre
