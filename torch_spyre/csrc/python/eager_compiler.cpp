#include "python/eager_compiler.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/calls/blocking.h"
#include "runtime/calls/origin.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

// An argument as Python sees it, of the kinds that a signature can hold.
py::object to_python(const c10::IValue& value, c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return py::none();
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? py::cast(tensor.item()) : py::cast(tensor);
  }
  if (value.isNone()) return py::none();
  if (value.isDouble()) return py::cast(value.toDouble());
  if (value.isBool()) return py::cast(value.toBool());
  if (value.isString()) return py::cast(value.toStringRef());
  if (value.isDevice()) return py::cast(value.toDevice());
  if (value.isList()) {
    py::list list;
    for (const c10::IValue& element : value.toListRef()) list.append(to_python(element, type->containedType(0)));
    return list;
  }
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return py::cast(value.toScalarType());
    case c10::TypeKind::MemoryFormatType:
      return py::cast(value.toMemoryFormat());
    case c10::TypeKind::LayoutType:
      return py::cast(value.toLayout());
    default:
      return py::cast(value.toInt());
  }
}

size_t checked_index(size_t index, size_t count, const char* what) {
  TORCH_CHECK_INDEX(index < count, "a kernel names ", what, " ", index, " of ", count);
  return index;
}

// Reads what compile_call returned: a dictionary (EagerKernelDescription of torch_spyre.kernel_types), or the reason
// why there is no kernel.
EagerKernel parse(const py::object& found, size_t tensors, size_t scalars) {
  EagerKernel kernel;
  kernel.value_specific = scalars > 0;
  if (py::isinstance<py::str>(found)) kernel.reason = found.cast<std::string>();
  if (!py::isinstance<py::dict>(found)) return kernel;
  kernel.native = true;
  const auto description = found.cast<py::dict>();
  for (const auto& entry : description["resize"].cast<py::list>()) {
    const auto [tensor, size, strides] = entry.cast<std::tuple<size_t, spyre::Dims, spyre::Dims>>();
    kernel.resize.emplace_back(checked_index(tensor, tensors, "tensor"), size, strides);
  }
  kernel.plan = description["plan"].cast<std::shared_ptr<spyre::JobPlan>>();
  if (!description["runtime_scalars"].is_none()) {
    kernel.value_specific = false;
    for (const auto& entry : description["runtime_scalars"].cast<py::list>()) {
      const auto [index, negated, dtype] = entry.cast<std::tuple<size_t, bool, std::optional<at::ScalarType>>>();
      kernel.runtime_scalars.push_back({checked_index(index, scalars, "scalar"), negated, dtype});
    }
  }
  kernel.arguments = description["arguments"].cast<std::vector<size_t>>();
  for (const size_t argument : kernel.arguments) checked_index(argument, tensors, "tensor");
  for (const auto& entry : description["outputs"].cast<py::list>()) {
    const auto output = entry.cast<py::dict>();
    Output made{output["size"].cast<spyre::Dims>(), output["stride"].cast<spyre::Dims>(),
                output["dtype"].cast<at::ScalarType>(), output["layout"].cast<std::optional<spyre::Layout>>()};
    drop_default_layout(made);
    kernel.outputs.push_back(std::move(made));
  }
  kernel.copies = description["copies"].cast<std::vector<std::pair<size_t, size_t>>>();
  for (const auto& [target, output] : kernel.copies)
    checked_index(target, tensors, "tensor"), checked_index(output, kernel.outputs.size(), "output");
  for (const auto& entry : description["returns"].cast<py::list>()) {
    using From = EagerKernel::Return::From;
    if (entry.is_none()) {
      kernel.returns.push_back({From::nothing, 0});
      continue;
    }
    const auto [from, index] = entry.cast<std::pair<std::string, size_t>>();
    if (from == "argument") {
      kernel.returns.push_back({From::argument, checked_index(index, tensors, "tensor")});
    } else {
      kernel.returns.push_back({From::output, checked_index(index, kernel.outputs.size(), "output")});
    }
  }
  return kernel;
}

}  // namespace

std::shared_ptr<const EagerKernel> compile_eager_kernel(const c10::OperatorHandle& op,
                                                        c10::ArrayRef<c10::IValue> arguments, size_t tensors,
                                                        c10::ArrayRef<size_t> scalar_arguments, c10::Device device) {
  py::gil_scoped_acquire gil;
  const c10::DeviceGuard on(device);
  // Python traces the op as a call from the outside, not from below autograd.
  const c10::impl::ForceDispatchKeyGuard afresh(c10::default_included_set, c10::default_excluded_set);
  const at::DisableRecordFunctionGuard unrecorded;  // a profile counts the ops of the user, not those of the compiler
  try {
    py::list positional;
    py::dict named;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = op.schema().arguments()[i];
      py::object value = to_python(arguments[i], argument.real_type());
      if (argument.kwarg_only()) {
        named[argument.name().c_str()] = value;
      } else {
        positional.append(value);
      }
    }
    const py::object compile_call = py::module_::import("torch_spyre.eager").attr("compile_call");
    const py::object found =
        compile_call(torch::detail::getTorchApiFunction(op), py::tuple(positional), named, scalar_arguments.vec());
    auto kernel = std::make_shared<EagerKernel>(parse(found, tensors, scalar_arguments.size()));
    kernel->op = interned(c10::toString(op.operator_name()));
    return kernel;
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

}  // namespace torch_spyre
