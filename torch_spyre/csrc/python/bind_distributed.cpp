// spyreccl for torch.distributed.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "distributed/backend.h"
#include "python/bindings.h"
#include "runtime/device/device.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

using distributed::SpyreCCL;

// A function of Python that threads without the GIL may call, keep and let go of.
SpyreCCL::GlooFactory without_gil(py::function function) {
  const std::shared_ptr<py::function> held(new py::function(std::move(function)), [](py::function* gone) {
    const py::gil_scoped_acquire gil;
    delete gone;
  });
  return [held](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    return (*held)(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
  };
}

c10::intrusive_ptr<SpyreCCL> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    std::chrono::milliseconds timeout, const std::vector<int64_t>& global_ranks,
                                    py::function make_gloo, const std::string& version) {
  return c10::make_intrusive<SpyreCCL>(store, rank, size, timeout, global_ranks, version,
                                       without_gil(std::move(make_gloo)));
}

c10::intrusive_ptr<SpyreCCL> create_lone(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout, const std::vector<int64_t>& global_ranks) {
  return c10::make_intrusive<SpyreCCL>(store, rank, size, timeout, global_ranks, "", nullptr);
}

spyre::CollectiveKind kind_of(const std::string& wanted) {
  for (int kind = 0; kind <= static_cast<int>(spyre::CollectiveKind::message); ++kind)
    if (wanted == spyre::name(static_cast<spyre::CollectiveKind>(kind)))
      return static_cast<spyre::CollectiveKind>(kind);
  throw py::value_error("there is no collective '" + wanted + "'");
}

// Names of algorithms and microseconds; the one that is used first.
std::vector<std::pair<std::string, double>> collective_times(const std::string& kind, int64_t bytes,
                                                             const std::vector<int>& cards) {
  const spyre::Links& links = card(current_device()).links();
  const spyre::CollectiveShape shape{kind_of(kind), bytes, cards};
  const std::string used = links.fastest(shape).algorithm;
  std::vector<std::pair<std::string, double>> times;
  for (const spyre::CollectiveTime& each : links.candidates(shape))
    times.insert(each.algorithm == used ? times.begin() : times.end(), {each.algorithm, each.ns / 1000});
  return times;
}

}  // namespace

namespace {

// PyTorch's classes are there once torch is imported, which this module may be before.
void define_spyreccl() {
  py::module_ m = py::module_::import("torch_spyre._C");
  const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");
  using Options = SpyreCCL::Options;
  py::class_<SpyreCCL, c10::intrusive_ptr<SpyreCCL>> backend(m, "SpyreCCL", c10d.attr("Backend"));
  py::class_<Options, c10::intrusive_ptr<Options>>(backend, "Options", c10d.attr("Backend").attr("Options"))
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
  backend.def_property_readonly("options", &SpyreCCL::getBackendOptions)
      .def_property_readonly("calls", &SpyreCCL::calls)
      .def(
          "monitored_barrier",
          [](SpyreCCL& backend, std::optional<std::chrono::milliseconds> timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            if (timeout) options.timeout = *timeout;
            backend.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = py::none(), py::arg("wait_all_ranks") = false);
}

}  // namespace

void bind_distributed(py::module_& m) {
  m.def("define_spyreccl", &define_spyreccl, "Define the class SpyreCCL, once.");
  m.def("create_spyreccl", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("global_ranks"), py::arg("make_gloo"), py::arg("version"));
  m.def("create_lone_spyreccl", &create_lone, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("global_ranks"));
  m.def("collective_times", &collective_times, py::arg("kind"), py::arg("bytes"), py::arg("cards"));
  m.def(
      "limit_threads", [](int threads) { spyre::Runtime::get().engine().limit_threads(threads); },
      "Use at most so many threads of the host from now on.", py::arg("threads"));
}

}  // namespace torch_spyre
