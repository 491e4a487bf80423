#include "python/step_times.h"

#include <torch/csrc/utils/pybind.h>

#include "card/card.h"
#include "python/kernel_description.h"
#include "runtime/device/device.h"

namespace py = pybind11;

namespace torch_spyre {

std::vector<double> time_of_steps(const py::list& steps, const std::vector<int>& fresh) {
  py::dict given;
  given["steps"] = steps;
  const spyre::Clock& clock = card(-1).clock();
  std::vector<double> found;
  const spyre::Program program = parse_program(given, "asked about", {});
  spyre::check_shapes(program, card(-1).limits());
  for (const spyre::Step& step : program.steps) {
    spyre::Program asked{"asked about", {}, {step}};
    if (const int read = found.size() < fresh.size() ? fresh[found.size()] : -1; read >= 0) {
      if (read >= static_cast<int>(step.operands.size()) || step.operands[read].is_constant())
        refuse("time_of_steps, step " + std::to_string(found.size()),
               "fresh: operand " + std::to_string(read) + " is none that is read from memory");
      spyre::Step before = step;
      before.op = spyre::OpCode::fill;
      before.operands = {step.operands[read]};
      before.indirect.clear();
      asked.steps.insert(asked.steps.begin(), before);
    }
    const spyre::StepTime time = spyre::step_times(asked, clock).back();
    if (!(1000 * (time.begin_ns + time.total_ns) <= static_cast<double>(spyre::limits::kTime)))
      refuse("time_of_steps, step " + std::to_string(found.size()), "extents: takes longer than can be counted");
    found.push_back(static_cast<double>(spyre::picoseconds(time)) / 1e6);
  }
  return found;
}

py::list step_times(const spyre::JobPlan& plan) {
  py::list found;
  for (const spyre::JobStep& job : plan.steps) {
    if (!job.program) continue;
    const std::vector<spyre::StepTime> times = spyre::step_times(*job.program, card(-1).clock());
    for (size_t i = 0; i < times.size(); ++i) {
      const spyre::Step& step = job.program->steps[i];
      const spyre::StepTime& time = times[i];
      py::dict row;
      row["op"] = spyre::name(step.op);
      row["function"] = step.function;
      row["source"] = step.source;
      row["aten"] = step.aten;
      row["spec"] = step.spec;
      row["extents"] = step.extents;
      row["slices"] = step.slices;
      row["us"] = (time.begin_ns + time.total_ns) / 1000;
      row["begin_us"] = time.begin_ns / 1000;
      row["compute_us"] = time.compute_ns / 1000;
      row["memory_us"] = time.memory_ns / 1000;
      row["ring_us"] = time.ring_ns / 1000;
      row["bytes_read"] = time.bytes_read;
      row["bytes_written"] = time.bytes_written;
      row["bytes_ring"] = time.bytes_ring;
      found.append(row);
    }
  }
  return found;
}

}  // namespace torch_spyre
