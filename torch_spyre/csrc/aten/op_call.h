// Calls of ops as the dispatcher passes them: a schema, and arguments on a stack.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_spyre {

// The card of a call. Raises, as CUDA does, where its tensors are on several devices; 0-dim CPU tensors, which are
// numbers, and indices may be on the host.
c10::Device device_of_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

bool is_written(const c10::Argument& argument);

// The functional overload of an op that writes into its arguments ("aten::add.Tensor" of "aten::add.out" and of
// "aten::add_.Tensor"); the op itself where it has none or is one.
c10::OperatorName functional_overload(const c10::FunctionSchema& schema);

// Calls `body` with each defined tensor of a value, lists flattened.
template <typename Body>
void for_each_tensor(const c10::IValue& value, const Body& body) {
  if (value.isTensor() && value.toTensor().defined()) body(value.toTensor());
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, body);
}

// The value with each defined tensor in it replaced by `change` of it.
template <typename Change>
c10::IValue map_tensors(const c10::IValue& value, const Change& change) {
  const auto changed = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(changed(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(changed(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

}  // namespace torch_spyre
