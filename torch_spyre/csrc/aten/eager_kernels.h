// Kernels of eager ops on the card: one for each signature of a call, compiled the first time that it is seen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "aten/factories.h"
#include "card/card.h"

namespace torch_spyre {

// A kernel and how to call it. Tensors of a call are those on the card, lists flattened.
struct EagerKernel {
  struct Return {
    enum class From { nothing, argument, output } from;
    size_t index;
  };

  // A scalar of the call that a launch takes, negated and rounded to a dtype as asked.
  struct RuntimeScalar {
    size_t index;
    bool negated;
    std::optional<at::ScalarType> rounded_to;
  };

  bool native = false;
  bool value_specific = false;                 // compiled for the scalar values of its call
  std::string reason;                          // why it is not native
  const std::string* op = nullptr;             // its name, for messages
  std::shared_ptr<const spyre::JobPlan> plan;  // null: nothing to compute, the results are empty
  std::vector<size_t> arguments;               // the launch takes these tensors of the call, then the outputs
  std::vector<Output> outputs;
  std::vector<RuntimeScalar> runtime_scalars;
  std::vector<Return> returns;
  std::vector<std::pair<size_t, size_t>> copies;  // (tensor of the call, output to copy into it afterwards)
  // Tensors of the call to resize, with their strides. The resized call has another signature, and so another kernel.
  std::vector<std::tuple<size_t, spyre::Dims, spyre::Dims>> resize;
};

// Runs the call on the card: its results take the place of its arguments on the stack. Returns false, with the stack as
// it was, where there is no kernel for it; `reason` may then say why.
bool run_eager_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, std::string& reason);

// How many kernels ops have launched and compiled, and how many are kept.
std::map<std::string, int64_t> kernel_counts();
void forget_kernels();

}  // namespace torch_spyre
