#include "aten/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>

#include "aten/eager_kernels.h"
#include "aten/sparse_and_nested.h"
#include "runtime/device.h"
#include "runtime/generator.h"
#include "runtime/origin.h"
#include "runtime/storage.h"

namespace torch_spyre {

namespace {

std::mutex mutex;
std::map<std::string, int64_t> counts;
std::set<std::string> warned;
std::atomic<FallbackMode> mode{[] {
  const char* value = std::getenv("TORCH_SPYRE_FALLBACK_WARN");
  return value && std::string(value) == "0" ? FallbackMode::count : FallbackMode::warn;
}()};

void warn(const std::string& op, const std::string& reason) {
  pybind11::gil_scoped_acquire gil;
  const auto category = pybind11::module_::import("torch_spyre.ops.fallbacks").attr("FallbackWarning");
  const std::string text =
      op +
      " has no kernel on the card yet and runs on the CPU: its tensors travel to the host and "
      "back. torch.spyre.fallback('error') makes this an error, torch.spyre.fallback_counts() counts." +
      reason;
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) != 0) {
    python_error error;
    error.persist();
    throw error;
  }
}

// An op has run on the host.
void tell(const std::string& name, const std::string& reason, FallbackMode now) {
  bool first = false;
  {
    std::lock_guard lock(mutex);
    first = now == FallbackMode::warn && warned.insert(name).second;
  }
  if (first) {
    try {
      warn(name, reason);
    } catch (...) {  // warnings are errors (python -W error): the op has no effect, and the next call has none either
      std::lock_guard lock(mutex);
      warned.erase(name);
      throw;
    }
  }
  {
    std::lock_guard lock(mutex);
    ++counts[name];
  }
  if (debugging()) log_line("CPU fallback: " + name);
}

bool is_generator(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return is_generator(*optional->getElementType());
  return type.kind() == c10::TypeKind::GeneratorType;
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// Random ops that take no generator (dropout) draw from the host's default one: while they run, it is the device's.
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

template <typename Body>
void for_each_tensor(const c10::IValue& value, const Body& body) {
  if (value.isTensor() && value.toTensor().defined()) body(value.toTensor());
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, body);
}

// Arguments that may be tensors on the host: indices, lengths.
bool may_stay(const c10::OperatorHandle& op, const c10::Argument& argument) {
  if (op.operator_name().name == "aten::_pack_padded_sequence") return argument.name() == "lengths";
  const auto* list = argument.type()->castRaw<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

// The card of the call; raises, as CUDA does, where its tensors are on several devices. Numbers (0-dim CPU tensors)
// may come along, and so may indices.
c10::Device find_device(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::optional<c10::Device> found, stranger;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(stack, i, arguments.size());
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const c10::Device device = tensor.device();
      if (device.type() == kSpyre && (!found || *found == device)) {
        found = device;
      } else if (!device.is_cpu() || is_written(arguments[i]) || (tensor.dim() > 0 && !may_stay(op, arguments[i]))) {
        stranger = device;
      }
    });
    if (value.isDevice() && value.toDevice().type() == kSpyre && !found)
      found = c10::Device(kSpyre, resolve(value.toDevice()));
  }
  const c10::Device device = found.value_or(c10::Device(kSpyre, current_device()));
  TORCH_CHECK(!stranger || found, "a spyre generator cannot draw for a tensor on ", *stranger,
              "; use a generator of that device (when calling ", op.operator_name(), ")");
  TORCH_CHECK(!stranger, "Expected all tensors to be on the same device, but found at least two devices, ", device,
              " and ", *stranger, "! (when calling ", op.operator_name(), ")");
  return device;
}

