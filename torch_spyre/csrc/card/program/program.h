// A card program is data: steps over an iteration space that is split over cores, with operands at affine addresses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/clock/clock.h"
#include "card/memory/loop_nest.h"
#include "card/numeric/formats.h"
#include "card/telemetry/counters.h"

namespace spyre {

// What a step does. Operands: the written one, then the ones read.
//   copy, restickify  written, read; same format
//   fill              written; `constant` is the element's bits
//   elementwise       written, then the inputs of tile operation `function`
//   reduce            written, read; folds the last `reduced` dimensions with the two-input tile operation `function`,
//                     starting from constants[0]; the result is multiplied by constants[1] where that is given. Two
//                     more functions work in fp64 and round once: wide_add sums, variance sums squared distances from
//                     the mean
//   matmul            C, A, B over extents [batch ..., m, n, k]; C is in sticks along n, A along k, B along n or k;
//                     all of integers, or C and A of reals and B of reals or in one byte (int8, fp8)
//   attention         O, Q, K, V, mask over extents [batch ..., q, e, l, d]: kernels/attention.h says what it computes;
//                     O and V are in sticks along e, Q and K along d; the mask may be the constant 0. constants: the
//                     scale of the scores; 1 where row i attends to the keys 0 ... i alone; 1 where the mask is true or
//                     false, and not added
//   paged_attention   O, Q, K, V, table, sinks, slopes over extents [head, group, token, width, request, page, slot,
//                     depth]: kernels/paged_attention.h says what it computes, program/paged_step.h what its fields are
//   iota              written; the value at a point is constants[0] + dot(point, constants[1...])
//   gather            written, table, indices ...; `indirect` says where an index leads in the table
//   scatter           table (written), values, indices ...; `function`: copy, or a two-input tile operation
//   scan              written, read; folds along the last dimension like reduce and writes every partial result, of
//                     sums and products that are written in fp32 rounded from fp64; with `function` argmax or argmin
//                     its position (integer), of equal ones the last
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
  paged_attention,
  iota,
  gather,
  scatter,
  scan,
  argreduce,
  topk
};
const char* name(OpCode op);
OpCode op_code(const std::string& name);  // throws InvalidProgram
size_t operand_count(OpCode op);          // 0: depends on the function or on the indices

// Address of a point = argument's address + offset + dot(point, strides); all in bytes. Along dimension `stick`, where
// there is one, the operand is in sticks of E elements, and the stride is the distance of two sticks: point p is at
// p / E * stride + p % E * element.
//
// In LX every core has its own part of an operand: the offset is an address of its scratchpad, and points count from
// the first that the core takes. Only a copy reads what another core wrote there, over the ring: with `core_strides` a
// point is in the scratchpad of core dot(point, core_strides), at that core's offset + dot(point, strides), and
// points count from the first of all.
constexpr int kConstant = -1, kLx = -2;

struct Operand {
  int argument = 0;  // kConstant: no memory, every point reads `value`; kLx: the scratchpads
  int64_t offset = 0;
  Dims strides{};
  DataFormat format = DataFormat::SEN169_FP16;
  int stick = -1;
  double value = 0;
  int number = -1;  // >= 0: which runtime scalar of the launch is the value

  int64_t core_bytes = 0;  // kLx: from one core's scratchpad to the next in memory; settled by Card::prepare
  Dims core_strides{};     // kLx: which core's scratchpad; empty: each core's own

  bool is_constant() const { return argument == kConstant; }
  bool in_lx() const { return argument == kLx; }
  bool across_cores() const { return !core_strides.empty(); }
};

// Where an index leads: an index i of operand `operand` must be in [-extent, extent), a negative one counts from the
// end, and it moves the address of the table by i * stride, or along its sticks when `stick` is set.
struct Indirect {
  int operand = 0;
  int64_t extent = 0;
  int64_t stride = 0;
  bool stick = false;
};

class MatmulTasks;  // kernels/matmul_tasks.h

struct Step {
  OpCode op = OpCode::copy;
  Dims extents;  // the whole iteration space
  // How many cores split each dimension; a core takes ceil(extent / slices) points, rounded up to whole sticks where an
  // operand is along them, and the last the rest. Cores that share a folded dimension (one at most) pass their
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
  // Points of each dimension that a core has in LX at a time; two such tiles of every operand fit, so that one is
  // loaded or stored while the other is computed. Empty: not given.
  Dims tile{};
  int64_t staging = 0;                                // where in LX the tiles of operands in device memory begin
  bool special = false;                               // a special function of the vector unit, which takes it longer
  bool next_iteration = false;                        // the first step of another iteration of a tile loop
  std::vector<std::pair<size_t, int>> numbers{};      // (position in constants, which runtime scalar is there)
  std::shared_ptr<const MatmulTasks> matmul_tasks{};  // how the host splits a matmul; settled by Card::prepare
  std::string aten{};                                 // the op of the user's program, for profiles
  int spec = -1;                                      // which OpSpec of the kernel, for profiles; -1: unknown

  int cores() const { return static_cast<int>(product(slices)); }
};

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // of bytes, [first, one past last)

struct FusionPlan;  // fusion/fusion_group.h

struct Program {
  std::string name;
  std::vector<int64_t> argument_bytes;
  std::vector<Step> steps;
  Picoseconds time = -1;                       // modelled; settled by Card::prepare, negative before
  Usage usage{};                               // of the card's parts; settled by Card::prepare
  int numbers = 0;                             // runtime scalars that a launch has to give; settled by Card::prepare
  std::vector<int> written{};                  // arguments that steps write, sorted; settled by Card::prepare
  std::vector<int64_t> reach{};                // bytes of each argument up to the last used; settled by Card::prepare
  int64_t lx_bytes = 0;                        // of every core; settled by Card::prepare
  Ranges lx_undefined{};                       // of every core: read before it is written; settled by Card::prepare
  std::shared_ptr<const FusionPlan> fusion{};  // which steps run together; settled by Card::prepare in run mode

  bool is_prepared() const { return time >= 0; }
};

// One more than the largest runtime scalar that a step names.
int numbers_of(const Program& program);

}  // namespace spyre
