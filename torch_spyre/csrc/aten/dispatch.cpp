// PyTorch calls dispatch_op for every op that has no kernel of its own for this device. Ops with one are registered
// next to it: composite ops (aten/composite/), copies, factories, views. The registrations at the end of this file name
// the ops for which PyTorch would otherwise choose a decomposition of its own.
#include "aten/dispatch.h"

#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <set>
#include <string>

#include "aten/eager_kernels.h"
#include "aten/fallback_policy.h"
#include "aten/host_fallback.h"
#include "aten/op_call.h"
#include "aten/op_listener.h"
#include "aten/sparse_and_nested.h"
#include "runtime/calls/origin.h"
#include "runtime/device/device.h"

namespace torch_spyre {

namespace {

// Copies indices that are on the host to the card.
void move_indices(torch::jit::Stack* stack, size_t arguments, c10::Device device) {
  for (size_t i = 0; i < arguments; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments);
    if (value.isOptionalTensorList())
      value = map_tensors(value,
                          [&](const at::Tensor& index) { return index.device().is_cpu() ? index.to(device) : index; });
  }
}

bool all_strided(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool all = true;
  for (const c10::IValue& argument : torch::jit::last(stack, op.schema().arguments().size()))
    for_each_tensor(argument, [&](const at::Tensor& tensor) { all &= is_strided(tensor); });
  return all;
}

c10::OperatorHandle find_op(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

// PyTorch asks out-of-tree devices for a convolution under names that the host has no kernel for.
void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle op = find_op("aten::convolution");
  dispatch_op(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle op = find_op("aten::convolution_backward");
  // The host's op has one more argument, the size of the bias, after gradient, input and weight.
  const auto first = stack->end() - 10;
  const int64_t channels = first->toTensor().size(1);
  stack->insert(first + 3, c10::IValue(c10::List<int64_t>{channels}));
  dispatch_op(op, stack);
}

}  // namespace

void dispatch_op(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::Device device = device_of_call(op, *stack);
  move_indices(stack, op.schema().arguments().size(), device);
  std::string reason;
  if (all_strided(op, *stack) && run_eager_kernel(op, stack, device, reason)) return;
  if (!reason.empty()) reason.insert(0, " The card: ");
  const std::string name = c10::toString(functional_overload(op.schema()));  // the one that users know
  const OriginScope origin(interned(name));
  const FallbackMode mode = fallback_mode();
  if (mode == FallbackMode::error) refuse_fallback(name, reason);
  TORCH_CHECK(!op.hasTag(at::Tag::dynamic_output_shape) || card(-1).mode() != spyre::Mode::timing, name,
              " gives a result whose shape depends on values, and SPYRE_CARD=timing computes none");
  notify_op_listener(OpEvent::begins, name, nullptr, reason);
  run_on_host(op, stack, device, /*fills_self=*/false, [&] { report_fallback(name, reason, mode); });
  notify_op_listener(OpEvent::ends, name, nullptr, reason);
}

void generate_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_host(op, stack, device_of_call(op, *stack), /*fills_self=*/true, [] {});
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_op>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // PyTorch's decompositions of these use ops that the card does not have.
  for (const char* name : {"addr",
                           "addr.out",
                           "index_put_",
                           "native_layer_norm",
                           "native_group_norm",
                           "_trilinear",
                           "slice_scatter",
                           "select_scatter",
                           "diagonal_scatter",
                           "constant_pad_nd",
                           "as_strided_scatter",
                           "max_pool2d_with_indices",
                           "max_pool2d_with_indices_backward",
                           "cummax",
                           "cummax.out",
                           "cummin",
                           "cummin.out",
                           "logcumsumexp",
                           "logcumsumexp.out",
                           "linspace.out",
                           "eye.out",
                           "eye.m_out",
                           "mode.values"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
  // PyTorch's decompositions of these compute in float64.
  for (const char* name : {"linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_tensor_out", "linalg_matrix_rank.out",
                           "linalg_matrix_rank.tol_tensor", "linalg_matrix_rank.out_tol_tensor",
                           "linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
  for (const char* name :
       {"range.out", "logspace.out", "tril_indices", "triu_indices", "randperm.generator_out", "normal_", "uniform_",
        "random_.from", "random_.to", "bernoulli_.float", "exponential_", "geometric_", "kaiser_window",
        "kaiser_window.periodic", "kaiser_window.beta", "log_normal_", "cauchy_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&generate_on_host>());
}

void register_structured_ops() {
  static torch::Library m = MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1);
  const std::set<std::string> composite = {"aten::abs",        "aten::isinf",       "aten::logical_and",
                                           "aten::logical_or", "aten::logical_not", "aten::logical_xor",
                                           "aten::nan_to_num"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.getNamespace() != "aten" ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    // Indexing has this tag because of masks alone: its overload with `out` knows the shape and runs on the card.
    if (op->hasTag(at::Tag::dynamic_output_shape)) continue;
    const auto& arguments = op->schema().arguments();
    if (std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_out(); }))
      continue;
    // A structured op has a CPU kernel besides the kernel that allocates its results; copies of views have none.
    const bool is_structured = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                               op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (composite.count(name.name) || is_structured)
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
  }
}

}  // namespace torch_spyre
