#include "eager.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/DynamicCast.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <list>
#include <mutex>
#include <unordered_map>

#include "factories.h"
#include "fallback.h"
#include "jobplan.h"
#include "numbers.h"
#include "origin.h"
#include "storage.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

// --- signatures

void put(std::string& key, const void* bytes, size_t count) { key.append(static_cast<const char*>(bytes), count); }
void put(std::string& key, int64_t number) { put(key, &number, sizeof number); }
void put(std::string& key, c10::IntArrayRef numbers) { put(key, numbers.data(), numbers.size() * sizeof(int64_t)); }
void put(std::string& key, const std::string& text) {
  put(key, static_cast<int64_t>(text.size()));
  key += text;
}
void put(std::string& key, const spyre::Layout& layout) {
  const char kind[] = {static_cast<char>(layout.format), static_cast<char>(layout.arrangement),
                       static_cast<char>(layout.device_size.size())};
  put(key, kind, sizeof kind);
  put(key, c10::IntArrayRef(layout.device_size));
  put(key, c10::IntArrayRef(layout.stride_map));
}

// An argument that is a number, and no flag or size.
std::optional<double> number_in(const c10::IValue& value, c10::TypePtr type) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.dim() > 0 || tensor.is_conj() || tensor.is_neg() ||
        tensor.is_complex() || tensor.scalar_type() == at::kBool)
      return std::nullopt;
    return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
  }
  if (value.isDouble()) return value.toDouble();
  if (!value.isInt()) return std::nullopt;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::NumberType ? std::optional<double>(value.toInt()) : std::nullopt;
}

bool is_default(const c10::Argument& argument, double number) {
  const std::optional<c10::IValue>& value = argument.default_value();
  return value && value->isScalar() && value->toScalar().toDouble() == number;
}

// The largest number of a dtype that has infinities or NaN past it.
double largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

// Everything about a call that its kernel depends on, as bytes; but for numbers, which kernels may leave to launches.
// The default of an argument is no such number: it stands for a simpler op. Nor is NaN, nor one that the dtype of a
// tensor of the call has no room above for: ops differ in what they make of it.
class Signature {
 public:
  Signature(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
    key.reserve(1024);
    put(key, op.operator_name().name);
    put(key, op.operator_name().overload_name);
    const std::vector<c10::Argument>& schema = op.schema().arguments();
    for (size_t i = 0; complete && i < arguments.size(); ++i) {
      const auto number = number_in(arguments[i], schema[i].real_type());
      if (number && !is_default(schema[i], *number) && (std::fabs(*number) < limit_ || std::isinf(*number))) {
        add_number(arguments[i]);
        open.push_back(i);
        numbers.push_back(*number);
      } else {
        complete = add(arguments[i]);
      }
    }
  }

  // For kernels that were compiled for the numbers of a call.
  std::string key_with_numbers(c10::ArrayRef<c10::IValue> arguments) const {
    Signature rest(key);
    for (const size_t i : open) rest.add(arguments[i]);
    return std::move(rest.key);
  }

  std::string key;
  c10::SmallVector<const at::Tensor*, 8> tensors;  // those on the card, lists flattened
  c10::SmallVector<size_t, 4> open;                // arguments whose values are not in the key,
  c10::SmallVector<double, 4> numbers;             // and their values
  bool complete = true;                            // false: an argument that no kernel can take

 private:
  explicit Signature(std::string from) : key(std::move(from)) {}

  void add_number(const c10::IValue& value) {
    if (value.isTensor()) {
      key += 'N';
      key += static_cast<char>(value.toTensor().scalar_type());
      key += static_cast<char>(value.toTensor().unsafeGetTensorImpl()->is_wrapped_number());
    } else {
      key += value.isInt() ? 'I' : 'R';
    }
  }

