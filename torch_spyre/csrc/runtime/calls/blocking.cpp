#include "runtime/calls/blocking.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>

#include "card/card.h"
#include "profiler/recorder.h"
#include "runtime/calls/interrupts.h"
#include "runtime/calls/origin.h"

namespace torch_spyre {

namespace {

[[noreturn]] void raise_as_torch(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const spyre::Dropped& e) {
    if (signal_handlers_raise()) raise_interrupt();  // the reason is a Ctrl-C that Python has not raised yet
    TORCH_CHECK(false, e.what());
  } catch (const spyre::OutOfMemory& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
  } catch (const spyre::IndexRange& e) {
    TORCH_CHECK_INDEX(false, e.what(), text_of(e.origin));
  } catch (const spyre::ValueRange& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::InvalidLayout& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::InvalidProgram& e) {
    TORCH_CHECK_VALUE(false, e.what(), text_of(e.origin));
  } catch (const spyre::CollectiveFailed& e) {
    TORCH_CHECK_WITH(DistBackendError, false, e.what(), text_of(e.origin));
  } catch (const spyre::Error& e) {
    TORCH_CHECK(false, e.what(), text_of(e.origin));
  } catch (const pybind11::error_already_set& e) {
    // An event may hold the same exception too, and this class can be restored only once.
    pybind11::gil_scoped_acquire gil;
    PyErr_Restore(e.type().inc_ref().ptr(), e.value().inc_ref().ptr(), e.trace().inc_ref().ptr());
    throw_python_error();
  }
}

[[noreturn]] void tell_and_raise(const std::exception_ptr& error) {
  try {
    raise_as_torch(error);
  } catch (const c10::OutOfMemoryError& e) {
    tell_listeners("OutOfMemoryError", e.what_without_backtrace());
    throw;
  } catch (const c10::IndexError& e) {
    tell_listeners("IndexError", e.what_without_backtrace());
    throw;
  } catch (const c10::ValueError& e) {
    tell_listeners("ValueError", e.what_without_backtrace());
    throw;
  } catch (const c10::Error& e) {
    tell_listeners("RuntimeError", e.what_without_backtrace());
    throw;
  }
}

}  // namespace

PyObject* failure_listeners() {
  static PyObject* const listeners = PyList_New(0);
  return listeners;
}

// What listeners raise is dropped: the error that they hear of is the one that counts.
void tell_listeners(const char* type, const char* message, const std::string& op) {
  const pybind11::gil_scoped_acquire gil;
  if (PyList_GET_SIZE(failure_listeners()) == 0) return;
  try {
    // A copy of the list, since a listener may remove itself.
    for (const pybind11::handle listener :
         pybind11::list(pybind11::reinterpret_borrow<pybind11::list>(failure_listeners())))
      listener(type, message, op);
  } catch (pybind11::error_already_set& raised) {
    raised.discard_as_unraisable("a listener to failures");
  }
}

void throw_python_error() {
  python_error raised;
  raised.persist();
  throw raised;
}

void run_blocking(const std::function<void()>& body) {
  const profiler::HostCall call;
  PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  std::exception_ptr error;
  bool interrupted = false;
  try {
    body();
  } catch (const spyre::Interrupted&) {
    interrupted = true;
  } catch (...) {
    error = std::current_exception();
  }
  if (released) PyEval_RestoreThread(released);
  if (interrupted) raise_interrupt();
  if (error) tell_and_raise(error);
}

}  // namespace torch_spyre
