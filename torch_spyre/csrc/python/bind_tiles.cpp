#include <torch/csrc/utils/pybind.h>

#include "card/card.h"
#include "card/tiles.h"
#include "python/bindings.h"
#include "python/tile_description.h"
#include "runtime/device/device.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

using namespace spyre::tiles;

// (address in elements, bytes of an element, the bytes, whether they may be written, name)
using GivenRegion = std::tuple<int64_t, int64_t, py::buffer, bool, std::string>;

// Keeps the arrays alive.
struct Held {
  std::vector<py::buffer_info> buffers;
  Memories memory;
};

std::unique_ptr<Held> held(const std::vector<GivenRegion>& given) {
  auto all = std::make_unique<Held>();
  std::vector<Region> regions;
  for (const auto& [address, element, bytes, writable, name] : given) {
    all->buffers.push_back(bytes.request(writable));
    const py::buffer_info& info = all->buffers.back();
    if (info.itemsize != 1 || info.ndim != 1 || (info.size && info.strides[0] != 1) || element < 1)
      throw spyre::InvalidProgram(name + ": memory is given as contiguous bytes");
    const int64_t elements = int64_t(info.size) / element, most = int64_t{1} << 60;
    if (address < -most || address > most)
      throw spyre::InvalidProgram(name + ": an address of " + std::to_string(address));
    regions.push_back({address, elements, element, static_cast<std::byte*>(info.ptr), writable, name});
  }
  all->memory = Memories(std::move(regions));
  return all;
}

std::vector<Argument> numbers(const py::list& given) {
  std::vector<Argument> arguments;
  for (const py::handle& each : given) {
    Argument argument;
    argument.real = py::isinstance<py::float_>(each);
    if (argument.real)
      argument.number = each.cast<double>();
    else
      argument.integer = each.cast<int64_t>();
    arguments.push_back(argument);
  }
  return arguments;
}

Outcome carry_out(Launch& launch, const std::vector<Argument>& arguments) {
  py::gil_scoped_release released;
  if (launch.program.uses_scratchpads)
    launch.memory.make_scratchpads(size_t(launch.program.cores), size_t(launch.program.lx_bytes));
  spyre::Engine& engine = spyre::Runtime::get().engine();
  return run(launch, arguments,
             [&](int64_t cores, const std::function<void(int64_t)>& body) { engine.parallel_for(cores, body); });
}

void run_program(const TileProgram& program, const py::list& arguments, Held& memory,
                 const std::vector<GivenRegion>& regions) {
  const auto own = held(regions);
  Launch launch{program, memory.memory, std::move(own->memory)};
  carry_out(launch, numbers(arguments));
}

py::dict timed(const TileProgram& program, const py::list& arguments, Held& memory,
               const std::vector<GivenRegion>& regions) {
  const auto own = held(regions);
  Launch launch{program, memory.memory, std::move(own->memory), false};
  const Outcome outcome = carry_out(launch, numbers(arguments));
  const TileTime time = time_of(launch, outcome, card(-1).clock());
  py::list by_region, spans;
  for (const auto& each : time.regions)
    by_region.append(py::make_tuple(each.region->name, each.read, each.written, each.unique_read, each.unique_written));
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
  py::class_<Held>(m, "TileMemory", "Memory that functions of KTIR share: arrays at addresses, and scratchpads.")
      .def(py::init(&held), py::arg("regions"));
  py::class_<TileProgram, std::shared_ptr<TileProgram>>(m, "TileProgram", "A function of KTIR that is ready to run.")
      .def(py::init([](const py::dict& description) {
             return std::const_pointer_cast<TileProgram>(tile_program(description));
           }),
           py::arg("description"))
      .def("run", &run_program, py::arg("arguments"), py::arg("memory"), py::arg("regions"))
      .def("time", &timed, py::arg("arguments"), py::arg("memory"), py::arg("regions"));
}

}  // namespace torch_spyre