// One call of an op, its arguments taken to the host and its results back.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, bool fills_self)
      : op_(op), arguments_(op.schema().arguments()), stack_(stack), device_(device), fills_self_(fills_self) {}

  // `computed` is called when the host has computed the results, before anything on the card changes: not if the op is
  // an error.
  template <typename Computed>
  void run(const Computed& computed) {
    const c10::DeviceGuard guard(device_);
    // Where no values are computed, shapes are all there is to find out.
    if (card(device_.index()).mode() == spyre::Mode::timing && op_.hasKernelForDispatchKey(c10::DispatchKey::Meta))
      return run_on_shapes(computed);
    const auto given = torch::jit::last(*stack_, arguments_.size()).vec();
    for (size_t i = 0; i < arguments_.size(); ++i) take(i);
    const auto host = torch::jit::last(*stack_, arguments_.size()).vec();
    {
      const HostSeed seed(op_, device_.index());
      compute(host);
    }
    computed();
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (is_written(arguments_[i])) write_back(given[i], host[i]);
    for (size_t i = 0; i < op_.schema().returns().size(); ++i) give(i, given);
  }

 private:
  // What dispatches a call with these arguments on the host: sparse and nested tensors have keys of their own.
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

  // Some ops of the host have no halves: they are given fp32, and what they compute is rounded.
  void compute(const std::vector<c10::IValue>& host) {
    const size_t below = stack_->size() - host.size();
    const c10::DispatchKeySet keys = host_keys(host);
    at::ScalarType narrow = at::kFloat;
    std::exception_ptr refusal;
    try {
      op_.redispatchBoxed(keys, stack_);
      return;
    } catch (const c10::NotImplementedError&) {
      refusal = std::current_exception();
      for (const c10::IValue& value : host)
        for_each_tensor(value, [&](const at::Tensor& tensor) {
          if (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16) narrow = tensor.scalar_type();
        });
      if (narrow == at::kFloat || std::any_of(arguments_.begin(), arguments_.end(), is_written)) throw;
    }
    stack_->resize(below);
    for (const c10::IValue& value : host) stack_->push_back(with_dtype(value, narrow, at::kFloat));
    try {
      op_.redispatchBoxed(keys, stack_);
    } catch (const c10::NotImplementedError&) {  // of no real numbers at all: the error names the caller's dtype
      std::rethrow_exception(refusal);
    }
    for (size_t i = below; i < stack_->size(); ++i) (*stack_)[i] = with_dtype((*stack_)[i], at::kFloat, narrow);
  }

  static c10::IValue with_dtype(const c10::IValue& value, at::ScalarType from, at::ScalarType to) {
    const auto changed = [&](const at::Tensor& x) { return x.defined() && x.scalar_type() == from ? x.to(to) : x; };
    if (value.isTensor()) return changed(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(changed(tensor));
    return list;
  }

  static at::Tensor shape_of(const at::Tensor& tensor) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }

  // The transfers of a tensor that is read or written, without its values: they take their modelled time.
  static void charge(const at::Tensor& tensor, bool to_card) {
    if (tensor.device().type() != kSpyre || tensor.numel() == 0) return;
    const spyre::DeviceView view = device_view(tensor);
    const spyre::HostView nothing{nullptr, view.type, view.size, view.strides, {}};
    const auto index = tensor.device().index();
    to_card ? card(index).to_card(view, nothing, current_stream(index), spyre::Card::Wait::no)
            : card(index).to_host(nothing, view, current_stream(index), spyre::Card::Wait::no);
  }

  template <typename Computed>
  void run_on_shapes(const Computed& computed) {
    const auto given = torch::jit::last(*stack_, arguments_.size()).vec();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!only_written(i)) for_each_tensor(given[i], [](const at::Tensor& tensor) { charge(tensor, false); });
      c10::IValue& value = argument(i);
      if (value.isTensor()) {
        if (value.toTensor().defined()) value = shape_of(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(shape_of(tensor));
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
          list.push_back(tensor ? std::optional(shape_of(*tensor)) : std::nullopt);
        value = std::move(list);
      } else if (value.isDevice()) {
        value = c10::Device(at::kMeta);
      } else if (is_generator(*arguments_[i].type())) {
        value = c10::IValue();
      }
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
        charge(to[k], true);
      }
    }
    for (size_t i = 0; i < op_.schema().returns().size(); ++i) give(i, given);
  }

  // A result on the card: the host's values, or in timing mode nothing but the place for them.
  at::Tensor placed(const at::Tensor& result) const {
    if (!result.defined()) return result;
    if (!is_strided(result)) return with_parts_on(result, device_);
    if (!result.is_meta()) return result.to(device_);
    at::Tensor place = at::empty_strided(result.sizes(), result.strides(), result.options().device(device_));
    charge(place, true);
    return place;
  }

  c10::IValue& argument(size_t i) { return torch::jit::peek(*stack_, i, arguments_.size()); }

  // A written argument whose old contents the op does not look at.
  bool only_written(size_t i) const {
    return is_written(arguments_[i]) && (arguments_[i].kwarg_only() || (fills_self_ && i == 0));
  }

  static at::Tensor host_copy(const at::Tensor& tensor, bool contents) {
    if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
    if (!is_strided(tensor)) return with_parts_on(tensor, at::kCPU);
    if (contents) return tensor.cpu();
    return at::empty({0}, tensor.options().device(at::kCPU));  // an op fits an empty output to its result, silently
  }

  void take(size_t i) {
    c10::IValue& value = argument(i);
    const bool contents = !only_written(i);
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      // The host draws numbers in the order in which elements lie in memory.
      value = fills_self_ && i == 0 && !contents
                  ? at::empty_strided(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()),
                                      tensor.options().device(at::kCPU))
                  : host_copy(tensor, contents);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(host_copy(tensor, contents));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(host_copy(*tensor, contents)) : std::nullopt);
      value = std::move(list);
    } else if (value.isDevice()) {
      value = c10::Device(at::kCPU);
    } else if (is_generator(*arguments_[i].type())) {
      // Random ops draw on the host, from the CPU generator behind the device's.
      value = host_generator(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), device_.index());
    }
  }

  void write_back(const c10::IValue& device, const c10::IValue& host) {
    std::vector<at::Tensor> to, from;
    for_each_tensor(device, [&](const at::Tensor& tensor) { to.push_back(tensor); });
    for_each_tensor(host, [&](const at::Tensor& tensor) { from.push_back(tensor); });
    for (size_t i = 0; i < to.size(); ++i) {
      if (!is_strided(to[i])) {
        take_contents(to[i], from[i]);
        continue;
      }
      fit_output(to[i], from[i].sizes());
      to[i].copy_(from[i]);
    }
  }

  void give(size_t i, const std::vector<c10::IValue>& given) {
    const c10::Argument& result = op_.schema().returns()[i];
    c10::IValue& value = torch::jit::peek(*stack_, i, op_.schema().returns().size());
    if (const c10::AliasInfo* alias = result.alias_info()) {
      TORCH_CHECK_NOT_IMPLEMENTED(alias->isWrite(), op_.operator_name(),
                                  " gives a view of its input, which the host cannot make of memory on the card");
      for (size_t k = 0; k < arguments_.size(); ++k)
        if (is_written(arguments_[k]) && *arguments_[k].alias_info() == *alias) value = given[k];
    } else if (value.isTensor()) {
      value = placed(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(placed(tensor));
      value = std::move(list);
    }
  }

  const c10::OperatorHandle& op_;
  const std::vector<c10::Argument>& arguments_;
  torch::jit::Stack* stack_;
  const c10::Device device_;
  const bool fills_self_;
};

