// A card program is data: steps over an iteration space that is divided over cores, operands with affine addresses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "card/clock/clock.h"
#include "card/memory/layout.h"

namespace spyre {

// What a step does. Operands: the written one, then the ones read.
//   copy, restickify  written, read; same format
//   fill              written; `constant` is the element's bits
//   elementwise       written, then the inputs of tile operation `function`
//   reduce            written, read; folds the last `reduced` dimensions with the two-input tile operation `function`,
//                     starting from constants[0]; the result is multiplied by constants[1] where that is given. Two
//                     more functions work in fp64 and round once: wide_add sums, variance sums squared distances from
//                     the mean
//   matmul            C, A, B over extents [batch ..., m, n, k]; C lies in sticks along n, A along k, B along n or k;
//                     all of integers, or C and A of reals and B of reals or in one byte (int8, fp8)
//   attention         O, Q, K, V, mask over extents [batch ..., q, e, l, d]: attention.h has what it computes; O and V
//                     lie in sticks along e, Q and K along d; the mask may be the constant 0. constants: the scale of
//                     the scores; 1 where row i attends to the keys 0 ... i alone; 1 where the mask is true or false,
//                     and not added
//   iota              written; the value at a point is constants[0] + dot(point, constants[1...])
//   gather            written, table, indices ...; `indirect` says where an index leads in the table
//   scatter           table (written), values, indices ...; `function`: copy, or a two-input tile operation
//   scan              written, read; folds along the last dimension like reduce and writes every partial result, of
//                     sums and products that are written in fp32 rounded from fp64; with `function` argmax or argmin
//                     where it lies (integer), of equal ones the last
//   argreduce         written (integer), read; `function` argmax or argmin over the last `reduced` dimensions: the
//                     first position, in row-major order over them
//   topk              written, read over extents [..., k, n]; written does not move along n, read not along k;
//                     `function` topkvalue or topkindex, constants[0] = 1 for the largest, 0 for the smallest
enum class OpCode {
  copy,
  fill,
  restickify,
  elementwise,
  reduce,
  matmul,
  attention,
  iota,
  gather,
  scatter,
  scan,
  argreduce,
  topk
};
const char* name(OpCode op);
OpCode op_code(const std::string& name);  // throws InvalidProgram

// Address of a point = argument's address + offset + dot(point, strides); all in bytes. Along dimension `stick`, where
// there is one, the operand lies in sticks of E elements, and the stride is the distance of two sticks: point p is at
// p / E * stride + p % E * element.
//
// In LX every core has its own part of an operand: the offset is an address of its scratchpad, and points count from
// the first that the core takes. Only a copy reads what another core wrote there, over the ring: with `core_strides` a
// point lies in the scratchpad of core dot(point, core_strides), at that core's offset + dot(point, strides), and
// points count from the first of all.
constexpr int kConstant = -1, kLx = -2;

struct Operand {
  int argument = 0;  // kConstant: no memory, every point reads `value`; kLx: the scratchpads
  int64_t offset = 0;
  Dims strides{};
  DataFormat format = DataFormat::SEN169_FP16;
  int stick = -1;
  double value = 0;
  int number = -1;  // >= 0: which number of the launch is the value

  int64_t core_bytes = 0;  // kLx: from one core's scratchpad to the next in memory; settled by Card::prepare
  Dims core_strides{};     // kLx: which core's scratchpad; empty: each core's own

  bool is_constant() const { return argument == kConstant; }
  bool in_lx() const { return argument == kLx; }
  bool across_cores() const { return !core_strides.empty(); }
};

// Where an index leads: an index i of operand `operand` must lie in [-extent, extent), a negative one counts from the
// end, and it moves the address of the table by i * stride, or along its sticks when `stick` is set.
struct Indirect {
  int operand = 0;
  int64_t extent = 0;
  int64_t stride = 0;
  bool stick = false;
};

class Products;

struct Step {
  OpCode op = OpCode::copy;
  Dims extents;  // the whole iteration space
  // How many cores share each dimension; a core takes ceil(extent / slices) points, rounded up to whole sticks where an
  // operand lies along them, and the last the rest. Cores that share a folded dimension (one at most) pass their
  // partial results on along the ring, in order: the bits do not change, as the first core of each group computes for
  // all.
  Dims slices;
  std::vector<Operand> operands;  // written first
  uint32_t constant = 0;          // fill: the element's bits in the operand's format
  std::string source{};           // where it comes from, for messages
  std::string function{};         // the tile operation's name
  std::vector<double> constants{};
  int reduced = 0;       // reduce, argreduce: how many dimensions are folded, the last ones
  bool checked = false;  // an integer result that its format cannot hold is an error, instead of wrapping
  std::vector<Indirect> indirect{};
  // Points of each dimension that a core holds in LX at a time; two such tiles of every operand fit, so that one is
  // loaded or stored while the other is computed. Empty: nothing is said.
  Dims tile{};
  int64_t staging = 0;                            // where in LX the tiles of operands in device memory begin
  bool special = false;                           // a special function of the vector unit, which takes it longer
  bool turn = false;                              // the first step of another turn of a loop around it
  std::vector<std::pair<size_t, int>> numbers{};  // (position in constants, which number of the launch is there)
  std::shared_ptr<const Products> products{};     // matmul: how the host divides it; settled by Card::prepare

