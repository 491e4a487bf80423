#include "aten/eager_kernels.h"
#include "card/card.h"
#include "profiler/recorder.h"
#include "python/bindings.h"
#include "runtime/calls/blocking.h"
#include "runtime/calls/interrupts.h"
#include "runtime/device/device.h"
#include "runtime/device/generator.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

// The index of a card as Python gives it. PyTorch counts devices in a byte.
c10::DeviceIndex device_index(int index) {
  TORCH_CHECK(index >= -1 && index < 128, "invalid device index ", index);
  return static_cast<c10::DeviceIndex>(index);
}

void free_runtime() {
  if (!spyre::Runtime::started()) return;
  spyre::Runtime& runtime = spyre::Runtime::get();
  run_blocking([&] {
    for (int i = 0; i < runtime.count(); ++i) runtime.card(i).synchronize();
  });
  for (int i = 0; i < runtime.count(); ++i) {
    const int64_t bytes = runtime.card(i).memory().stats().allocated_bytes.current;
    TORCH_CHECK(bytes == 0, "the runtime cannot be freed while tensors hold ", bytes, " bytes of card ", i);
  }
  TORCH_CHECK(runtime.pinned().stats().allocated_bytes.current == 0,
              "the runtime cannot be freed while pinned host tensors are alive");
  forget_kernels();  // they hold modelled times of the cards that stop
  spyre::Runtime::stop();
}

// A list of (address, bytes, small, parts), with parts of (address, bytes, "allocated", "pending" or "free").
py::list memory_snapshot(int index) {
  spyre::Memory& memory = card(device_index(index)).memory();
  constexpr const char* kUses[] = {"allocated", "pending", "free"};
  py::list chunks;
  for (const spyre::ChunkState& chunk : memory.snapshot()) {
    py::list parts;
    for (const auto& part : chunk.blocks)
      parts.append(py::make_tuple(part.offset, part.bytes, kUses[static_cast<int>(part.use)]));
    chunks.append(py::make_tuple(chunk.offset, chunk.bytes, chunk.small, parts));
  }
  return chunks;
}

void add_callback(int device, int stream, py::function body) {
  // A worker thread drops the last reference, so it is dropped under the GIL.
  std::shared_ptr<py::function> held(new py::function(std::move(body)), [](py::function* held) {
    py::gil_scoped_acquire gil;
    delete held;
  });
  py::gil_scoped_release release;
  card(device_index(device)).callback(stream, [held] {
    py::gil_scoped_acquire gil;
    (*held)();
  });
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.attr("failure_listeners") = py::handle(failure_listeners());
  m.def("set_hardware_file", &spyre::Runtime::set_hardware_file, py::arg("path"));
  m.def(
      "start_runtime", [] { spyre::Runtime::get(); },
      "Start the runtime, which the first tensor does by itself. Raises where the environment is wrong.");
  m.def("watch_ctrl_c", &watch_ctrl_c);
  m.def("note_ctrl_c", &note_ctrl_c);
  m.def("free_runtime", &free_runtime,
        "Stop the runtime. Raises RuntimeError while tensors of the card or pinned tensors are alive.");
  m.def("runtime_started", &spyre::Runtime::started);
  m.def(
      "drop_work",
      [] {
        if (spyre::Runtime::started() && !spyre::Runtime::forked()) spyre::Runtime::get().engine().drop_all();
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("in_bad_fork", &spyre::Runtime::forked);
  m.def("device_count", [] {
    spyre::Runtime::device_count();  // raises what is wrong with the environment
    return device_count();
  });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int index) {
    TORCH_CHECK(index >= -128 && index < 128, "invalid device index ", index);
    set_device(static_cast<c10::DeviceIndex>(index));
  });
  m.def("card_mode", [] {
    constexpr const char* kModes[] = {"run", "timing", "strict"};
    return kModes[static_cast<int>(spyre::Runtime::get().options().mode)];
  });
  m.def("flex_device", [] {
    constexpr const char* kFlex[] = {"PF", "VF", "MOCK"};
    return kFlex[static_cast<int>(spyre::Runtime::get().options().flex)];
  });
  m.def("card_cores", [](int index) { return card(device_index(index)).cores(); });
  m.def("card_memory", [](int index) { return card(device_index(index)).memory().capacity(); });
  m.def("memory_snapshot", &memory_snapshot);
  m.def(
      "card_counters",
      [](int index) {
        const spyre::CardCounters& counters = card(device_index(index)).counters();
        return py::bytes(reinterpret_cast<const char*>(&counters), sizeof(counters));
      },
      "Return a card's counters as `spyre smi` reads them.", py::arg("device"));
  m.def("physical_index", [](int index) { return card(device_index(index)).physical(); });
  m.def("simd_level", &spyre::simd_level);
  m.def(
      "stream_time_ns",
      [](int device, int stream) {
        spyre::Card& on = card(device_index(device));
        spyre::Picoseconds time = 0;
        run_blocking([&] { time = on.engine().time(on.stream(stream), spyre::Runtime::interrupted); });
        return static_cast<double>(time) / 1000;
      },
      "Return the modelled time at the end of a stream's queue, in nanoseconds.", py::arg("device"), py::arg("stream"));
  m.def(
      "stream_outside_ns",
      [](int device, int stream) {
        spyre::Card& on = card(device_index(device));
        return static_cast<double>(on.engine().outside(on.stream(stream))) / 1000;
      },
      "Return how much of that time the stream waited for collectives.", py::arg("device"), py::arg("stream"));
  m.def("default_generator", [](int device) { return default_generator(device_index(device)); });
  m.def("profiler_row_limit", &profiler::row_limit);
  m.def("set_profiler_row_limit", &profiler::set_row_limit, py::arg("rows"));
  m.def("add_callback", &add_callback, py::arg("device"), py::arg("stream"), py::arg("function"),
        "Queue a call of a function on a stream. What it raises is raised by the next call that waits for the stream.");
}

}  // namespace torch_spyre
