// The host fallback: an op runs on the CPU, with its arguments copied to the host and its results copied back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace torch_spyre {

// Runs the call; its results take the place of its arguments on the stack. `computed` is called when the host has
// computed the results, before anything on the card changes; it is not called if the op raises. With `fills_self` the
// op does not read its first argument.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, bool fills_self,
                 const std::function<void()>& computed);

}  // namespace torch_spyre
