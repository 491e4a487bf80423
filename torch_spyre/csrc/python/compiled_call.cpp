// Calls of compiled kernels. Generated code does little else, so this is the host's cost of a call: one function finds
// the variant for the placement of the inputs, allocates the outputs and launches, without Python and pybind11.
#include "python/compiled_call.h"

#include <ATen/record_function.h>
#include <c10/core/DynamicCast.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>

#include "aten/factories.h"
#include "profiler/recorder.h"
#include "runtime/calls/blocking.h"
#include "runtime/calls/origin.h"
#include "runtime/launch.h"
#include "runtime/storage/argument_placement.h"
#include "runtime/storage/storage.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

constexpr size_t kInline = 16;  // arguments that a call keeps on the stack
template <typename Value>
using InlineVector = c10::SmallVector<Value, kInline>;
using Tensors = InlineVector<const at::Tensor*>;

// A kernel as it was compiled for inputs with this placement.
struct Variant {
  struct Input {
    spyre::Layout layout;
    int64_t offset;
    size_t first_sharer;  // the first input in the same memory
    spyre::Dims size, strides;
  };
  std::vector<Input> inputs;
  std::shared_ptr<const spyre::JobPlan> plan;  // null: nothing to compute
  std::vector<Output> outputs;
  py::object launch;        // listeners get it
  const std::string* name;  // for messages
};

bool all_different(InlineVector<const spyre::Block*>& blocks) {
  if (blocks.size() > kInline) {
    std::sort(blocks.begin(), blocks.end());
    return std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end();
  }
  for (auto block = blocks.begin(); block != blocks.end(); ++block)
    if (std::find(blocks.begin(), block, *block) != block) return false;
  return true;
}

bool matches(const Variant& variant, const Tensors& tensors, const MovedArguments& places) {
  if (variant.inputs.size() != tensors.size()) return false;
  InlineVector<const spyre::Block*> first;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Variant::Input& input = variant.inputs[i];
    const SpyreStorageImpl& storage = storage_of(*tensors[i]);
    if (places[i].offset != input.offset || storage.layout() != input.layout) return false;
    if (input.first_sharer == i) {
      first.push_back(storage.held().block);
    } else if (storage.held().block != storage_of(*tensors[input.first_sharer]).held().block) {
      return false;
    }
  }
  return all_different(first);
}

// Sizes and strides of the inputs are part of the kernel itself: others are a mistake of the caller.
void check_shapes(const Variant& variant, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Variant::Input& input = variant.inputs[i];
    const c10::IntArrayRef size = tensors[i]->sizes(), strides = tensors[i]->strides();
    bool same = size.equals(input.size);
    for (size_t d = 0; same && d < size.size(); ++d) same = size[d] <= 1 || strides[d] == input.strides[d];
    TORCH_CHECK_VALUE(same || (tensors[i]->numel() == 0 && size.equals(input.size)), "input ", i,
                      " of a kernel has sizes ", size, " and strides ", strides, ", it was compiled for sizes ",
                      c10::IntArrayRef(input.size), " and strides ", c10::IntArrayRef(input.strides));
  }
}

// The Python object. Subclasses have a method `prepare`, which adds the variant for the inputs that it is given.
struct CompiledKernel {
  PyObject_HEAD std::vector<std::shared_ptr<const Variant>> variants;  // most recently used first
  bool inputs_move;  // a variant serves inputs that begin elsewhere in their memory
};

CompiledKernel& kernel_in(PyObject* self) { return *reinterpret_cast<CompiledKernel*>(self); }

MovedArguments places_of(const CompiledKernel& kernel, const Tensors& tensors) {
  return kernel.inputs_move ? moved_to_start(tensors) : unmoved(tensors);
}

std::shared_ptr<const Variant> find(CompiledKernel& kernel, const Tensors& tensors, const MovedArguments& places) {
  auto& variants = kernel.variants;
  const auto found = std::find_if(variants.begin(), variants.end(),
                                  [&](const auto& variant) { return matches(*variant, tensors, places); });
  if (found == variants.end()) return nullptr;
  std::rotate(variants.begin(), found, found + 1);
  return variants.front();
}

