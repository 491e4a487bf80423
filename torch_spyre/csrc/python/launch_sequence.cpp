// Kernels and collectives of a graph as one call. What tensor parallelism makes of a model is a chain of both; each
// link called from Python would cost the host more than to queue it.
#include "python/launch_sequence.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>
#include <utility>
#include <vector>

#include "python/compiled_call.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

using Slots = std::vector<size_t>;  // of the values of a sequence: its inputs, then results of its steps

// A step calls a kernel, or an op.
struct SequenceStep {
  py::object kernel;
  std::optional<c10::OperatorHandle> op;
  Slots inputs;                                    // of a kernel
  std::vector<c10::IValue> arguments;              // of an op: constants, and places for tensors
  std::vector<std::pair<size_t, size_t>> tensors;  // argument, slot
  std::vector<std::pair<size_t, Slots>> lists;     // argument, slots: lists of tensors
  Slots results, dead;                             // slots; those that no later step uses
};

// In Python, `(slot,)` stands for a tensor.
std::optional<size_t> slot_of(py::handle argument) {
  if (!py::isinstance<py::tuple>(argument)) return std::nullopt;
  return std::get<0>(argument.cast<std::tuple<size_t>>());
}

SequenceStep op_step(const std::string& name, const std::string& overload, const py::list& arguments) {
  SequenceStep step;
  step.op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const auto& declared = step.op->schema().arguments();
  TORCH_CHECK_VALUE(arguments.size() == declared.size(), name, " takes ", declared.size(), " arguments, ",
                    arguments.size(), " were given");
  for (size_t i = 0; i < declared.size(); ++i) {
    const py::object given = arguments[i];
    step.arguments.emplace_back();
    if (const auto slot = slot_of(given)) {
      step.tensors.emplace_back(i, *slot);
    } else if (py::isinstance<py::list>(given) && py::len(given) > 0 && slot_of(given.cast<py::list>()[0])) {
      Slots slots;
      for (const py::handle each : given) slots.push_back(*slot_of(each));
      step.lists.emplace_back(i, std::move(slots));
    } else {
      step.arguments.back() = torch::jit::toIValue(given, declared[i].type());
    }
  }
  return step;
}

class LaunchSequence {
 public:
  LaunchSequence(size_t inputs, const py::list& steps, Slots results) : inputs_(inputs), results_(std::move(results)) {
    values_ = inputs;
    for (const py::handle each : steps) {
      const auto fields = each.cast<py::tuple>();
      SequenceStep step;
      if (fields.size() == 4) {
        step.kernel = fields[0];
        step.inputs = fields[1].cast<Slots>();
      } else {
        step = op_step(fields[0].cast<std::string>(), fields[1].cast<std::string>(), fields[2]);
      }
      step.results = fields[fields.size() - 2].cast<Slots>();
      step.dead = fields[fields.size() - 1].cast<Slots>();
      check(step);
      values_ += step.results.size();
      steps_.push_back(std::move(step));
    }
    for (const size_t slot : results_) check(slot);
  }

  // Empties the list, so that inputs that nobody else needs are freed behind their last use.
  py::list operator()(const py::list& inputs) const {
    TORCH_CHECK_VALUE(inputs.size() == inputs_, "a launch sequence takes ", inputs_, " tensors, ", inputs.size(),
                      " were given");
    std::vector<at::Tensor> values(values_);
    for (size_t i = 0; i < inputs_; ++i) {
      const py::handle given = inputs[i];
      TORCH_CHECK_TYPE(THPVariable_Check(given.ptr()), "a launch sequence takes tensors, not ",
                       Py_TYPE(given.ptr())->tp_name);
      values[i] = THPVariable_Unpack(given.ptr());
    }
    inputs.attr("clear")();
    count_start();
    for (const SequenceStep& step : steps_) {
      step.op ? run_op(step, values) : run_kernel(step, values);
      for (const size_t slot : step.dead) values[slot].reset();
    }
    py::list results(results_.size());
    for (size_t i = 0; i < results_.size(); ++i)
      PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(values[results_[i]]));
    return results;
  }

 private:
  void check(size_t slot) const {
    TORCH_CHECK_INDEX(slot < values_, "a launch sequence has ", values_, " values so far, not ", slot);
  }

  void check(const SequenceStep& step) const {
    for (const size_t slot : step.inputs) check(slot);
    for (const auto& [argument, slot] : step.tensors) check(slot);
    for (const auto& [argument, slots] : step.lists)
      for (const size_t slot : slots) check(slot);
    for (size_t i = 0; i < step.results.size(); ++i)
      TORCH_CHECK_INDEX(step.results[i] == values_ + i, "results of a launch sequence follow its inputs in order");
    for (const size_t slot : step.dead)
      TORCH_CHECK_INDEX(slot < values_ + step.results.size(), "there is no value ", slot, " to be freed");
  }

  static void run_kernel(const SequenceStep& step, std::vector<at::Tensor>& values) {
    c10::SmallVector<const at::Tensor*, 16> inputs;
    for (const size_t slot : step.inputs) inputs.push_back(&values[slot]);
    std::vector<at::Tensor> made = call_compiled_kernel(step.kernel.ptr(), inputs);
    TORCH_CHECK(made.size() == step.results.size(), "a kernel has ", made.size(), " outputs, ", step.results.size(),
                " are expected");
    for (size_t i = 0; i < made.size(); ++i) values[step.results[i]] = std::move(made[i]);
  }

  static void run_op(const SequenceStep& step, std::vector<at::Tensor>& values) {
    std::vector<c10::IValue> stack = step.arguments;
    for (const auto& [argument, slot] : step.tensors) stack[argument] = values[slot];
    for (const auto& [argument, slots] : step.lists) {
      c10::List<at::Tensor> list;
      for (const size_t slot : slots) list.push_back(values[slot]);
      stack[argument] = std::move(list);
    }
    {
      const py::gil_scoped_release no_gil;
      step.op->callBoxed(&stack);
    }
    if (step.results.empty()) return;
    if (stack.at(0).isTensor()) {
      values[step.results[0]] = std::move(stack[0]).toTensor();
      return;
    }
    const c10::List<at::Tensor> made = stack[0].toTensorList();
    TORCH_CHECK(made.size() == step.results.size(), step.op->schema().name(), " has ", made.size(), " results, ",
                step.results.size(), " are expected");
    for (size_t i = 0; i < made.size(); ++i) values[step.results[i]] = made[i];
  }

  const size_t inputs_;
  size_t values_ = 0;
  std::vector<SequenceStep> steps_;
  const Slots results_;
};

}  // namespace

void bind_launch_sequences(py::module_& module) {
  py::class_<LaunchSequence>(module, "LaunchSequence",
                             "Kernels and ops in their order, as generated code calls them at once.")
      .def(py::init(torch::wrap_pybind_function([](size_t inputs, const py::list& steps, Slots results) {
             return std::make_unique<LaunchSequence>(inputs, steps, std::move(results));
           })),
           py::arg("inputs"), py::arg("steps"), py::arg("results"),
           "Steps are (kernel, inputs, results, dead) and (op, overload, arguments, results, dead), where values are "
           "numbered: the inputs first, then the results of each step. In the arguments of ops, (n,) is value n.")
      .def("__call__",
           torch::wrap_pybind_function([](const LaunchSequence& self, const py::list& inputs) { return self(inputs); }),
           py::arg("inputs"), "Return the results. The list of inputs is empty afterwards.");
}

}  // namespace torch_spyre
