#include "runtime/calls/interrupts.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <csignal>
#include <utility>

#include "card/card.h"
#include "runtime/calls/blocking.h"

namespace torch_spyre {

namespace {

// The exception that a signal handler raised inside a wait of this thread, until the wait has ended.
thread_local PyObject *raised_type = nullptr, *raised_value = nullptr, *raised_trace = nullptr;

// A Ctrl-C that arrived outside of a wait: Python raises KeyboardInterrupt by itself, and work that was queued before
// is dropped when the card is used next.
std::atomic<bool> ctrl_c_noted{false};
struct sigaction python_handler{};

void handle_ctrl_c(int signal, siginfo_t* info, void* context) {
  ctrl_c_noted.store(true, std::memory_order_relaxed);
  if (python_handler.sa_flags & SA_SIGINFO)
    python_handler.sa_sigaction(signal, info, context);
  else
    python_handler.sa_handler(signal);
}

bool has_default_handler() {
  const auto signals = pybind11::module_::import("signal");
  return signals.attr("getsignal")(static_cast<int>(SIGINT)).is(signals.attr("default_int_handler"));
}

}  // namespace

bool signal_handlers_raise() {
  if (!Py_IsInitialized()) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  if (raised) PyErr_Fetch(&raised_type, &raised_value, &raised_trace);
  PyGILState_Release(gil);
  return raised;
}

void raise_interrupt() {
  pybind11::gil_scoped_acquire gil;
  PyErr_Restore(std::exchange(raised_type, nullptr), std::exchange(raised_value, nullptr),
                std::exchange(raised_trace, nullptr));
  throw_python_error();
}

void install_interrupt_check() {
  spyre::Runtime::interrupted = [] {
    const bool raised = signal_handlers_raise();
    if (raised) ctrl_c_noted = false;  // the wait itself drops the queued work
    return raised;
  };
  watch_ctrl_c();
}

void watch_ctrl_c() {
  struct sigaction now{};
  // Only Python's default handler is known to raise: a handler of the user's is left alone.
  if (!has_default_handler() || sigaction(SIGINT, nullptr, &now) != 0) return;
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_sigaction == handle_ctrl_c) return;
  python_handler = now;
  struct sigaction chained = now;
  chained.sa_flags |= SA_SIGINFO;
  chained.sa_sigaction = handle_ctrl_c;
  sigaction(SIGINT, &chained, nullptr);
}

void note_ctrl_c() { ctrl_c_noted.store(true, std::memory_order_relaxed); }

void drop_work_if_interrupted() {
  if (!ctrl_c_noted.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (ctrl_c_noted.exchange(false) && spyre::Runtime::started() && !spyre::Runtime::forked())
    spyre::Runtime::get().engine().drop_all();
}

}  // namespace torch_spyre