// Indices may come from the host: they go along to the card.
void bring_indices(torch::jit::Stack* stack, size_t arguments, c10::Device device) {
  for (size_t i = 0; i < arguments; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, arguments);
    if (!value.isOptionalTensorList()) continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& index : value.toOptionalTensorVector())
      list.push_back(index && index->defined() && index->device().is_cpu() ? index->to(device) : index);
    value = std::move(list);
  }
}

bool all_strided(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool all = true;
  for (const c10::IValue& argument : torch::jit::last(stack, op.schema().arguments().size()))
    for_each_tensor(argument, [&](const at::Tensor& tensor) { all &= is_strided(tensor); });
  return all;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::Device device = find_device(op, *stack);
  bring_indices(stack, op.schema().arguments().size(), device);
  std::string reason;
  if (all_strided(op, *stack) && run_on_card(op, stack, device, reason)) return;
  if (!reason.empty()) reason.insert(0, " The card: ");
  const std::string name = c10::toString(functional_overload(op.schema()));  // the one that users know
  const OriginScope origin(interned(name));
  const FallbackMode now = mode;
  TORCH_CHECK_NOT_IMPLEMENTED(now != FallbackMode::error, name,
                              " has no kernel on the card yet, and falling back to the CPU is an error now "
                              "(torch.spyre.fallback('warn') allows it).",
                              reason);
  TORCH_CHECK(!op.hasTag(at::Tag::dynamic_output_shape) || card(-1).mode() != spyre::Mode::timing, name,
              " gives a result whose shape depends on values, and SPYRE_CARD=timing computes none");
  HostCall(op, stack, device, /*fills_self=*/false).run([&] { tell(name, reason, now); });
}

