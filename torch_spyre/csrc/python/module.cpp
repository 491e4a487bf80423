// The Python module torch_spyre._C; _C.pyi describes what is in it.
#include "aten/dispatch.h"
#include "aten/sparse_and_nested.h"
#include "card/card.h"
#include "python/bindings.h"
#include "runtime/calls/interrupts.h"

namespace py = pybind11;

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

  torch_spyre::bind_layouts(m);
  torch_spyre::bind_kernels(m);
  torch_spyre::bind_tiles(m);
  torch_spyre::bind_runtime(m);
  torch_spyre::bind_distributed(m);

  // All kernels with registrations of their own are registered by now: they were when the library was loaded.
  torch_spyre::register_structured_ops();
  torch_spyre::register_sparse_and_nested_ops();
  torch_spyre::install_interrupt_check();
}
