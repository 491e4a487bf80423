#include "aten/op_call.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/device/device.h"

namespace torch_spyre {

namespace {

// Whether an argument may be a tensor on the host: indices, lengths.
bool may_be_on_host(const c10::OperatorHandle& op, const c10::Argument& argument) {
  if (op.operator_name().name == "aten::_pack_padded_sequence") return argument.name() == "lengths";
  const auto* list = argument.type()->castRaw<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

}  // namespace

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

c10::Device device_of_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<c10::Device> found, other;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(stack, i, arguments.size());
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const c10::Device device = tensor.device();
      if (device.type() == kSpyre && (!found || *found == device)) {
        found = device;
      } else if (!device.is_cpu() || is_written(arguments[i]) ||
                 (tensor.dim() > 0 && !may_be_on_host(op, arguments[i]))) {
        other = device;
      }
    });
    if (value.isDevice() && value.toDevice().type() == kSpyre && !found)
      found = c10::Device(kSpyre, resolve(value.toDevice()));
  }
  const c10::Device device = found.value_or(c10::Device(kSpyre, current_device()));
  TORCH_CHECK(!other || found, "a spyre generator cannot draw for a tensor on ", *other,
              "; use a generator of that device (when calling ", op.operator_name(), ")");
  TORCH_CHECK(!other, "Expected all tensors to be on the same device, but found at least two devices, ", device,
              " and ", *other, "! (when calling ", op.operator_name(), ")");
  return device;
}

c10::OperatorName functional_overload(const c10::FunctionSchema& schema) {
  if (!schema.is_mutable()) return schema.operator_name();
  const bool in_place = schema.name().back() == '_';
  std::string name = schema.name();
  if (in_place) name.pop_back();
  std::vector<const c10::Argument*> read;
  for (const c10::Argument& argument : schema.arguments())
    if (in_place || !argument.is_out()) read.push_back(&argument);
  for (const auto& candidate : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    const c10::FunctionSchema& other = candidate->schema();
    if (!other.is_mutable() && std::equal(read.begin(), read.end(), other.arguments().begin(), other.arguments().end(),
                                          [](const c10::Argument* a, const c10::Argument& b) {
                                            return a->name() == b.name() && *a->real_type() == *b.real_type();
                                          }))
      return other.operator_name();
  }
  return schema.operator_name();
}

}  // namespace torch_spyre