c10::OperatorHandle find_op(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

// PyTorch asks out-of-tree devices for a convolution under names that the host has no kernel for.
void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle op = find_op("aten::convolution");
  run(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle op = find_op("aten::convolution_backward");
  // The host's op has one more argument, the size of the bias, after gradient, input and weight.
  const auto first = stack->end() - 10;
  const int64_t channels = first->toTensor().size(1);
  stack->insert(first + 3, c10::IValue(c10::List<int64_t>{channels}));
  run(op, stack);
}

// Cells of recurrent networks, which PyTorch expects fused from devices other than the host. As their parts, here and
// for autograd alike, they need no derivatives of their own.
at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input, const at::Tensor& hidden,
                                                         const at::Tensor& cell,
                                                         const std::optional<at::Tensor>& input_bias,
                                                         const std::optional<at::Tensor>& hidden_bias) {
  const at::Tensor gates = with_bias(input, input_bias) + with_bias(hidden, hidden_bias);
  const auto part = gates.chunk(4, 1);  // in, forget, cell, out
  const at::Tensor next = part[1].sigmoid() * cell + part[0].sigmoid() * part[2].tanh();
  return {part[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& state,
                                            const std::optional<at::Tensor>& input_bias,
                                            const std::optional<at::Tensor>& hidden_bias) {
  const at::Tensor in = with_bias(input, input_bias), own = with_bias(hidden, hidden_bias);
  const auto i = in.chunk(3, 1), h = own.chunk(3, 1);  // reset, update, new
  const at::Tensor fresh = (i[2] + h[2] * (i[0] + h[0]).sigmoid()).tanh();
  return {(state - fresh) * (i[1] + h[1]).sigmoid() + fresh, in};
}

// PyTorch makes tolerances that are numbers into float64 tensors on the input's device; on the host they stay numbers.
std::optional<at::Tensor> on_host(std::optional<double> number) {
  if (!number) return std::nullopt;
  return at::scalar_tensor(*number, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor pinv(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  return at::linalg_pinv(self, on_host(atol), on_host(rtol), hermitian);
}

at::Tensor& pinv_out(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol, bool hermitian,
                     at::Tensor& out) {
  return at::linalg_pinv_out(out, self, on_host(atol), on_host(rtol), hermitian);
}

// How many singular values are above a tolerance.
at::Tensor matrix_rank(const at::Tensor& self, const std::optional<at::Tensor>& atol,
                       const std::optional<at::Tensor>& rtol, bool hermitian) {
  const at::Tensor values = hermitian ? at::linalg_eigvalsh(self).abs() : at::linalg_svdvals(self);
  if (values.size(-1) == 0)
    return at::zeros(values.sizes().slice(0, values.dim() - 1), values.options().dtype(at::kLong));
  const double epsilon = std::numeric_limits<float>::epsilon() * std::max(self.size(-1), self.size(-2));
  at::Tensor tolerance = values.amax(-1, /*keepdim=*/true);
  if (rtol) {
    tolerance = tolerance * rtol->unsqueeze(-1);
  } else {
    tolerance =
        atol ? at::where(atol->unsqueeze(-1) > 0, at::zeros_like(tolerance), tolerance * epsilon) : tolerance * epsilon;
  }
  if (atol) tolerance = at::maximum(tolerance, atol->unsqueeze(-1).to(tolerance.scalar_type()));
  return values.gt(tolerance).sum(-1);
}

at::Tensor matrix_rank_numbers(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol,
                               bool hermitian) {
  const auto number = [&](std::optional<double> value) -> std::optional<at::Tensor> {
    if (!value) return std::nullopt;
    return at::full({}, *value, self.options().dtype(at::kFloat));
  };
  return matrix_rank(self, number(atol), number(rtol), hermitian);
}

at::Tensor matrix_rank_tolerance(const at::Tensor& self, double tolerance, bool hermitian) {
  return matrix_rank_numbers(self, tolerance, 0.0, hermitian);
}

template <typename Library>
void register_composed(Library& m) {
  m.impl("linalg_pinv.atol_rtol_float", pinv);
  m.impl("linalg_pinv.atol_rtol_float_out", pinv_out);
  m.impl("linalg_matrix_rank", matrix_rank_tolerance);
  m.impl("linalg_matrix_rank.atol_rtol_float", matrix_rank_numbers);
  m.impl("linalg_matrix_rank.atol_rtol_tensor", matrix_rank);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

}  // namespace

void run_or_fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run(op, stack); }

void make_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  HostCall(op, stack, find_device(op, *stack), /*fills_self=*/true).run([] {});
}

void fit_output(const at::Tensor& output, c10::IntArrayRef size, c10::IntArrayRef strides) {
  SpyreStorageImpl& storage = storage_of(output);
  const int64_t elements = output.numel() * parts(output.scalar_type());
  const bool whole = output.is_contiguous() && elements == storage.elements() && storage.resizable();
  if (whole && output.sizes() != size) resize_storage_bytes(storage, 0);  // nothing to keep
  at::native::resize_output(output, size);
  if (strides.empty() || output.strides() == strides) return;
  if (whole) reshape_storage(storage, size, strides);
  output.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
}

FallbackMode fallback_mode() { return mode; }
void set_fallback_mode(FallbackMode wanted) { mode = wanted; }

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard lock(mutex);
  return counts;
}

void reset_fallback_counts() {
  std::lock_guard lock(mutex);
  counts.clear();
  warned.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_composed(m); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_composed(m);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // Composed of parts that are no ops of the card by themselves.
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
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  // Composed of parts in float64.
  for (const char* name : {"linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_tensor_out", "linalg_matrix_rank.out",
                           "linalg_matrix_rank.tol_tensor", "linalg_matrix_rank.out_tol_tensor",
                           "linalg_matrix_rank.atol_rtol_float_out", "linalg_matrix_rank.atol_rtol_tensor_out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  for (const char* name :
       {"range.out", "logspace.out", "tril_indices", "triu_indices", "randperm.generator_out", "normal_", "uniform_",
        "random_.from", "random_.to", "bernoulli_.float", "exponential_", "geometric_", "kaiser_window",
        "kaiser_window.periodic", "kaiser_window.beta", "log_normal_", "cauchy_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&make_on_host>());
}

// PyTorch would make the results of these ops before it asks for the overload with `out`, in a memory format that is
// the host's business, or take two steps where the card has one; and a profiler would see two ops.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  const std::set<std::string> composed = {"aten::abs",        "aten::isinf",       "aten::logical_and",
                                          "aten::logical_or", "aten::logical_not", "aten::logical_xor",
                                          "aten::nan_to_num"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.getNamespace() != "aten" ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    // Indexing is tagged so for masks alone: its overload with `out` knows the shape, and runs on the card.
    if (op->hasTag(at::Tag::dynamic_output_shape)) continue;
    const auto& arguments = op->schema().arguments();
    if (std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_out(); }))
      continue;
    // A structured op has kernels for devices next to the one that makes its results; copies of views have none.
    const bool is_structured = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                               op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (composed.count(name.name) || is_structured)
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

}  // namespace torch_spyre