void append_numbers(const at::Tensor& tensor, std::vector<double>& numbers) {
  TORCH_CHECK_TYPE(tensor.dim() == 1 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false),
                   "a kernel takes rows of integers from the host, not ", tensor.scalar_type(), tensor.sizes());
  const auto* at = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t step = tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  for (int64_t i = 0; i < tensor.size(0); ++i)
    numbers.push_back(static_cast<double>(c10::fetch_and_cast<int64_t>(tensor.scalar_type(), at + i * step)));
}

Tensors tensors_in(PyObject* tuple) {
  Tensors tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* each = PyTuple_GET_ITEM(tuple, i);
    TORCH_CHECK_TYPE(THPVariable_Check(each), "a kernel takes tensors, not ", Py_TYPE(each)->tp_name);
    tensors.push_back(&THPVariable_Unpack(each));
  }
  return tensors;
}

PyObject* listeners = nullptr;  // a list
std::atomic<int64_t> starts{0};

void notify_listeners(const py::object& launch) {
  // A copy of the list, since a listener may remove itself.
  for (const py::handle listener : py::list(py::reinterpret_borrow<py::list>(listeners))) listener(launch);
}

py::tuple in_python(c10::ArrayRef<const at::Tensor*> tensors) {
  py::tuple tuple(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(*tensors[i]));
  return tuple;
}

// The elements of tensors on the host are numbers of the launch.
InlineVector<at::Tensor> run(PyObject* self, c10::ArrayRef<const at::Tensor*> given) {
  Tensors tensors;
  std::vector<double> numbers;
  for (const at::Tensor* each : given) {
    if (each->is_cpu())
      append_numbers(*each, numbers);
    else
      tensors.push_back(each);
  }
  MovedArguments places = places_of(kernel_in(self), tensors);
  std::shared_ptr<const Variant> variant = find(kernel_in(self), tensors, places);
  if (!variant) {
    py::handle(self).attr("prepare")(in_python(given));
    places = places_of(kernel_in(self), tensors);
    variant = find(kernel_in(self), tensors, places);
    TORCH_CHECK(variant, "the inputs of a kernel were given another layout while it was compiled");
  }
  check_shapes(*variant, tensors);
  const c10::DeviceIndex device =
      tensors.empty() ? py::handle(self).attr("device_index").cast<c10::DeviceIndex>() : tensors[0]->device().index();
  InlineVector<at::Tensor> made;
  for (const Output& output : variant->outputs) made.push_back(empty_output(output, device));
  if (!variant->plan) return made;
  for (const at::Tensor& output : made) tensors.push_back(&output);
  const OriginScope origin(variant->name);
  std::optional<at::RecordFunction> host_op;  // for a profile: the op that the launch belongs to
  if (profiler::is_recording()) [[unlikely]] {
    host_op.emplace(at::RecordScope::FUNCTION);
    if (host_op->isActive()) host_op->before(variant->plan->name);
  }
  InlineVector<int64_t> shifts;
  for (const MovedArgument& place : places) shifts.push_back(place.shift);
  shifts.resize(tensors.size());
  launch_jobplan(variant->plan, tensors, numbers, shifts);
  host_op.reset();
  if (PyList_GET_SIZE(listeners) > 0) notify_listeners(variant->launch);
  return made;
}

PyObject* call(PyObject* self, PyObject* arguments, PyObject* named) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(!named || PyDict_GET_SIZE(named) == 0, "a kernel takes its inputs by position");
  const Tensors tensors = tensors_in(arguments);
  count_start();
  InlineVector<at::Tensor> made = run(self, tensors);
  const py::list results(made.size());
  for (size_t i = 0; i < made.size(); ++i)
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(made[i])));
  return results.inc_ref().ptr();
  END_HANDLE_TH_ERRORS
}

Output output_of(const py::dict& description) {
  Output output{description["size"].cast<spyre::Dims>(), description["stride"].cast<spyre::Dims>(),
                description["dtype"].cast<at::ScalarType>(), description["layout"].cast<spyre::Layout>()};
  drop_default_layout(output);
  return output;
}

