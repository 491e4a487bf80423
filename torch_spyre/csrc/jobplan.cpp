// Kernels: from a plain description (dictionaries, lists, numbers) to a validated JobPlan, and its launch.
#include "jobplan.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "storage.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw spyre::InvalidProgram(where + ": " + why);
}

template <typename Value>
Value field(const py::dict& from, const char* name, const std::string& where) {
  if (!from.contains(name)) refuse(where, std::string("lacks the field '") + name + "'");
  try {
    return from[name].cast<Value>();
  } catch (const py::cast_error&) {
    refuse(where,
           std::string("the field '") + name + "' has the wrong type: " + py::repr(from[name]).cast<std::string>());
  }
}

template <typename Value>
Value field(const py::dict& from, const char* name, const std::string& where, Value otherwise) {
  return from.contains(name) ? field<Value>(from, name, where) : otherwise;
}

spyre::Program parse_program(const py::dict& from, const std::string& name,
                             const std::vector<int64_t>& argument_bytes) {
  spyre::Program program{name, argument_bytes, {}};
  const auto steps = field<py::list>(from, "steps", "program '" + name + "'");
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string where = "program '" + name + "', step " + std::to_string(i);
    if (!py::isinstance<py::dict>(steps[i])) refuse(where, "is not a dictionary");
    const auto given = steps[i].cast<py::dict>();
    spyre::Step step;
    step.op = spyre::op_code(field<std::string>(given, "op", where));
    step.extents = field<spyre::Dims>(given, "extents", where);
    step.slices = field<spyre::Dims>(given, "slices", where, spyre::Dims(step.extents.size(), 1));
    step.constant = field<uint32_t>(given, "constant", where, 0);
    step.source = field<std::string>(given, "source", where, "");
    step.function = field<std::string>(given, "function", where, "");
    step.constants = field<std::vector<double>>(given, "constants", where, {});
    step.reduced = field<int>(given, "reduced", where, 0);
    step.transposed = field<bool>(given, "transposed", where, false);
    step.checked = field<bool>(given, "checked", where, false);
    for (const py::handle entry : field<py::list>(given, "operands", where)) {
      if (!py::isinstance<py::dict>(entry)) refuse(where, "an operand is not a dictionary");
      const auto operand = entry.cast<py::dict>();
      step.operands.push_back({field<int>(operand, "argument", where), field<int64_t>(operand, "offset", where, 0),
                               field<spyre::Dims>(operand, "strides", where),
                               field<spyre::DataFormat>(operand, "format", where, spyre::DataFormat::SEN169_FP16)});
    }
    program.steps.push_back(std::move(step));
  }
  return program;
}

// Held by a plan and dropped on any thread, so the reference is let go under the GIL.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            py::gil_scoped_acquire gil;
            delete held;
          }};
}

// A host step sees the plan's buffers as bytearrays and may change them in place.
std::function<void(std::vector<std::string>&)> host_step(py::object body) {
  return [body = shared(std::move(body))](std::vector<std::string>& buffers) {
    py::gil_scoped_acquire gil;
    py::list given;
    for (const std::string& buffer : buffers) given.append(py::bytearray(buffer.data(), buffer.size()));
    (*body)(given);
    if (given.size() != buffers.size()) throw spyre::Error("a host step changed the number of buffers");
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!py::isinstance<py::bytearray>(given[i]))
        throw spyre::Error("a host step put something else than a bytearray in place of buffer " + std::to_string(i));
      const auto changed = py::reinterpret_borrow<py::bytearray>(given[i]);
      if (changed.size() != buffers[i].size()) throw spyre::Error("a host step changed the size of a buffer");
      buffers[i].assign(PyByteArray_AsString(changed.ptr()), changed.size());
    }
  };
}

std::string buffer_bytes(const py::handle& buffer, const std::string& where) {
  if (!py::isinstance<py::bytes>(buffer))
    refuse(where, "a buffer is not bytes: " + py::repr(buffer).cast<std::string>());
  return buffer.cast<std::string>();
}

}  // namespace

std::shared_ptr<const spyre::JobPlan> prepare_kernel(const py::dict& code) {
  spyre::JobPlan plan;
  plan.name = field<std::string>(code, "name", "kernel");
  const std::string where = "kernel '" + plan.name + "'";
  plan.argument_bytes = field<std::vector<int64_t>>(code, "arguments", where);
  plan.allocations = field<std::vector<int64_t>>(code, "allocate", where, {});
  for (const py::handle buffer : field<py::list>(code, "buffers", where, py::list()))
    plan.buffers.push_back(buffer_bytes(buffer, where));
  std::vector<int64_t> all_bytes = plan.argument_bytes;
  all_bytes.insert(all_bytes.end(), plan.allocations.begin(), plan.allocations.end());
  spyre::Card& on = card(-1);
  for (const py::handle entry : field<py::list>(code, "steps", where)) {
    if (!py::isinstance<py::dict>(entry)) refuse(where, "a step is not a dictionary");
    const auto given = entry.cast<py::dict>();
    const auto type = field<std::string>(given, "type", where);
    using Type = spyre::JobStep::Type;
    spyre::JobStep step{};
    if (type == "Compute") {
      step.type = Type::Compute;
      step.program = on.prepare(parse_program(field<py::dict>(given, "program", where), plan.name, all_bytes));
    } else if (type == "HostCompute") {
      step.type = Type::HostCompute;
      const auto function = field<py::object>(given, "function", where);
      if (!PyCallable_Check(function.ptr())) refuse(where, "the field 'function' cannot be called");
      step.host = host_step(function);
    } else if (type == "H2D" || type == "D2H") {
      step.type = type == "H2D" ? Type::H2D : Type::D2H;
      step.argument = field<int>(given, "argument", where);
      step.offset = field<int64_t>(given, "offset", where, 0);
      step.buffer = field<int>(given, "buffer", where);
    } else {
      refuse(where, "unknown step type '" + type + "'; there are H2D, D2H, Compute and HostCompute");
    }
    plan.steps.push_back(std::move(step));
  }
  return on.prepare(std::move(plan));
}

void launch_jobplan(const std::shared_ptr<const spyre::JobPlan>& plan, const std::vector<at::Tensor>& tensors) {
  const c10::DeviceIndex device = tensors.empty() ? current_device() : tensors[0].device().index();
  std::vector<spyre::Held> arguments;
  arguments.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device() == c10::Device(kSpyre, device), "kernel '", plan->name,
                "' takes tensors of one card, got one on ", tensor.device());
    arguments.push_back(storage_of(tensor).held());
    TORCH_CHECK(storage_of(tensor).alive(), "kernel '", plan->name, "' got a tensor without memory");
  }
  if (debugging()) {
    std::string line = "launch '" + plan->name + "' on stream " + std::to_string(current_stream(device));
    for (const at::Tensor& tensor : tensors) line += "; " + storage_of(tensor).layout().str();
    log_line(line);
  }
  // The plan's own memory may have to wait for work that is queued.
  waiting([&] { card(device).launch(plan, arguments, current_stream(device)); });
}

}  // namespace torch_spyre
