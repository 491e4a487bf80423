// The Python module torch_spyre._C.
#include <ATen/ops/empty.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>

#include "card/card.h"
#include "compiled.h"
#include "copy.h"
#include "eager.h"
#include "factories.h"
#include "fallback.h"
#include "generator.h"
#include "jobplan.h"
#include "measure.h"
#include "numbers.h"
#include "storage.h"

namespace py = pybind11;
using namespace torch_spyre;
using spyre::DataFormat;
using spyre::Dims;
using spyre::Layout;

namespace {

enum class ElementArrangement { STANDARD = 0, DL16_TO_FP32 = 1, QFP8CH = 2, EXX2 = 3 };
constexpr const char* kArrangements[] = {"STANDARD", "DL16_TO_FP32", "QFP8CH", "EXX2"};

std::string layout_text(const Layout& layout) {
  std::string text = layout.str();
  if (layout.arrangement != 0) {
    text.pop_back();
    text += std::string(", element_arrangement=ElementArrangement.") + kArrangements[layout.arrangement] + ")";
  }
  return text;
}

// Index of a card as Python gives it; devices are counted in a byte.
c10::DeviceIndex device_index(int index) {
  TORCH_CHECK(index >= -1 && index < 128, "invalid device index ", index);
  return static_cast<c10::DeviceIndex>(index);
}

Layout arranged(Layout layout, ElementArrangement arrangement) {
  layout.arrangement = static_cast<int>(arrangement);
  return layout;
}

Layout explicit_layout(Dims device_size, Dims stride_map, DataFormat format, ElementArrangement arrangement) {
  Layout layout{std::move(device_size), std::move(stride_map), format, static_cast<int>(arrangement)};
  spyre::check_layout(layout, {}, {});
  spyre::places(layout);
  return layout;
}

DataFormat device_dtype(at::ScalarType dtype) { return spyre::format_of(host_type(dtype)); }

at::ScalarType dtype_of(DataFormat format) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      return at::kBFloat16;  // the wider of the two: no overflow check on constants
    case DataFormat::IEEE_FP32:
      return at::kFloat;
    case DataFormat::SEN143_FP8:
      return at::kFloat8_e4m3fn;
    case DataFormat::SEN152_FP8:
      return at::kFloat8_e5m2;
    case DataFormat::SENINT8:
      return at::kChar;
    case DataFormat::SENINT16:
      return at::kShort;
    case DataFormat::SENUINT32:
      return at::kByte;
    case DataFormat::IEEE_INT32:
      return at::kLong;
    default:
      throw py::value_error(std::string("the card does not store format ") + spyre::name(format));
  }
}