void add_variant(PyObject* self, const py::tuple& inputs, const py::list& shapes, const py::list& outputs,
                 std::shared_ptr<const spyre::JobPlan> plan, py::object launch) {
  auto variant = std::make_shared<Variant>();
  const Tensors tensors = tensors_in(inputs.ptr());
  TORCH_CHECK_VALUE(shapes.size() == tensors.size(), "a kernel takes ", shapes.size(), " inputs, ", tensors.size(),
                    " were given");
  std::vector<at::Tensor> held;
  for (const at::Tensor* tensor : tensors) held.push_back(*tensor);
  const std::vector<ArgumentPlacement> placements = argument_placements(held);
  for (size_t i = 0; i < placements.size(); ++i) {
    auto [size, strides] = shapes[i].cast<std::pair<spyre::Dims, spyre::Dims>>();
    variant->inputs.push_back({*placements[i].layout, placements[i].offset,
                               static_cast<size_t>(placements[i].first_sharer), std::move(size), std::move(strides)});
  }
  for (const py::handle output : outputs) variant->outputs.push_back(output_of(output.cast<py::dict>()));
  variant->plan = std::move(plan);
  variant->launch = std::move(launch);
  variant->name = interned("compiled kernel '" + (variant->plan ? variant->plan->name : "") + "'");
  kernel_in(self).variants.push_back(std::move(variant));
}

PyObject* new_kernel(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) {
    new (&kernel_in(self).variants) decltype(CompiledKernel::variants)();
    kernel_in(self).inputs_move = false;
  }
  return self;
}

void delete_kernel(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  std::destroy_at(&kernel_in(self).variants);
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

void count_start() { ++starts; }

std::vector<at::Tensor> call_compiled_kernel(PyObject* kernel, c10::ArrayRef<const at::Tensor*> inputs) {
  if (Py_TYPE(kernel)->tp_call == call) {
    InlineVector<at::Tensor> made = run(kernel, inputs);
    return {std::make_move_iterator(made.begin()), std::make_move_iterator(made.end())};
  }
  // A tool handles calls of kernels (torch_spyre/execution/kernel.py: handled_by).
  const auto found = py::reinterpret_steal<py::object>(PyObject_CallObject(kernel, in_python(inputs).ptr()));
  if (!found) throw_python_error();
  return found.cast<std::vector<at::Tensor>>();
}

void bind_compiled_kernels(py::module_& module) {
  listeners = py::list().release().ptr();
  module.attr("launch_listeners") = py::handle(listeners);
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_kernel)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(delete_kernel)},
                                {Py_tp_call, reinterpret_cast<void*>(call)},
                                {0, nullptr}};
  static PyType_Spec spec = {"torch_spyre._C.CompiledKernel", sizeof(CompiledKernel), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  const auto method = [&](const char* name, auto body, const auto&... extra) {
    type.attr(name) = py::cpp_function(body, py::name(name), py::is_method(type), extra...);
  };
  method(
      "add_variant",
      [](const py::object& self, const py::tuple& inputs, const py::list& shapes, const py::list& outputs,
         const std::shared_ptr<spyre::JobPlan>& plan,
         const py::object& launch) { add_variant(self.ptr(), inputs, shapes, outputs, plan, launch); },
      py::arg("inputs"), py::arg("shapes"), py::arg("outputs"), py::arg("plan"), py::arg("launch"));
  method(
      "has_variant",
      [](const py::object& self, const py::tuple& inputs) {
        const Tensors tensors = tensors_in(inputs.ptr());
        return find(kernel_in(self.ptr()), tensors, places_of(kernel_in(self.ptr()), tensors)) != nullptr;
      },
      py::arg("inputs"));
  method("let_inputs_move", [](const py::object& self) { kernel_in(self.ptr()).inputs_move = true; });
  method(
      "at_places",
      [](const py::object& self, const py::tuple& inputs) {
        const Tensors tensors = tensors_in(inputs.ptr());
        const MovedArguments places = places_of(kernel_in(self.ptr()), tensors);
        py::tuple moved(tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i)
          moved[i] = places[i].shift ? py::cast(at_place(*tensors[i], places[i])) : py::object(inputs[i]);
        return moved;
      },
      py::arg("inputs"));
  method("forget_variants", [](const py::object& self) { kernel_in(self.ptr()).variants.clear(); });
  module.attr("CompiledKernel") = type;
  module.def(
      "launch_starts", [] { return starts.load(); },
      "How often the host has called compiled kernels and launch sequences, which count once whatever is in them.");
}

}  // namespace torch_spyre
