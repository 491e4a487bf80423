// What the files of the PyTorch device share: types, the current device and stream, waiting, and logging.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include "card/card.h"

namespace torch_spyre {

constexpr auto kSpyre = c10::DeviceType::PrivateUse1;

// The host type of a dtype; raises TypeError for those the card lacks.
spyre::HostType host_type(at::ScalarType dtype);
bool supported(at::ScalarType dtype);
// The name that Python users know: "torch.float16".
std::string dtype_name(at::ScalarType dtype);

// Device and stream of the calling thread.
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex index);
// The card that an index means: a negative one means the current card. Raises for one that is not there.
c10::DeviceIndex resolve(c10::DeviceIndex index);
c10::DeviceIndex resolve(std::optional<c10::Device> device);
int current_stream(c10::DeviceIndex index);
int exchange_stream(c10::DeviceIndex index, int stream);
int new_stream(c10::DeviceIndex index, bool high_priority);
int device_count() noexcept;

spyre::Card& card(c10::DeviceIndex index);

// Runs something that may wait for the card: without the GIL, and what a signal's handler raises ends the wait (Ctrl-C:
// KeyboardInterrupt). The card's errors
// become PyTorch's (ValueError, OutOfMemoryError); what a host callback raised is raised as it was.
void waiting(const std::function<void()>& body);
// Lets waits, and whatever uses the card after one, notice Ctrl-C.
void install_interrupt_check();
// Has every Ctrl-C noted while Python's own handler is there; setting that handler anew ends it.
void watch_ctrl_c();
// What is queued is dropped when the card is used next.
void note_ctrl_c();
// Drops what was queued before a Ctrl-C that no wait has noticed.
void drop_if_interrupted();

// TORCH_SPYRE_DEBUG=1
bool debugging();
void log_line(const std::string& line);

}  // namespace torch_spyre
