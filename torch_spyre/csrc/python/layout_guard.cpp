#include "python/layout_guard.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "runtime/storage/storage.h"

namespace py = pybind11;

namespace torch_spyre {

namespace {

constexpr const char* kLayout = "spyre layout";

PyObject* has_layout(PyObject* expected, PyObject* tensor) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPVariable_Check(tensor), "expected a tensor, not ", Py_TYPE(tensor)->tp_name);
  const auto* layout = static_cast<const spyre::Layout*>(PyCapsule_GetPointer(expected, kLayout));
  return PyBool_FromLong(storage_of(THPVariable_Unpack(tensor)).layout() == *layout);
  END_HANDLE_TH_ERRORS
}

PyMethodDef has_layout_method = {"layout_guard", has_layout, METH_O, nullptr};

}  // namespace

py::object layout_guard(const at::Tensor& tensor) {
  auto layout = std::make_unique<spyre::Layout>(storage_of(tensor).layout());
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(layout.get(), kLayout, [](PyObject* self) {
    delete static_cast<spyre::Layout*>(PyCapsule_GetPointer(self, kLayout));
  }));
  if (!capsule) throw py::error_already_set();
  layout.release();
  return py::reinterpret_steal<py::object>(PyCFunction_New(&has_layout_method, capsule.ptr()));
}

}  // namespace torch_spyre
