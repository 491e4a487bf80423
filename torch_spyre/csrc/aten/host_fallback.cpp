#include "aten/host_fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <vector>

#include "aten/op_call.h"
#include "aten/resize.h"
#include "aten/sparse_and_nested.h"
#include "runtime/device/device.h"
#include "runtime/device/generator.h"
#include "runtime/device/streams.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

namespace {

bool is_generator(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return is_generator(*optional->getElementType());
  return type.kind() == c10::TypeKind::GeneratorType;
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// An argument for the op's Meta kernel, which finds shapes and dtypes without values.
c10::IValue on_meta(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isDevice()) return c10::Device(at::kMeta);
  if (is_generator(*argument.type())) return {};
  return map_tensors(value, [](const at::Tensor& tensor) { return on_meta(tensor); });
}

// Random ops without a generator argument (dropout) draw from the host's default generator. While one runs, that
// generator has the state of the device's.
class HostSeed {
 public:
  HostSeed(const c10::OperatorHandle& op, c10::DeviceIndex device) {
    const auto& arguments = op.schema().arguments();
    if (!op.hasTag(at::Tag::nondeterministic_seeded) ||
        std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return is_generator(*a.type()); }))
      return;
    device_ = host_generator(std::nullopt, device);
    host_ = at::detail::getDefaultCPUGenerator();
    before_ = host_.get_state();
    host_.set_state(device_.get_state());
  }
  ~HostSeed() {
    if (!host_.defined()) return;
    device_.set_state(host_.get_state());
    host_.set_state(before_);
  }
  HostSeed(const HostSeed&) = delete;
  HostSeed& operator=(const HostSeed&) = delete;

 private:
  at::Generator host_, device_;
  at::Tensor before_;
};

