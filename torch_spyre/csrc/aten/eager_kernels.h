// Eager ops on the card: one kernel per signature of a call, compiled in Python the first time it is seen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

#include "runtime/device.h"

namespace torch_spyre {

// Runs the call on the card: its results take the place of its arguments on the stack. False, and the stack as it was,
// where there is no kernel for it; `reason` may then say why.
bool run_on_card(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, std::string& reason);

// How often kernels were launched by ops and compiled for them, and how many are kept.
std::map<std::string, int64_t> kernel_counts();
void forget_kernels();

// The functional overload of an op that writes into its arguments ("aten::add.Tensor" of "aten::add.out" and of
// "aten::add_.Tensor"); the op itself where it has none or is one.
c10::OperatorName functional_overload(const c10::FunctionSchema& schema);

// Where an argument of a kernel lies. `offset` counts host elements from the start of the memory; `shared` is the
// position of the first argument in the same memory.
struct Place {
  const spyre::Layout* layout;
  int64_t offset;
  int64_t shared;
};
std::vector<Place> argument_places(const std::vector<at::Tensor>& tensors);

}  // namespace torch_spyre
