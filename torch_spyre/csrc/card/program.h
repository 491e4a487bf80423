// A card program is data: steps over an iteration space that is divided over cores, operands with affine addresses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "layout.h"

namespace spyre {

// What a step does:
//   copy, restickify  operands: written, read; same format
//   fill              operand: written; `constant` is the element's bits
//   elementwise       operands: written, then the inputs of tile operation `function`
//   reduce            operands: written, read; folds the last `reduced` dimensions with the two-input tile operation
//                     `function`, starting from constants[0]; the written operand does not move along them
//   matmul            operands: C, A, B over extents [batch ..., m, n, k]; the stride of a dimension that lies along an
//                     operand's sticks (n of C, k of A, n of B, or k of B when transposed) is the distance of two
//                     sticks
enum class OpCode { copy, fill, restickify, elementwise, reduce, matmul };
const char* name(OpCode op);
OpCode op_code(const std::string& name);  // throws InvalidProgram

// Address of a point = argument's address + offset + dot(point, strides); all in bytes.
struct Operand {
  int argument = 0;
  int64_t offset = 0;
  Dims strides;
  DataFormat format = DataFormat::SEN169_FP16;
};

struct Step {
  OpCode op = OpCode::copy;
  Dims extents;  // the whole iteration space
  Dims slices;   // how many cores share each dimension; a core takes ceil(extent / slices) points, the last the rest
  std::vector<Operand> operands;  // written first
  uint32_t constant = 0;          // fill: the element's bits in the operand's format
  std::string source{};           // where it comes from, for messages
  std::string function{};         // elementwise, reduce: the tile operation's name
  std::vector<double> constants{};
  int reduced = 0;          // reduce: how many dimensions, the last ones
  bool transposed = false;  // matmul: B is sticked on k
  bool checked = false;     // an integer result that its format cannot hold is an error, instead of wrapping

  int cores() const { return static_cast<int>(product(slices)); }
};

struct Program {
  std::string name;
  std::vector<int64_t> argument_bytes;
  std::vector<Step> steps;
  Picoseconds time = -1;  // modelled; settled by Card::prepare, negative before
};

struct Limits {
  int cores;
  int64_t span_bytes;
};

// Throws InvalidProgram naming program, step and field.
void validate(const Program& program, const Limits& limits);
Picoseconds duration(const Program& program, const Clock& clock);

// The part of a step that one core carries out; offsets and strides in elements. A loop of count 0: nothing to do.
Nest core_nest(const Step& step, int core);
// The elements of one operand that a core touches, each once, on side 0.
std::vector<Nest> touched(const Step& step, int core, size_t operand);

// A kernel as the runtime launches it. Host steps share buffers that each launch gets a fresh copy of.
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
  Picoseconds time = -1;  // as in Program
};

// Throws InvalidProgram naming plan, step and field.
void validate(const JobPlan& plan, const Limits& limits);
Picoseconds duration(const JobPlan& plan, const Clock& clock);

}  // namespace spyre