  bool add(const c10::IValue& value) {
    if (value.isTensor()) return add(value.toTensor());
    if (value.isNone()) {
      key += 'n';
    } else if (value.isInt()) {
      key += 'i';
      put(key, value.toInt());
    } else if (value.isDouble()) {
      const double number = value.toDouble();
      key += 'd';
      put(key, &number, sizeof number);
    } else if (value.isBool()) {
      key += value.toBool() ? 'T' : 'F';
    } else if (value.isString()) {
      key += 's';
      put(key, value.toStringRef());
    } else if (value.isDevice()) {
      key += 'D';
      key += static_cast<char>(value.toDevice().type());
      key += static_cast<char>(value.toDevice().index());
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      key += 'l';
      put(key, static_cast<int64_t>(elements.size()));
      for (const c10::IValue& element : elements)
        if (!add(element)) return false;
    } else {
      return false;  // generators, symbolic numbers, complex ones
    }
    return true;
  }

  bool add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      key += 'u';
      return true;
    }
    const bool number = tensor.device().is_cpu();
    key += number ? 'c' : 't';
    key += static_cast<char>(tensor.scalar_type());
    if (number) {  // a constant of the kernel
      if (tensor.dim() > 0 || tensor.is_conj() || tensor.is_neg()) return false;
      key += static_cast<char>(tensor.unsafeGetTensorImpl()->is_wrapped_number());
      put(key, tensor.const_data_ptr(), tensor.element_size());
      return true;
    }
    SpyreStorageImpl& storage = storage_of(tensor);
    // Host bytes, and memory that was freed: the way over the host tells what is wrong with them.
    if (storage.untyped || storage.dtype != tensor.scalar_type() || (!storage.alive() && tensor.numel() != 0) ||
        (storage.dtype == at::kByte && byte_window(tensor)))
      return false;
    key += static_cast<char>(tensor.dim());
    put(key, tensor.sizes());
    put(key, tensor.strides());
    put(key, tensor.storage_offset() + storage.origin);
    blocks_.push_back(storage.held().block);
    put(key, std::find(blocks_.begin(), blocks_.end(), blocks_.back()) - blocks_.begin());
    put(key, storage.layout());
    tensors.push_back(&tensor);
    limit_ = std::min(limit_, largest(tensor.scalar_type()));
    return true;
  }

  double limit_ = std::numeric_limits<double>::max();  // of numbers whose values are not in the key
  c10::SmallVector<const spyre::Block*, 8> blocks_;    // of `tensors`
};

// --- kernels

struct Kernel {
  struct Return {
    enum class From { nothing, argument, output } from;
    size_t index;
  };

  // A number for the launch: one of the call's, with another sign, rounded as a tensor of a dtype would be.
  struct Number {
    size_t index;
    bool negated;
    std::optional<at::ScalarType> kept_as;
  };

  bool native = false;
  bool specific = false;                       // compiled for the numbers of its call; in general there is none
  std::string reason;                          // why it is not native
  const std::string* op = nullptr;             // its name, for messages
  std::shared_ptr<const spyre::JobPlan> plan;  // null: nothing to compute, the results are empty
  std::vector<size_t> arguments;               // the launch takes these tensors of the call, then the outputs
  std::vector<Output> outputs;
  std::vector<Number> numbers;
  std::vector<Return> returns;
  std::vector<std::pair<size_t, size_t>> copies;  // (tensor of the call, output copied into it afterwards)
  std::vector<std::tuple<size_t, spyre::Dims, spyre::Dims>>
      resize;  // tensors of the call to resize, with strides; then the call has another kernel
};
using KernelPtr = std::shared_ptr<const Kernel>;

// The kernels used last, by signature. Kernels are let go outside the lock: a plan may hold Python objects, and who
// waits for the GIL must not hold anything that its holder may wait for.
class Kernels {
 public:
  KernelPtr find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->second;
  }

  void add(std::string key, KernelPtr kernel) {
    Order dropped;
    const std::lock_guard lock(mutex_);  // released before `dropped`
    if (by_key_.count(key)) return;      // another thread was first
    order_.emplace_front(std::move(key), std::move(kernel));
    by_key_.emplace(order_.front().first, order_.begin());
    if (order_.size() <= kMost) return;
    by_key_.erase(order_.back().first);
    dropped.splice(dropped.begin(), order_, std::prev(order_.end()));
  }

  void clear() {
    Order dropped;
    const std::lock_guard lock(mutex_);
    by_key_.clear();
    dropped.swap(order_);
  }

  size_t size() {
    const std::lock_guard lock(mutex_);
    return order_.size();
  }

 private:
  static constexpr size_t kMost = 4096;
  using Order = std::list<std::pair<std::string, KernelPtr>>;
  std::mutex mutex_;
  Order order_;  // the one used last comes first
  std::unordered_map<std::string_view, Order::iterator> by_key_;
};

