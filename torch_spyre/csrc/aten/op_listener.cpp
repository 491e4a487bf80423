#include "aten/op_listener.h"

#include "runtime/calls/blocking.h"

namespace py = pybind11;

namespace torch_spyre {

std::atomic<bool> listening_to_ops{false};

namespace {
PyObject* current = nullptr;  // owned; read and written under the GIL

const char* name_of(OpEvent event) {
  switch (event) {
    case OpEvent::launched:
      return "launched";
    case OpEvent::begins:
      return "begins";
    case OpEvent::ends:
      return "ends";
  }
  return "";
}
}  // namespace

void set_op_listener(py::object listener) {
  listening_to_ops = !listener.is_none();
  Py_XDECREF(std::exchange(current, listener.release().ptr()));
}

void tell_op_listener(OpEvent event, const std::string& op, const std::shared_ptr<const spyre::JobPlan>& plan,
                      const std::string& reason) {
  const py::gil_scoped_acquire gil;
  if (!current || current == Py_None) return;
  const auto listener = py::reinterpret_borrow<py::object>(current);
  try {
    // Python sees plans without const; nothing there changes one.
    listener(name_of(event), op, std::const_pointer_cast<spyre::JobPlan>(plan), reason);
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

}  // namespace torch_spyre
