// Errors of the card: each type says whose fault it is; messages say what was seen and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace spyre {

// The operation and the line of the host's program that a task comes from.
struct Origin {
  const std::string* op = nullptr;  // lives as long as the process
  const void* code = nullptr;       // of the program that called it, and where in it
  int offset = 0;
};

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  Origin origin{};  // of the task that failed
};
// No block of the asked size; the card stays usable.
struct OutOfMemory : Error {
  using Error::Error;
};
// A program breaks a rule of the hardware: refused before it runs.
struct InvalidProgram : Error {
  using Error::Error;
};
// A layout does not describe the tensor it is given to.
struct InvalidLayout : Error {
  using Error::Error;
};
// A value that its type on the card cannot hold, found while data moved.
struct ValueRange : Error {
  using Error::Error;
};
// An index that leads outside of its dimension, found while a program ran.
struct IndexRange : Error {
  using Error::Error;
};
// An integer was divided by zero, found while a program ran.
struct DivisionByZero : Error {
  using Error::Error;
};
// Strict mode: what the silicon would do silently (uninitialised read, out of bounds, race between cores).
struct UndefinedBehavior : Error {
  using Error::Error;
};
// The environment or the machine cannot give what was asked.
struct ConfigurationError : Error {
  using Error::Error;
};
// Cards that should do a collective together did not: they ask for different ones, or one of them is missing.
struct CollectiveFailed : Error {
  using Error::Error;
};
// The host asked to stop waiting (Ctrl-C). What was queued is dropped.
struct Interrupted : Error {
  using Error::Error;
};
// Work that an interrupt dropped is waited for, or what it would have written is used.
struct Dropped : Error {
  using Error::Error;
};
// A task found, at a point where it can stop, that an interrupt dropped it. Never leaves the engine.
struct Stopped {};

}  // namespace spyre
