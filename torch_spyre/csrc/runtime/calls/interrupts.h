// Ctrl-C: it ends a wait for the card, and work that was queued before it is dropped.
#pragma once

namespace torch_spyre {

// Lets waits for the card notice signals, and watches for Ctrl-C between waits.
void install_interrupt_check();
// Notes every Ctrl-C while Python's default handler is installed. Whoever installs another handler ends this.
void watch_ctrl_c();
// Queued work is dropped when the card is used next.
void note_ctrl_c();
// Drops the work that was queued before a Ctrl-C that no wait has noticed.
void drop_work_if_interrupted();

// Runs Python's handlers for the signals that have arrived, in the main thread only. Returns true if one raised; this
// thread must then call raise_interrupt().
bool signal_handlers_raise();
// Raises what the signal handler raised (Ctrl-C: KeyboardInterrupt).
[[noreturn]] void raise_interrupt();

}  // namespace torch_spyre