  int cores() const { return static_cast<int>(product(slices)); }
};

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // of bytes, [first, one past last)

struct Schedule;  // segment.h
struct Segment;

struct Program {
  std::string name;
  std::vector<int64_t> argument_bytes;
  std::vector<Step> steps;
  Picoseconds time = -1;                       // modelled; settled by Card::prepare, negative before
  int numbers = 0;                             // that a launch has to give; settled by Card::prepare
  int64_t lx_bytes = 0;                        // of every core; settled by Card::prepare
  Ranges lx_undefined{};                       // of every core: read before it is written; settled by Card::prepare
  std::shared_ptr<const Schedule> schedule{};  // which steps run together; settled by Card::prepare in run mode
};

// Bytes of each core's LX that operands lie in, up to the last.
int64_t lx_bytes_of(const Program& program);

struct Limits {
  int cores;
  int64_t span_bytes;
  int64_t lx_bytes;
};

// Throws InvalidProgram naming program, step and field.
void validate(const Program& program, const Limits& limits);
// The same for all that does not depend on the sizes of arguments: enough for the clock.
void check_shapes(const Program& program, const Limits& limits);
// Throws InvalidProgram where a launch that gives one memory for several arguments makes points of a step meet;
// `memory[i]` is the first argument with the memory of argument i.
void check_same_memory(const Program& program, const Limits& limits, const std::vector<int>& memory);
Picoseconds duration(const Program& program, const Clock& clock);
std::vector<StepTime> step_times(const Program& program, const Clock& clock);

// How many of the last dimensions are folded.
size_t folded_dimensions(const Step& step);
// The operand whose address the indices of `indirect` move, or -1.
int indexed_operand(const Step& step);
// Whether the written operand is read too.
bool updates_written(const Step& step);
// The points of each dimension that a core takes, all but the last.
Dims points_per_core(const Step& step);
// The points over which a core's scratchpad is walked: those of one core, or all of an operand across cores.
Dims points_in_lx(const Step& step, size_t operand);
// First and one-past-last byte that an operand may touch over so many points of each dimension.
std::pair<int64_t, int64_t> reach(const Step& step, size_t operand, const Dims& points);
// Bytes of an operand behind so many points of each dimension, each counted once, sticks as a whole. What an index
// leads to is counted once per point.
int64_t bytes_behind(const Step& step, size_t operand, const Dims& points);

// The part of a step that one core carries out, a loop for each dimension and a side for each of the first kSides
// operands; in elements. Along its sticks an operand's stride is the distance of two. A loop of count 0: nothing to do.
Nest core_nest(const Step& step, int core);
// That part as nests in which every stride is the distance of two elements: whole sticks first, then what is left of
// the last. They add up to the part in this order; none if there is nothing to do.
std::vector<Nest> core_pieces(const Step& step, int core);
std::vector<Nest> kept_pieces(const Step& step, int core);    // without the folded dimensions
std::vector<Nest> folded_pieces(const Step& step, int core);  // only those, from where a kept point begins
// The elements of one operand that a core touches, on side 0, in nests. `bases[i]` is where the argument of operand i
// begins: where indices lead is looked up, and what they lead to out of bounds is left out.
void for_each_touched(const Step& step, int core, size_t operand, const std::vector<std::byte*>& bases,
                      const std::function<void(const Nest&)>& body);

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
  int numbers = 0;        // as in Program
  // What begins by reading an argument that the launch before ended by writing takes longer; settled by Card::prepare.
  std::vector<std::pair<int, Picoseconds>> fresh;  // argument, how much longer
  int last_written = -1;                           // argument; -1: none
  std::vector<int> written;                        // all arguments that steps write; settled by Card::prepare
  std::vector<Ranges> undefined;  // of each allocation: read before it is written; settled by Card::prepare
};

// Throws InvalidProgram naming plan, step and field.
void validate(const JobPlan& plan, const Limits& limits);
Picoseconds duration(const JobPlan& plan, const Clock& clock);
// Sets `fresh` and `last_written`.
void settle_neighbours(JobPlan& plan, const Clock& clock);
// One more than the largest number that a step names.
int numbers_of(const Program& program);
int numbers_of(const JobPlan& plan);
// The plan with the numbers of a launch in their places. Throws InvalidProgram where an integer is wanted and not
// given.
JobPlan with_numbers(const JobPlan& plan, const std::vector<double>& numbers);

}  // namespace spyre
