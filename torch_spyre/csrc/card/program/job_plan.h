// A kernel as the runtime launches it: card programs, copies between host and card, and functions of the host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// Host steps share buffers that each launch gets a fresh copy of.
struct JobStep {
  enum class Type { H2D, D2H, Compute, HostCompute } type;
  std::shared_ptr<const Program> program;               // Compute
  int argument = 0;                                     // H2D, D2H: raw bytes of this argument,
  int64_t offset = 0;                                   //   from here on,
  int buffer = 0;                                       //   to or from this buffer, whole
  std::function<void(std::vector<std::string>&)> host;  // HostCompute; buffers keep their sizes
};
const char* name(JobStep::Type type);

struct JobPlan {
  std::string name;
  std::vector<int64_t> argument_bytes;
  std::vector<int64_t> allocations;  // device memory of the plan itself: arguments after the caller's
  std::vector<std::string> buffers;  // initial contents of the host buffers
  std::vector<JobStep> steps;
  Picoseconds time = -1;         // as in Program
  Usage usage{};                 // as in Program
  int numbers = 0;               // as in Program
  bool time_of_numbers = false;  // the time follows from them; settled by Card::prepare
  // What begins by reading an argument that the launch before ended by writing takes longer; settled by Card::prepare.
  std::vector<std::pair<int, Picoseconds>> fresh;  // argument, how much longer
  int last_written = -1;                           // argument; -1: none
  std::vector<int> written;                        // arguments that steps write, sorted; settled by Card::prepare
  std::vector<int64_t> reach;                      // as in Program
  std::vector<Ranges> undefined;  // of each allocation: read before it is written; settled by Card::prepare

  bool is_prepared() const { return time >= 0; }
};

int numbers_of(const JobPlan& plan);
// The plan with the runtime scalars of a launch in their places. Throws InvalidProgram where an integer is wanted and
// not given.
JobPlan with_numbers(const JobPlan& plan, const std::vector<double>& numbers);

}  // namespace spyre
