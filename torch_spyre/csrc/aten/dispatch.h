// The decision between the card and the host for each call of an op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_spyre {

// Runs a call with an eager kernel on the card or, where there is none, on the host.
void dispatch_op(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Runs factories and ops that fill self without reading it: the host makes their values, and sending them to the card
// is no fallback.
void generate_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers dispatch_op for structured ops and others that PyTorch composes in the same way. It would allocate their
// results in the host's memory format and then ask for the overload with `out`, or take two steps where the card has
// one; and a profiler would see two ops. Call it last: it leaves ops alone that have a kernel for the device.
void register_structured_ops();

}  // namespace torch_spyre
