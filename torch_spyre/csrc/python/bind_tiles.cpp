#include <torch/csrc/utils/pybind.h>

#include "card/card.h"
#include "card/tiles/tile_time.h"
#include "python/bindings.h"
#include "python/tile_description.h"
#include "runtime/device/device.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

using namespace spyre::tiles;

// (address in elements, bytes of an element, the bytes, whether they may be written, name)
using GivenRegion = std::tuple<int64_t, int64_t, py::buffer, bool, std::string>;

struct Given {
  std::vector<py::buffer_info> held;
  Launch launch;
  std::vector<Argument> arguments;
};

Given given(const TileProgram& program, const py::list& arguments, const std::vector<GivenRegion>& regions) {
  Given all{{}, {program, {}, true, {}}, {}};
  for (const auto& [address, element, bytes, writable, name] : regions) {
    all.held.push_back(bytes.request(writable));
    const py::buffer_info& info = all.held.back();
    if (info.itemsize != 1 || info.ndim != 1 || (info.size && info.strides[0] != 1) || element < 1)
      throw spyre::InvalidProgram(name + ": memory is given as contiguous bytes");
    all.launch.regions.push_back(
        {address, int64_t(info.size) / element, element, static_cast<std::byte*>(info.ptr), writable, name});
  }
  for (const py::handle& each : arguments) {
    Argument argument;
    argument.real = py::isinstance<py::float_>(each);
    if (argument.real)
      argument.number = each.cast<double>();
    else
      argument.integer = each.cast<int64_t>();
    all.arguments.push_back(argument);
  }
  return all;
}

Outcome carry_out(Given& all) {
  py::gil_scoped_release released;
  Launch& launch = all.launch;
  launch.scratchpads.resize(size_t(launch.program.cores));
  if (launch.program.uses_scratchpads)
    for (auto& each : launch.scratchpads) each.resize(size_t(launch.program.lx_bytes));
  spyre::Engine& engine = spyre::Runtime::get().engine();
  return run(launch, all.arguments,
             [&](int64_t cores, const std::function<void(int64_t)>& body) { engine.parallel_for(cores, body); });
}

py::dict timed(const TileProgram& program, const py::list& arguments, const std::vector<GivenRegion>& regions) {
  Given all = given(program, arguments, regions);
  all.launch.values = false;
  const Outcome outcome = carry_out(all);
  const TileTime time = time_of(all.launch, outcome, card(-1).clock());
  py::list by_region, spans;
  for (size_t i = 0; i < time.regions.size(); ++i) {
    const auto& each = time.regions[i];
    by_region.append(
        py::make_tuple(all.launch.regions[i].name, each.read, each.written, each.unique_read, each.unique_written));
  }
  for (const auto& core : time.spans) {
    py::list of_core;
    for (const auto& span : core) of_core.append(py::make_tuple(span.where, span.ns, span.matrix));
    spans.append(of_core);
  }
  py::dict result;
  result["picoseconds"] = spyre::picoseconds(time.step);
  result["begin_ns"] = time.step.begin_ns;
  result["memory_ns"] = time.step.memory_ns;
  result["compute_ns"] = time.step.compute_ns;
  result["ring_ns"] = time.step.ring_ns;
  result["vector_ns"] = time.vector_ns;
  result["matrix_ns"] = time.matrix_ns;
  result["critical_core"] = time.critical_core;
  result["bound_by"] = card(-1).clock().bound_by(time.step, time.matrix_ns > time.vector_ns);
  result["regions"] = by_region;
  result["spans"] = spans;
  return result;
}

}  // namespace

void bind_tiles(py::module_& m) {
  py::class_<TileProgram, std::shared_ptr<TileProgram>>(m, "TileProgram", "A function of KTIR that is ready to run.")
      .def(py::init([](const py::dict& description) {
             return std::const_pointer_cast<TileProgram>(tile_program(description));
           }),
           py::arg("description"))
      .def(
          "run",
          [](const TileProgram& program, const py::list& arguments, const std::vector<GivenRegion>& regions) {
            Given all = given(program, arguments, regions);
            carry_out(all);
          },
          py::arg("arguments"), py::arg("regions"))
      .def("time", &timed, py::arg("arguments"), py::arg("regions"));
}

}  // namespace torch_spyre
