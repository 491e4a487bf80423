// The cards that this process sees, and the current one of each thread.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "card/card.h"

namespace torch_spyre {

constexpr auto kSpyre = c10::DeviceType::PrivateUse1;
constexpr int kMaxCards = 8;

// 0 where the environment is wrong: what is wrong is reported when a card is used.
int device_count() noexcept;
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex index);
// The index of a card; a negative index stands for the current card. Raises for a card that does not exist.
c10::DeviceIndex resolve(c10::DeviceIndex index);
c10::DeviceIndex resolve(std::optional<c10::Device> device);

// The card at an index. Starts the runtime where it has not started, and drops queued work after a Ctrl-C.
spyre::Card& card(c10::DeviceIndex index);

}  // namespace torch_spyre