Kernels& kernels() {
  static auto* all = new Kernels;  // outlives the interpreter, whose objects plans may hold
  return *all;
}
std::atomic<int64_t> launched{0}, compiled{0};

// --- compiling

// What a signature can hold, as Python sees it.
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

Kernel parse(const py::object& found, size_t tensors, size_t numbers) {
  Kernel kernel;
  kernel.specific = numbers > 0;
  const auto inside = [](size_t index, size_t count, const char* what) {
    TORCH_CHECK_INDEX(index < count, "a kernel names ", what, " ", index, " of ", count);
    return index;
  };
  if (py::isinstance<py::str>(found)) kernel.reason = found.cast<std::string>();
  if (!py::isinstance<py::dict>(found)) return kernel;
  kernel.native = true;
  const auto description = found.cast<py::dict>();
  for (const auto& entry : description["resize"].cast<py::list>()) {
    const auto [tensor, size, strides] = entry.cast<std::tuple<size_t, spyre::Dims, spyre::Dims>>();
    kernel.resize.emplace_back(inside(tensor, tensors, "tensor"), size, strides);
  }
  kernel.plan = description["plan"].cast<std::shared_ptr<spyre::JobPlan>>();
  if (!description["numbers"].is_none()) {
    kernel.specific = false;
    for (const auto& entry : description["numbers"].cast<py::list>()) {
      const auto [index, negated, dtype] = entry.cast<std::tuple<size_t, bool, std::optional<at::ScalarType>>>();
      kernel.numbers.push_back({inside(index, numbers, "number"), negated, dtype});
    }
  }
  kernel.arguments = description["arguments"].cast<std::vector<size_t>>();
  for (const size_t argument : kernel.arguments) inside(argument, tensors, "tensor");
  for (const auto& entry : description["outputs"].cast<py::list>()) {
    const auto output = entry.cast<py::dict>();
    Output made{output["size"].cast<spyre::Dims>(), output["stride"].cast<spyre::Dims>(),
                output["dtype"].cast<at::ScalarType>(), output["layout"].cast<std::optional<spyre::Layout>>()};
    drop_default_layout(made);
    kernel.outputs.push_back(std::move(made));
  }
  kernel.copies = description["copies"].cast<std::vector<std::pair<size_t, size_t>>>();
  for (const auto& [target, output] : kernel.copies)
    inside(target, tensors, "tensor"), inside(output, kernel.outputs.size(), "output");
  for (const auto& entry : description["returns"].cast<py::list>()) {
    using From = Kernel::Return::From;
    if (entry.is_none()) {
      kernel.returns.push_back({From::nothing, 0});
      continue;
    }
    const auto [from, index] = entry.cast<std::pair<std::string, size_t>>();
    if (from == "argument") {
      kernel.returns.push_back({From::argument, inside(index, tensors, "tensor")});
    } else {
      kernel.returns.push_back({From::output, inside(index, kernel.outputs.size(), "output")});
    }
  }
  return kernel;
}

// `open`: arguments whose numbers the kernel may leave to its launches.
KernelPtr compile(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, size_t tensors,
                  c10::ArrayRef<size_t> open, c10::Device device) {
  py::gil_scoped_acquire gil;
  const c10::DeviceGuard on(device);
  // Python traces the op as if called afresh, not from below autograd.
  const c10::impl::ForceDispatchKeyGuard afresh(c10::default_included_set, c10::default_excluded_set);
  const at::DisableRecordFunctionGuard unrecorded;  // a profile counts the user's ops, not the compiler's
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
    const py::object compile_call = py::module_::import("torch_spyre.ops.eager").attr("compile_call");
    const py::object found =
        compile_call(torch::detail::getTorchApiFunction(op), py::tuple(positional), named, open.vec());
    auto kernel = std::make_shared<Kernel>(parse(found, tensors, open.size()));
    kernel->op = interned(c10::toString(op.operator_name()));
    if (kernel->plan) ++compiled;
    return kernel;
  } catch (py::error_already_set& error) {
    error.restore();
    python_error raised;
    raised.persist();
    throw raised;
  }
}

