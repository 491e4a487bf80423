#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "aten/copy.h"
#include "aten/factories.h"
#include "python/bindings.h"
#include "runtime/device/device.h"
#include "runtime/numbers/dtypes.h"
#include "runtime/numbers/scalars.h"
#include "runtime/storage/storage_view.h"

namespace py = pybind11;

namespace torch_spyre {

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

// The loop nests that move a tensor between host and card: (ranges, device strides, host strides) for each.
py::list transfers(const at::Tensor& tensor) {
  const spyre::DeviceView view = device_view(tensor);
  spyre::Nest nest;
  nest.offset[0] = view.offset;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    nest.loops.push_back({tensor.size(i), {tensor.stride(i), tensor.stride(i)}});
  py::list nests;
  for (spyre::Nest& part : spyre::lower(spyre::places(*view.layout), 0, nest)) {
    spyre::sort_by_stride(part, 0);
    py::tuple ranges(part.loops.size()), device(part.loops.size()), host(part.loops.size());
    for (size_t i = 0; i < part.loops.size(); ++i) {
      ranges[i] = part.loops[i].count;
      device[i] = part.loops[i].stride[0];
      host[i] = part.loops[i].stride[1];
    }
    nests.append(py::make_tuple(ranges, device, host));
  }
  return nests;
}
void set_layout(const at::Tensor& tensor, const Layout& layout) {
  SpyreStorageImpl& storage = storage_of(tensor);
  TORCH_CHECK_VALUE(!storage.untyped && storage.base_offset == 0, "only a tensor's own storage has a layout to set");
  spyre::check_layout(layout, storage.size, storage.strides);
  TORCH_CHECK_VALUE(layout.format == storage.layout().format && storage.held().block &&
                        layout.device_bytes() <= static_cast<int64_t>(storage.held().block->bytes),
                    "this layout needs another format or more memory than the tensor has");
  storage.set_layout(layout);
}

// Tensor.data = other, which PyTorch allows only between the devices that it knows.
void set_data(const at::Tensor& self, const at::Tensor& data) {
  self.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
  if (!torch::autograd::impl::get_autograd_meta(self)) return;
  // The old gradient accumulator expects gradients of the old device.
  torch::autograd::impl::set_grad_accumulator(
      self, c10::weak_intrusive_ptr<torch::autograd::Node>(c10::intrusive_ptr<torch::autograd::Node>()));
}

uint32_t encode(double value, DataFormat format) {
  const at::ScalarType dtype = dtype_of(format);
  const bool real = c10::isFloatingType(dtype);
  if (!real && !(std::abs(value) < 0x1p63))
    throw py::value_error(std::to_string(value) + " is no integer that a card keeps");
  return encode_constant(real ? at::Scalar(value) : at::Scalar(static_cast<int64_t>(value)), dtype);
}

void bind_types(py::module_& m) {
  auto formats = py::enum_<DataFormat>(m, "DataFormats", "The number formats of the card.");
  for (int i = 0; i <= 18; ++i) formats.value(spyre::name(static_cast<DataFormat>(i)), static_cast<DataFormat>(i));
  formats.def(
      "elems_per_stick",
      [](DataFormat format) {
        const int64_t count = spyre::elements_per_stick(format);
        if (count == 0) throw py::value_error(std::string("the card does not store format ") + spyre::name(format));
        return count;
      },
      "Return how many elements fit a stick of 128 bytes. Raises ValueError for a format that the card does not "
      "store.");

  auto arrangements = py::enum_<ElementArrangement>(m, "ElementArrangement", "The order of elements inside a stick.");
  for (int i = 0; i < 4; ++i) arrangements.value(kArrangements[i], static_cast<ElementArrangement>(i));

  py::class_<Layout>(m, "SpyreTensorLayout",
                     "The device layout of a storage: device sizes, their strides on the host, format.")
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
}

}  // namespace

void bind_layouts(py::module_& m) {
  bind_types(m);
  m.def("get_device_dtype", &device_dtype, py::arg("dtype"),
        "Return the card's number format for a dtype. Raises TypeError for a dtype that the card does not have.");
  m.def(
      "get_elem_in_stick", [](at::ScalarType dtype) { return spyre::elements_per_stick(device_dtype(dtype)); },
      py::arg("dtype"), "Return how many elements of a dtype fit a stick of 128 bytes.");
  m.def(
      "get_spyre_tensor_layout", [](const at::Tensor& tensor) { return storage_of(tensor).layout(); },
      py::arg("tensor"), "Return the layout of a spyre tensor's storage. Raises RuntimeError for other tensors.");
  m.def("set_spyre_tensor_layout", &set_layout, py::arg("tensor"), py::arg("layout"),
        "Give a tensor's storage another layout without moving its bytes. Raises ValueError where it does not fit.");
  m.def(
      "empty_with_layout",
      [](const Dims& size, at::ScalarType dtype, const Layout& layout, std::optional<at::Device> device) {
        return empty_with_layout(size, spyre::contiguous_strides(size), dtype, layout, resolve(device));
      },
      py::arg("size"), py::arg("dtype"), py::arg("layout"), py::arg("device") = py::none(),
      "Return a contiguous tensor without values in this layout. Raises where the layout does not fit the tensor.");
  m.def(
      "spyre_empty_with_layout",
      [](const Dims& size, const Dims& strides, at::ScalarType dtype, const Layout& layout,
         std::optional<at::Device> device) { return empty_with_layout(size, strides, dtype, layout, resolve(device)); },
      py::arg("size"), py::arg("stride"), py::arg("dtype"), py::arg("layout"), py::arg("device") = py::none(),
      "Like empty_with_layout, with host strides.");
  const auto alias = [](const at::Tensor& base, const Dims& size, const Dims& strides, int64_t offset,
                        const Layout& layout) {
    return alias_with_layout(base, size, strides, offset, base.scalar_type(), layout);
  };
  constexpr const char* kAlias =
      "Return a tensor on the same memory, read through another layout. Raises where the layout or the view does not "
      "fit "
      "that memory.";
  m.def("as_strided_with_layout", alias, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("storage_offset"), py::arg("layout"), kAlias);
  m.def("reinterpret_tensor_with_layout", alias, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("storage_offset"), py::arg("layout"), kAlias);
  m.def(
      "copy_tensor",
      [](const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
        destination.copy_(source, non_blocking);
      },
      py::arg("src"), py::arg("dst"), py::arg("non_blocking") = false, py::call_guard<py::gil_scoped_release>(),
      "Copy src into dst, between host and card or on a card.");
  m.def(
      "encode_constant", &encode, py::arg("value"), py::arg("device_dtype"),
      "Return the bits of a number in one of the card's formats. Raises ValueError for a number that the format cannot "
      "hold, or a format that the card does not store.");

  // Internal
  m.def("canonical_layout", &spyre::canonical, py::arg("layout"));
  m.def("round_to_device", &round_to_device, py::arg("value"), py::arg("dtype"));
  m.def("set_data", &set_data, py::arg("tensor"), py::arg("data"));
  m.def("get_transfers", &transfers, py::arg("tensor"));
  m.def(
      "has_default_layout", [](const at::Tensor& tensor) { return storage_of(tensor).has_default_layout(); },
      py::arg("tensor"));
  m.def("downcast_warning", &downcast_warning);
  m.def("set_downcast_warning", &set_downcast_warning, py::arg("on"));
}

}  // namespace torch_spyre
