#include <ATen/core/dispatch/Dispatcher.h>

#include "aten/eager_kernels.h"
#include "aten/fallback_policy.h"
#include "aten/op_call.h"
#include "aten/op_listener.h"
#include "card/card.h"
#include "python/bindings.h"
#include "python/compiled_call.h"
#include "python/kernel_description.h"
#include "python/launch_sequence.h"
#include "python/layout_guard.h"
#include "python/measure.h"
#include "python/step_times.h"
#include "runtime/device/device.h"
#include "runtime/launch.h"
#include "runtime/storage/argument_placement.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

std::string step_type(const spyre::JobPlan& plan, size_t index) {
  if (index >= plan.steps.size())
    throw py::index_error("step " + std::to_string(index) + " of " + std::to_string(plan.steps.size()));
  return spyre::name(plan.steps[index].type);
}

int64_t allocation_bytes(const spyre::JobPlan& plan) {
  int64_t bytes = 0;
  for (int64_t size : plan.allocations) bytes += size;  // each below 2^40
  return bytes;
}

void launch(const std::shared_ptr<spyre::JobPlan>& plan, const std::vector<at::Tensor>& tensors,
            const std::vector<double>& runtime_scalars) {
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  launch_jobplan(plan, pointers, runtime_scalars);
}

py::list placements_of(const std::vector<at::Tensor>& tensors) {
  py::list placements;
  for (const ArgumentPlacement& each : argument_placements(tensors))
    placements.append(py::make_tuple(*each.layout, each.offset, each.first_sharer));
  return placements;
}

// Rows of (name, arity, domain of the inputs, domain of the result, number of constants).
py::list tile_op_rows() {
  py::list rows;
  for (const spyre::TileOp& op : spyre::tile_ops()) {
    const auto domain = [](spyre::Domain d) { return d == spyre::Domain::real ? "real" : "integer"; };
    rows.append(py::make_tuple(op.name, op.arity, domain(op.in), domain(op.out), op.constants));
  }
  return rows;
}

void bind_fallback(py::module_& m) {
  m.def("fallback_mode", [] {
    constexpr const char* kModes[] = {"warn", "error", "count"};
    return kModes[static_cast<int>(fallback_mode())];
  });
  m.def("set_fallback_mode", [](const std::string& mode) {
    if (mode == "warn") return set_fallback_mode(FallbackMode::warn);
    if (mode == "error") return set_fallback_mode(FallbackMode::error);
    if (mode == "count") return set_fallback_mode(FallbackMode::count);
    throw py::value_error("fallback mode '" + mode + "': expected 'warn', 'error' or 'count'");
  });
  m.def("fallback_counts", &fallback_counts);
  m.def("reset_fallback_counts", &reset_fallback_counts);
}

void bind_measure(py::module_& m) {
  auto measure = m.def_submodule("measure", "The card's C++ API timed without Python, and this machine's limits.");
  measure.def("to_card", &measure_to_card, py::arg("to"), py::arg("src"), py::arg("repeats"));
  measure.def("to_host", &measure_to_host, py::arg("to"), py::arg("src"), py::arg("repeats"));
  measure.def(
      "launch", [](const std::shared_ptr<spyre::JobPlan>& plan, int repeats) { return measure_launch(plan, repeats); },
      py::arg("plan").none(false), py::arg("repeats"));
  measure.def("multiply_add", &measure_multiply_add, py::arg("threads"), py::arg("repeats"));
  measure.def("stream", &measure_stream, py::arg("bytes_read"), py::arg("bytes_written"), py::arg("threads"),
              py::arg("repeats"));
}

}  // namespace

void bind_kernels(py::module_& m) {
  py::class_<spyre::JobPlan, std::shared_ptr<spyre::JobPlan>>(m, "JobPlan", "A kernel that is ready to be launched.")
      .def_readonly("name", &spyre::JobPlan::name)
      .def(
          "num_steps", [](const spyre::JobPlan& plan) { return plan.steps.size(); }, "Return the number of steps.")
      .def("job_allocation_size", &allocation_bytes, "Return the bytes of card memory that each launch allocates.")
      .def("get_step_type", &step_type, py::arg("index"),
           "Return the type of a step: H2D, D2H, Compute or HostCompute. Raises IndexError.")
      .def("step_times", &step_times);
  m.def(
      "prepare_kernel",
      [](const py::dict& description) { return std::const_pointer_cast<spyre::JobPlan>(prepare_kernel(description)); },
      py::arg("code"),
      "Build a plan from the description of a kernel. Raises ValueError for a description that is malformed, beyond "
      "the "
      "limits, or against the rules of the hardware.");
  constexpr const char* kLaunch =
      "Queue a plan on the current stream, with its tensors and its runtime scalars, and return. Raises for tensors "
      "that "
      "do not fit the plan; errors of the launch itself are raised by the next call that waits.";
  m.def("launch_jobplan", &launch, py::arg("plan").none(false), py::arg("tensors"),
        py::arg("runtime_scalars") = std::vector<double>(), kLaunch);
  m.def("launch_kernel", &launch, py::arg("plan").none(false), py::arg("tensors"),
        py::arg("runtime_scalars") = std::vector<double>(), kLaunch);

  // Internal
  bind_compiled_kernels(m);
  bind_launch_sequences(m);
  m.def("time_of_steps", &time_of_steps, py::arg("steps"), py::arg("fresh") = std::vector<int>());
  m.def(
      "bound_by",
      [](bool on_matrix_unit, double start_us, double compute_us, double memory_us, double ring_us,
         int64_t dram_bytes) {
        spyre::StepTime time;
        time.begin_ns = 1000 * start_us;
        time.compute_ns = 1000 * compute_us;
        time.memory_ns = 1000 * memory_us;
        time.ring_ns = 1000 * ring_us;
        time.bytes_read = dram_bytes;
        return card(-1).clock().bound_by(time, on_matrix_unit);
      },
      py::arg("on_matrix_unit"), py::arg("start_us"), py::arg("compute_us"), py::arg("memory_us"), py::arg("ring_us"),
      py::arg("dram_bytes"));
  m.def("layout_guard", &layout_guard, py::arg("tensor"));
  m.def("argument_placements", &placements_of, py::arg("tensors"));
  m.def(
      "functional_overload",
      [](const std::string& name, const std::string& overload) {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
        const c10::OperatorName functional = functional_overload(op.schema());
        return std::pair(functional.name, functional.overload_name);
      },
      py::arg("name"), py::arg("overload"));
  m.def("kernel_counts", &kernel_counts);
  m.def("set_op_listener", &set_op_listener, py::arg("listener"));
  m.def("forget_kernels", &forget_kernels);
  m.def("tile_ops", &tile_op_rows);
  bind_fallback(m);
  bind_measure(m);
}

}  // namespace torch_spyre
