// Host accesses to device memory: they fault, and the process says which tensor was touched before it ends.
#pragma once

#include "card/memory/memory.h"

namespace spyre {

// Installs (once) a SIGSEGV handler that, for an address in some Memory's faulting range, prints which tensor was
// touched and what to do instead, then hands over to the handler that was there before. Other faults pass through.
void install_fault_handler();
// The memories that the handler knows.
void watch_faults(const Memory* memory);
void unwatch_faults(const Memory* memory);

}  // namespace spyre