// One call of an op.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, bool fills_self)
      : op_(op), arguments_(op.schema().arguments()), stack_(stack), device_(device), fills_self_(fills_self) {}

  void run(const std::function<void()>& computed) {
    const c10::DeviceGuard guard(device_);
    // The card computes no values in timing mode, so shapes are all there is to find.
    if (card(device_.index()).mode() == spyre::Mode::timing && op_.hasKernelForDispatchKey(c10::DispatchKey::Meta))
      return run_on_shapes(computed);
    const auto given = torch::jit::last(*stack_, arguments_.size()).vec();
    for (size_t i = 0; i < arguments_.size(); ++i) argument(i) = host_argument(i);
    const auto host = torch::jit::last(*stack_, arguments_.size()).vec();
    {
      const HostSeed seed(op_, device_.index());
      compute(host);
    }
    computed();
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (is_written(arguments_[i])) write_back(given[i], host[i]);
    for (size_t i = 0; i < op_.schema().returns().size(); ++i) return_result(i, given);
  }

 private:
  // --- arguments

  c10::IValue& argument(size_t i) { return torch::jit::peek(*stack_, i, arguments_.size()); }

  // Whether the op writes the argument without reading it.
  bool is_only_written(size_t i) const {
    return is_written(arguments_[i]) && (arguments_[i].kwarg_only() || (fills_self_ && i == 0));
  }

  static at::Tensor on_host(const at::Tensor& tensor, bool with_contents) {
    if (tensor.device().is_cpu()) return tensor;
    if (!is_strided(tensor)) return with_components_on(tensor, at::kCPU);
    if (with_contents) return tensor.cpu();
    return at::empty({0}, tensor.options().device(at::kCPU));  // an op resizes an empty output without a warning
  }

  c10::IValue host_argument(size_t i) {
    const c10::IValue& value = argument(i);
    if (value.isDevice()) return c10::Device(at::kCPU);
    // Random ops draw on the host, from the CPU generator behind the device's.
    if (is_generator(*arguments_[i].type()))
      return host_generator(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), device_.index());
    if (fills_self_ && i == 0 && is_only_written(i) && value.isTensor()) {
      // The host draws numbers in the memory order of the elements, which the strides decide.
      const at::Tensor& tensor = value.toTensor();
      return at::empty_strided(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()),
                               tensor.options().device(at::kCPU));
    }
    const bool with_contents = !is_only_written(i);
    return map_tensors(value, [&](const at::Tensor& tensor) { return on_host(tensor, with_contents); });
  }

  // --- values

  // The dispatch keys of a call with these arguments on the host: sparse and nested tensors have keys of their own.
  static c10::DispatchKeySet host_keys(const std::vector<c10::IValue>& arguments) {
    c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    for (const c10::IValue& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_strided(tensor)) return;
        keys = keys.add(tensor.is_nested()   ? c10::DispatchKey::NestedTensorCPU
                        : tensor.is_sparse() ? c10::DispatchKey::SparseCPU
                                             : c10::DispatchKey::SparseCsrCPU);
      });
    return keys;
  }

  void compute(const std::vector<c10::IValue>& host) {
    const c10::DispatchKeySet keys = host_keys(host);
    const size_t below = stack_->size() - host.size();
    std::exception_ptr refusal;
    try {
      op_.redispatchBoxed(keys, stack_);
      return;
    } catch (const c10::NotImplementedError&) {
      refusal = std::current_exception();
      bool halves = false;
      for (const c10::IValue& value : host)
        for_each_tensor(value, [&](const at::Tensor& tensor) { halves |= is_half(tensor.scalar_type()); });
      if (!halves || std::any_of(arguments_.begin(), arguments_.end(), is_written)) throw;
    }
    stack_->resize(below);
    try {
      compute_in_float32(keys, host);
    } catch (const c10::NotImplementedError&) {
      // The op takes no real numbers at all; the first error names the caller's dtype.
      std::rethrow_exception(refusal);
    }
  }

  // For ops without half arithmetic on the host: they compute in fp32, and results that the op gives in halves are
  // rounded.
  void compute_in_float32(c10::DispatchKeySet keys, const std::vector<c10::IValue>& host) {
    const size_t below = stack_->size();
    at::ScalarType narrow = at::kFloat;
    for (const c10::IValue& value : host)
      stack_->push_back(map_tensors(value, [&](const at::Tensor& tensor) {
        if (!is_half(tensor.scalar_type())) return tensor;
        narrow = tensor.scalar_type();
        return tensor.to(at::kFloat);
      }));
    op_.redispatchBoxed(keys, stack_);
    const std::vector<at::ScalarType> dtypes = result_dtypes(host);
    size_t next = 0;
    for (size_t i = below; i < stack_->size(); ++i)
      (*stack_)[i] = map_tensors((*stack_)[i], [&](const at::Tensor& tensor) {
        const at::ScalarType dtype = next < dtypes.size() ? dtypes[next] : narrow;
        ++next;
        return tensor.scalar_type() == at::kFloat && is_half(dtype) ? tensor.to(dtype) : tensor;
      });
  }

  // The dtypes of the op's results for these arguments, lists flattened, as its Meta kernel finds them. Empty where it
  // has none for such a call: then results are taken to have the dtype of the inputs, as those of most ops do.
  std::vector<at::ScalarType> result_dtypes(const std::vector<c10::IValue>& host) const {
    std::vector<at::ScalarType> dtypes;
    if (!op_.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return dtypes;
    try {
      torch::jit::Stack stack;
      for (size_t i = 0; i < host.size(); ++i) stack.push_back(on_meta(host[i], arguments_[i]));
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
      for (const c10::IValue& result : stack)
        for_each_tensor(result, [&](const at::Tensor& tensor) { dtypes.push_back(tensor.scalar_type()); });
    } catch (const c10::Error&) {
      dtypes.clear();
    } catch (const pybind11::error_already_set& error) {  // of a Meta kernel in Python; KeyboardInterrupt is no refusal
      const pybind11::gil_scoped_acquire gil;
      if (!error.matches(PyExc_Exception)) throw;
      dtypes.clear();
    } catch (const python_error& error) {
      const pybind11::gil_scoped_acquire gil;
      if (!PyErr_GivenExceptionMatches(error.type, PyExc_Exception)) throw;
      dtypes.clear();
    }
    return dtypes;
  }

  // --- shapes alone, in timing mode

  // Queues the transfer of a tensor that is read or written without its values: it takes its modelled time.
  static void model_transfer(const at::Tensor& tensor, bool to_card) {
    if (tensor.device().type() != kSpyre || tensor.numel() == 0) return;
    const spyre::DeviceView view = device_view(tensor);
    const spyre::HostView nothing{nullptr, view.type, view.size, view.strides, {}};
    const auto index = tensor.device().index();
    to_card ? card(index).to_card(view, nothing, current_stream(index), spyre::Card::Wait::no)
            : card(index).to_host(nothing, view, current_stream(index), spyre::Card::Wait::no);
  }

  void run_on_shapes(const std::function<void()>& computed) {
    const auto given = torch::jit::last(*stack_, arguments_.size()).vec();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_only_written(i))
        for_each_tensor(given[i], [](const at::Tensor& tensor) { model_transfer(tensor, /*to_card=*/false); });
      argument(i) = on_meta(argument(i), arguments_[i]);
    }
    const auto shapes = torch::jit::last(*stack_, arguments_.size()).vec();
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack_);
    computed();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(arguments_[i])) continue;
      std::vector<at::Tensor> to, from;
      for_each_tensor(given[i], [&](const at::Tensor& tensor) { to.push_back(tensor); });
      for_each_tensor(shapes[i], [&](const at::Tensor& tensor) { from.push_back(tensor); });
      for (size_t k = 0; k < to.size(); ++k) {
        if (to[k].sizes() != from[k].sizes()) to[k].resize_(from[k].sizes());
        model_transfer(to[k], /*to_card=*/true);
      }
    }
    for (size_t i = 0; i < op_.schema().returns().size(); ++i) return_result(i, given);
  }

  // --- results

  void write_back(const c10::IValue& device, const c10::IValue& host) {
    std::vector<at::Tensor> to, from;
    for_each_tensor(device, [&](const at::Tensor& tensor) { to.push_back(tensor); });
    for_each_tensor(host, [&](const at::Tensor& tensor) { from.push_back(tensor); });
    for (size_t i = 0; i < to.size(); ++i) {
      if (!is_strided(to[i])) {
        replace_components(to[i], from[i]);
        continue;
      }
      resize_output(to[i], from[i].sizes());
      to[i].copy_(from[i]);
    }
  }

  // A result on the card: with the host's values, or in timing mode without values.
  at::Tensor on_card(const at::Tensor& result) const {
    if (!is_strided(result)) return with_components_on(result, device_);
    if (!result.is_meta()) return result.to(device_);
    at::Tensor made = at::empty_strided(result.sizes(), result.strides(), result.options().device(device_));
    model_transfer(made, /*to_card=*/true);
    return made;
  }

  void return_result(size_t i, const std::vector<c10::IValue>& given) {
    const c10::Argument& result = op_.schema().returns()[i];
    c10::IValue& value = torch::jit::peek(*stack_, i, op_.schema().returns().size());
    if (const c10::AliasInfo* alias = result.alias_info()) {
      TORCH_CHECK_NOT_IMPLEMENTED(alias->isWrite(), op_.operator_name(),
                                  " gives a view of its input, which the host cannot make of memory on the card");
      for (size_t k = 0; k < arguments_.size(); ++k)
        if (is_written(arguments_[k]) && *arguments_[k].alias_info() == *alias) value = given[k];
    } else {
      value = map_tensors(value, [&](const at::Tensor& tensor) { return on_card(tensor); });
    }
  }

  const c10::OperatorHandle& op_;
  const std::vector<c10::Argument>& arguments_;
  torch::jit::Stack* stack_;
  const c10::Device device_;
  const bool fills_self_;
};

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, bool fills_self,
                 const std::function<void()>& computed) {
  HostCall(op, stack, device, fills_self).run(computed);
}

}  // namespace torch_spyre
