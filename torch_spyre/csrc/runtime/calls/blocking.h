// Calls that may wait for the card, and the errors that they raise.
#pragma once

#include <Python.h>

#include <functional>
#include <string>

namespace torch_spyre {

// Runs `body` without the GIL. A signal handler that raises ends the wait (Ctrl-C: KeyboardInterrupt). The card's
// errors become PyTorch's (ValueError, OutOfMemoryError), with the op and line that they come from; an exception of a
// host callback is raised as it is.
void run_blocking(const std::function<void()>& body);

// A list of functions of Python that are told the type and message of every error of the card, before it is raised, and
// of ops that may not fall back, with their names. Needs the GIL.
PyObject* failure_listeners();
void tell_listeners(const char* type, const char* message, const std::string& op = "");

// Throws the Python error that is set, in a form that may cross threads. Needs the GIL.
[[noreturn]] void throw_python_error();

}  // namespace torch_spyre