// The loops that move a tensor between host and card: (ranges, device strides, host strides) per piece.
py::list transfers(const at::Tensor& tensor) {
  const spyre::DeviceView view = device_view(tensor);
  spyre::Nest nest;
  nest.offset[0] = view.offset;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    nest.loops.push_back({tensor.size(i), {tensor.stride(i), tensor.stride(i)}});
  py::list pieces;
  for (spyre::Nest& piece : spyre::lower(spyre::places(*view.layout), 0, nest)) {
    spyre::sort_by_stride(piece, 0);
    py::tuple ranges(piece.loops.size()), device(piece.loops.size()), host(piece.loops.size());
    for (size_t i = 0; i < piece.loops.size(); ++i) {
      ranges[i] = piece.loops[i].count;
      device[i] = piece.loops[i].stride[0];
      host[i] = piece.loops[i].stride[1];
    }
    pieces.append(py::make_tuple(ranges, device, host));
  }
  return pieces;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The spyre device: layouts, memory, streams, kernels of the software card.";

  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const spyre::OutOfMemory& e) {
      py::set_error(py::module_::import("torch").attr("OutOfMemoryError"), e.what());
    } catch (const spyre::IndexRange& e) {
      py::set_error(PyExc_IndexError, e.what());
    } catch (const spyre::ValueRange& e) {
      py::set_error(PyExc_ValueError, e.what());
    } catch (const spyre::InvalidLayout& e) {
      py::set_error(PyExc_ValueError, e.what());
    } catch (const spyre::InvalidProgram& e) {
      py::set_error(PyExc_ValueError, e.what());
    } catch (const spyre::Error& e) {
      py::set_error(PyExc_RuntimeError, e.what());
    }
  });

  auto formats = py::enum_<DataFormat>(m, "DataFormats");
  for (int i = 0; i <= 18; ++i) formats.value(spyre::name(static_cast<DataFormat>(i)), static_cast<DataFormat>(i));
  formats.def("elems_per_stick", [](DataFormat format) {
    const int64_t count = spyre::elements_per_stick(format);
    if (count == 0) throw py::value_error(std::string("the card does not store format ") + spyre::name(format));
    return count;
  });

  auto arrangements = py::enum_<ElementArrangement>(m, "ElementArrangement");
  for (int i = 0; i < 4; ++i) arrangements.value(kArrangements[i], static_cast<ElementArrangement>(i));

  py::class_<Layout>(m, "SpyreTensorLayout")
      .def(py::init([](const Dims& size, at::ScalarType dtype) {
             return spyre::default_layout(size, spyre::contiguous_strides(size), device_dtype(dtype));
           }),
           py::arg("host_size"), py::arg("dtype"))
      .def(py::init([](const Dims& size, const Dims& strides, at::ScalarType dtype, const Dims& order,
                       ElementArrangement arrangement) {
             return arranged(spyre::default_layout(size, strides, device_dtype(dtype), order), arrangement);
           }),
           py::arg("host_size"), py::arg("host_strides"), py::arg("dtype"), py::arg("dim_order"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def(py::init(&explicit_layout), py::arg("device_size"), py::arg("stride_map"), py::arg("device_dtype"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def_property_readonly("device_size", [](const Layout& layout) { return layout.device_size; })
      .def_property_readonly("stride_map", [](const Layout& layout) { return layout.stride_map; })
      .def_property_readonly("device_dtype", [](const Layout& layout) { return layout.format; })
      .def_property_readonly("element_arrangement",
                             [](const Layout& layout) { return static_cast<ElementArrangement>(layout.arrangement); })
      .def("with_element_arrangement", &arranged, py::arg("element_arrangement"))
      .def("device_bytes", &Layout::device_bytes)
      .def("elems_per_stick", [](const Layout& layout) { return spyre::elements_per_stick(layout.format); })
      .def("__str__", &layout_text)
      .def("__repr__", &layout_text)
      .def("__eq__",
           [](const Layout& layout, const py::object& other) -> py::object {
             if (!py::isinstance<Layout>(other)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
             return py::bool_(layout == other.cast<const Layout&>());
           })
      .def("__hash__", [](const Layout& layout) { return py::hash(py::str(layout_text(layout))); })
      .def("__copy__", [](const Layout& layout) { return layout; })
      .def("__deepcopy__", [](const Layout& layout, const py::dict&) { return layout; })
      .def(py::pickle(
          [](const Layout& layout) {
            return py::make_tuple(layout.device_size, layout.stride_map, static_cast<int>(layout.format),
                                  layout.arrangement);
          },
          [](const py::tuple& state) {
            if (state.size() != 4) throw py::value_error("this is no pickled SpyreTensorLayout");
            const int format = state[2].cast<int>(), arrangement = state[3].cast<int>();
            if (format < 0 || format > static_cast<int>(DataFormat::SEN18F_FP24) || arrangement < 0 || arrangement > 3)
              throw py::value_error("this is no pickled SpyreTensorLayout");
            return explicit_layout(state[0].cast<Dims>(), state[1].cast<Dims>(), static_cast<DataFormat>(format),
                                   static_cast<ElementArrangement>(arrangement));
          }));

  // Layouts and tensors
  m.def("canonical_layout", &spyre::canonical, py::arg("layout"));
  m.def("get_device_dtype", &device_dtype, py::arg("dtype"));
  m.def("as_kept", &as_kept, py::arg("value"), py::arg("dtype"));
  m.def(
      "get_elem_in_stick", [](at::ScalarType dtype) { return spyre::elements_per_stick(device_dtype(dtype)); },
      py::arg("dtype"));
  m.def(
      "get_spyre_tensor_layout", [](const at::Tensor& tensor) { return storage_of(tensor).layout(); },
      py::arg("tensor"));
  m.def(
      "set_spyre_tensor_layout",
      [](const at::Tensor& tensor, const Layout& layout) {
        SpyreStorageImpl& storage = storage_of(tensor);
        TORCH_CHECK_VALUE(!storage.untyped && storage.origin == 0, "only a tensor's own storage has a layout to set");
        spyre::check_layout(layout, storage.size, storage.strides);
        TORCH_CHECK_VALUE(layout.format == storage.layout().format && storage.held().block &&
                              layout.device_bytes() <= static_cast<int64_t>(storage.held().block->bytes),
                          "this layout needs another format or more memory than the tensor has");
        storage.set_layout(layout);
      },
      py::arg("tensor"), py::arg("layout"));
  m.def(
      "empty_with_layout",
      [](const Dims& size, at::ScalarType dtype, const Layout& layout, std::optional<at::Device> device) {
        return empty_with_layout(size, spyre::contiguous_strides(size), dtype, layout, resolve(device));
      },
      py::arg("size"), py::arg("dtype"), py::arg("layout"), py::arg("device") = py::none());
  m.def(
      "spyre_empty_with_layout",
      [](const Dims& size, const Dims& strides, at::ScalarType dtype, const Layout& layout,
         std::optional<at::Device> device) { return empty_with_layout(size, strides, dtype, layout, resolve(device)); },
      py::arg("size"), py::arg("stride"), py::arg("dtype"), py::arg("layout"), py::arg("device") = py::none());
  const auto alias = [](const at::Tensor& base, const Dims& size, const Dims& strides, int64_t offset,
                        const Layout& layout) {
    return alias_with_layout(base, size, strides, offset, base.scalar_type(), layout);
  };
  m.def("as_strided_with_layout", alias, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("storage_offset"), py::arg("layout"));
  m.def("reinterpret_tensor_with_layout", alias, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("storage_offset"), py::arg("layout"));
  m.def(
      "copy_tensor",
      [](const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
        destination.copy_(source, non_blocking);
      },
      py::arg("src"), py::arg("dst"), py::arg("non_blocking") = false, py::call_guard<py::gil_scoped_release>());
  // Tensor.data = other, which PyTorch allows between the devices it knows only.
  m.def(
      "set_data",
      [](const at::Tensor& self, const at::Tensor& data) {
        self.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
        if (torch::autograd::impl::get_autograd_meta(self))
          torch::autograd::impl::set_grad_accumulator(
              self,
              c10::weak_intrusive_ptr<torch::autograd::Node>(
                  c10::intrusive_ptr<torch::autograd::Node>()));  // the old one expects gradients of the old device
      },
      py::arg("tensor"), py::arg("data"));
  m.def("get_transfers", &transfers, py::arg("tensor"));
  m.def(
      "encode_constant",
      [](double value, DataFormat format) {
        const at::ScalarType dtype = dtype_of(format);
        if (!c10::isFloatingType(dtype) && !(std::abs(value) < 0x1p63))
          throw py::value_error(std::to_string(value) + " is no integer that a card keeps");
        return encode_constant(c10::isFloatingType(dtype) ? at::Scalar(value) : at::Scalar(static_cast<int64_t>(value)),
                               dtype);
      },
      py::arg("value"), py::arg("device_dtype"));
  m.def("downcast_warning", &downcast_warning);
  m.def("set_downcast_warning", &set_downcast_warning, py::arg("on"));

  // Kernels
  py::class_<spyre::JobPlan, std::shared_ptr<spyre::JobPlan>>(m, "JobPlan")
      .def_readonly("name", &spyre::JobPlan::name)
      .def("num_steps", [](const spyre::JobPlan& plan) { return plan.steps.size(); })
      .def("job_allocation_size",
           [](const spyre::JobPlan& plan) {
             int64_t bytes = 0;
             for (int64_t size : plan.allocations) bytes += size;  // each below 2^40
             return bytes;
           })
      .def("step_times", &step_times)
      .def("get_step_type", [](const spyre::JobPlan& plan, size_t index) {
        if (index >= plan.steps.size())
          throw py::index_error("step " + std::to_string(index) + " of " + std::to_string(plan.steps.size()));
        return spyre::name(plan.steps[index].type);
      });
  m.def(
      "prepare_kernel",
      [](const py::dict& code) { return std::const_pointer_cast<spyre::JobPlan>(prepare_kernel(code)); },
      py::arg("code"));
  m.def("time_of_steps", &time_of_steps, py::arg("steps"), py::arg("fresh") = std::vector<int>());
  const auto launch = [](const std::shared_ptr<spyre::JobPlan>& plan, const std::vector<at::Tensor>& tensors,
                         const std::vector<double>& numbers) {
    std::vector<const at::Tensor*> pointers;
    for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
    launch_jobplan(plan, pointers, numbers);
  };
  m.def("launch_jobplan", launch, py::arg("plan").none(false), py::arg("tensors"),
        py::arg("numbers") = std::vector<double>());
  m.def("launch_kernel", launch, py::arg("plan").none(false), py::arg("tensors"),
        py::arg("numbers") = std::vector<double>());

  bind_compiled_kernels(m);
  m.def("lies_like", &lies_like, py::arg("tensor"));
  m.def(
      "has_default_layout", [](const at::Tensor& tensor) { return storage_of(tensor).has_default_layout(); },
      py::arg("tensor"));
  m.def(
      "argument_places",
      [](const std::vector<at::Tensor>& tensors) {
        py::list places;
        for (const Place& place : argument_places(tensors))
          places.append(py::make_tuple(*place.layout, place.offset, place.shared));
        return places;
      },
      py::arg("tensors"));
  m.def(
      "functional_overload",
      [](const std::string& name, const std::string& overload) {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
        const c10::OperatorName functional = functional_overload(op.schema());
        return std::pair(functional.name, functional.overload_name);
      },
      py::arg("name"), py::arg("overload"));
  m.def("kernel_counts", &kernel_counts);
  m.def("forget_kernels", &forget_kernels);

  m.def("tile_ops", [] {
    py::list rows;
    for (const spyre::TileOp& op : spyre::tile_ops()) {
      const auto domain = [](spyre::Domain d) { return d == spyre::Domain::real ? "real" : "integer"; };
      rows.append(py::make_tuple(op.name, op.arity, domain(op.in), domain(op.out), op.constants));
    }
    return rows;
  });

  // The runtime
  m.def("set_hardware_file", &spyre::Runtime::set_hardware_file, py::arg("path"));
  m.def("start_runtime", [] { spyre::Runtime::get(); });
  m.def("watch_ctrl_c", &watch_ctrl_c);
  m.def("note_ctrl_c", &note_ctrl_c);
  m.def("free_runtime", [] {
    if (!spyre::Runtime::started()) return;
    spyre::Runtime& runtime = spyre::Runtime::get();
    waiting([&] {
      for (int i = 0; i < runtime.count(); ++i) runtime.card(i).synchronize();
    });
    for (int i = 0; i < runtime.count(); ++i) {
      const int64_t bytes = runtime.card(i).memory().stats().allocated_bytes.current;
      TORCH_CHECK(bytes == 0, "the runtime cannot be freed while tensors hold ", bytes, " bytes of card ", i);
    }
    TORCH_CHECK(runtime.pinned().stats().allocated_bytes.current == 0,
                "the runtime cannot be freed while pinned host tensors are alive");
    forget_kernels();  // their times are the stopped cards'
    spyre::Runtime::stop();
  });
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
  // A list of (address, bytes, small, parts), parts of (address, bytes, "allocated", "pending" or "free").
  m.def("memory_snapshot", [](int index) {
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
  });
  m.def("physical_index", [](int index) { return card(device_index(index)).physical(); });
  m.def("simd_level", &spyre::simd_level);
  m.def("stream_time_ns", [](int device, int stream) {
    spyre::Card& on = card(device_index(device));
    return static_cast<double>(on.engine().time(on.stream(stream))) / 1000;
  });
  m.def("default_generator", [](int device) { return default_generator(device_index(device)); });
  m.def(
      "add_callback",
      [](int device, int stream, py::function body) {
        // The reference is let go on a worker thread, so under the GIL.
        std::shared_ptr<py::function> held(new py::function(std::move(body)), [](py::function* held) {
          py::gil_scoped_acquire gil;
          delete held;
        });
        py::gil_scoped_release release;
        card(device_index(device)).callback(stream, [held] {
          py::gil_scoped_acquire gil;
          (*held)();
        });
      },
      py::arg("device"), py::arg("stream"), py::arg("function"));

  // Fallbacks
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

  auto measure = m.def_submodule("measure", "The card's C++ API timed from inside, and this machine's limits.");
  measure.def("to_card", &measure_to_card, py::arg("to"), py::arg("src"), py::arg("repeats"));
  measure.def("to_host", &measure_to_host, py::arg("to"), py::arg("src"), py::arg("repeats"));
  measure.def(
      "launch", [](const std::shared_ptr<spyre::JobPlan>& plan, int repeats) { return measure_launch(plan, repeats); },
      py::arg("plan").none(false), py::arg("repeats"));
  measure.def("multiply_add", &measure_multiply_add, py::arg("threads"), py::arg("repeats"));
  measure.def("stream", &measure_stream, py::arg("bytes_read"), py::arg("bytes_written"), py::arg("threads"),
              py::arg("repeats"));

  install_interrupt_check();
}