// --- running

void run(const Kernel& kernel, const Signature& call, size_t arguments, torch::jit::Stack* stack, c10::Device device) {
  const OriginScope origin(kernel.op);
  c10::SmallVector<at::Tensor, 4> outputs;
  for (const Output& output : kernel.outputs) outputs.push_back(empty_output(output, device.index()));
  if (kernel.plan) {
    std::vector<double> numbers;
    for (const Kernel::Number& number : kernel.numbers) {
      const double value = number.negated ? -call.numbers[number.index] : call.numbers[number.index];
      numbers.push_back(number.kept_as ? as_kept(value, *number.kept_as) : value);
    }
    c10::SmallVector<const at::Tensor*, 8> tensors;
    for (const size_t i : kernel.arguments) tensors.push_back(call.tensors[i]);
    for (const at::Tensor& output : outputs) tensors.push_back(&output);
    launch_jobplan(kernel.plan, tensors, numbers);
    launched.fetch_add(1, std::memory_order_relaxed);
  }
  for (const auto& [target, source] : kernel.copies) call.tensors[target]->copy_(outputs[source]);
  c10::SmallVector<c10::IValue, 4> results;
  for (const Kernel::Return& result : kernel.returns) {
    using From = Kernel::Return::From;
    results.emplace_back(result.from == From::argument ? *call.tensors[result.index]
                         : result.from == From::output ? outputs[result.index]
                                                       : at::Tensor());
  }
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// The kernel for a call, compiled if it is the first of its kind.
KernelPtr kernel_for(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, const Signature& call,
                     c10::Device device) {
  KernelPtr kernel = kernels().find(call.key);
  const bool specific = kernel && kernel->specific;
  if (specific) kernel = kernels().find(call.key_with_numbers(arguments));
  if (kernel) return kernel;
  kernel = compile(op, arguments, call.tensors.size(), specific ? c10::ArrayRef<size_t>() : call.open, device);
  if (!specific && !kernel->specific) {
    kernels().add(call.key, kernel);
    return kernel;
  }
  auto marker = std::make_shared<Kernel>();
  marker->specific = true;
  kernels().add(call.key, std::move(marker));
  kernels().add(call.key_with_numbers(arguments), kernel);
  return kernel;
}

}  // namespace

bool run_on_card(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, std::string& reason) {
  const size_t count = op.schema().arguments().size();
  for (bool resized = false;; resized = true) {
    const auto arguments = torch::jit::last(*stack, count);
    Signature call(op, arguments);
    if (!call.complete) return false;
    const KernelPtr kernel = kernel_for(op, arguments, call, device);
    if (!kernel->native || (resized && !kernel->resize.empty())) {
      reason = kernel->reason;
      return false;
    }
    if (kernel->resize.empty()) {
      run(*kernel, call, count, stack, device);
      return true;
    }
    for (const auto& [tensor, size, strides] : kernel->resize) fit_output(*call.tensors[tensor], size, strides);
  }
}

std::map<std::string, int64_t> kernel_counts() {
  return {{"launched", launched}, {"compiled", compiled}, {"kept", static_cast<int64_t>(kernels().size())}};
}

void forget_kernels() { kernels().clear(); }

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

std::vector<Place> argument_places(const std::vector<at::Tensor>& tensors) {
  std::vector<Place> places;
  places.reserve(tensors.size());
  std::vector<std::pair<const void*, int64_t>> blocks;  // with positions: sorted, those of a block begin with its first
  blocks.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    SpyreStorageImpl& storage = storage_of(tensor);
    const auto position = static_cast<int64_t>(places.size());
    blocks.emplace_back(storage.held().block, position);
    places.push_back({&storage.layout(), tensor.storage_offset() + storage.origin, position});
  }
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i)
    if (blocks[i].first == blocks[i - 1].first) places[blocks[i].second].shared = places[blocks[i - 1].second].shared;
  return places;
}

}  // namespace torch_spyre
