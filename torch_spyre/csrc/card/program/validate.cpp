#include "card/program/validate.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "card/error.h"
#include "card/program/attention_step.h"
#include "card/program/core_split.h"
#include "card/program/index_step.h"
#include "card/program/limits.h"
#include "card/program/point_dependence.h"
#include "card/program/step_ops.h"
#include "card/program/uninitialized_reads.h"

namespace spyre {

namespace {

using limits::kAddresses;

std::string text(int64_t number) { return std::to_string(number); }
std::string text(size_t number) { return std::to_string(number); }
std::string text(int number) { return std::to_string(number); }
std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

// Beyond, a double does not hold every integer.
bool is_integer(double value) { return std::abs(value) <= 0x1p53 && std::trunc(value) == value; }

// Bytes that an operand may touch, of all cores.
double bytes_in_reach(const Step& step, size_t index) {
  if (step.operands[index].is_constant()) return 0;
  const bool own = step.operands[index].in_lx();
  const auto [low, high] = reach(step, index, own ? points_in_lx(step, index) : step.extents);
  return static_cast<double>(high - low) * (own ? step.cores() : 1);
}

// Elements that an operand may touch, each counted once; gaps between them do not count.
double elements_in_reach(const Step& step, size_t index) {
  const Operand& operand = step.operands[index];
  if (operand.is_constant()) return 0;
  double places = 1;
  for (size_t i = 0; i < step.extents.size(); ++i)
    if (operand.strides[i] != 0) places *= static_cast<double>(step.extents[i]);
  return std::min(places, bytes_in_reach(step, index) / static_cast<double>(element_bytes(operand.format)));
}

double points_of(const Step& step) {
  double points = 1;
  for (int64_t extent : step.extents) points *= static_cast<double>(extent);
  return points;
}

// What a program asks the host to do beyond what elements of its steps account for. Steps do not pay for each other.
struct Effort {
  double points = 0, multiplications = 0;

  void add(const Step& step) {
    const auto beyond = [](double asked, double elements) {
      return std::max(0.0, asked - limits::kPointsPerElement * elements);
    };
    const size_t rank = step.extents.size();
    if (step.op == OpCode::matmul) {
      // No more products than this have all their factors and sums in so many elements (Loomis and Whitney).
      double cubed = 1;
      for (size_t i = 0; i < step.operands.size(); ++i) cubed *= elements_in_reach(step, i);
      multiplications += beyond(points_of(step), std::sqrt(cubed));
    } else if (step.op == OpCode::attention) {
      using namespace attention;
      const auto extent = [&](size_t axis) { return static_cast<double>(step.extents[rank - axis]); };
      const double wide = extent(kWidth) + extent(kDepth), rows = points_of(step) / extent(kWidth) / extent(kDepth);
      multiplications += beyond(rows * wide, elements_in_reach(step, kOut) / extent(kWidth) *
                                                 elements_in_reach(step, kKey) / extent(kDepth) * wide);
    } else {
      double elements = 0;
      for (size_t i = 0; i < step.operands.size(); ++i) elements += elements_in_reach(step, i);
      // The ranks of a topk come out of one pass over its elements.
      const double ranks = step.op == OpCode::topk ? static_cast<double>(step.extents[rank - 2]) : 1;
      points += beyond(points_of(step) / ranks, elements);
    }
  }
};

struct StepCheck {
  const Program& program;
  const size_t index;
  const CardLimits& limits;
  Tries* const tries = nullptr;
  const Step& step = program.steps[index];
  const size_t rank = step.extents.size();

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw InvalidProgram("program '" + program.name + "', step " + text(index) + " (" + name(step.op) +
                         (step.source.empty() ? "" : ", " + step.source) + "), " + field + ": " + why);
  }

  void all() const {
    shape();
    operation();
    if (const Operand& mask = step.operands.back();
        step.op == OpCode::attention && mask.is_constant() && (mask.value != 0 || mask.number >= 0))
      refuse("operand " + text(attention::kMask), "a constant mask must be 0");
    for (size_t i = 0; i < step.operands.size(); ++i)
      step.operands[i].is_constant() ? constant(i, "operand " + text(i)) : inside(i, "operand " + text(i));
    constants();
    division();
    dependences();
    if (!step.tile.empty()) tile();
  }

  // All that the clock needs of a step, which planners ask about before it is complete.
  void shape() const {
    sizes();
    iteration_space();
    if (operand_count(step.op)) count_operands(operand_count(step.op));
    if (step.operands.empty()) refuse("operands", std::string(name(step.op)) + " needs an operand to write to");
    if (step.op == OpCode::matmul && rank < 3) refuse("extents", "needs m, n and k");
    if (step.op == OpCode::attention && rank < attention::kRows) refuse("extents", "needs q, e, l and d");
    if (step.op == OpCode::attention && step.constants.size() != attention::kConstants)
      refuse("constants", "needs the scale, 1 for causal rows and 1 for a mask of bools (otherwise 0), has " +
                              text(step.constants.size()));
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (element_bytes(step.operands[i].format) == 0)
        refuse("operand " + text(i), std::string("the card does not store format ") + name(step.operands[i].format));
    if (step.operands[0].is_constant()) refuse("operand 0", "a constant cannot be written");
    indices();
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (!step.operands[i].is_constant()) operand(i, "operand " + text(i));
    if (!step.tile.empty() && step.tile.size() != rank)
      refuse("tile", "needs one entry per extent, has " + text(step.tile.size()) + " for " + text(rank));
    for (size_t i = 0; i < step.tile.size(); ++i)
      if (step.tile[i] < 1 || step.tile[i] > step.extents[i])
        refuse("tile", text(step.tile[i]) + " points of an extent of " + text(step.extents[i]));
  }

  void sizes() const {
    const auto few = [&](const char* field, size_t count, size_t most) {
      if (count > most) refuse(field, text(count) + ", the limit is " + text(most));
    };
    few("extents", rank, limits::kDimensions);
    few("operands", step.operands.size(), limits::kOperands);
    few("indirect", step.indirect.size(), limits::kOperands);
    few("constants", step.constants.size(), limits::kDimensions + 1);
  }

  // The numbers that a step has beside its operands, once they are known.
  void constants() const {
    if (step.op == OpCode::attention)
      for (const size_t flag : {attention::kCausal, attention::kChooses})
        if (step.constants[flag] != 0 && step.constants[flag] != 1)
          refuse("constants", "number " + text(flag) + " must be 0 or 1, not " + std::to_string(step.constants[flag]));
    if (step.op == OpCode::reduce && domain_of(step.operands[1].format) == Domain::integer &&
        !(std::abs(step.constants[0]) < 0x1p63))
      refuse("constants", "a fold of integers cannot start from " + std::to_string(step.constants[0]));
    if (!is_indexed(step.op)) return;
    if (const auto wrong = check_indexed(step)) refuse(wrong->first, wrong->second);
  }

  // No point depends on another one: the result would depend on which of them came first.
  void dependences() const {
    if (step.op != OpCode::scatter && writes_twice(step, tries))
      refuse_dependence(0, "two points write into one element");
    for (size_t i = 1; i < step.operands.size(); ++i)
      if (reads_written(step, i, false, tries))
        refuse_dependence(i, "a point reads what another point of the step writes");
  }
  [[noreturn]] void refuse_dependence(size_t operand, const std::string& how) const {
    const bool decided = !tries || tries->left >= 0;
    refuse("operand " + text(operand), decided ? how : "the check whether " + how + " takes too long");
  }

  // Cores take whole sticks of what is written, and one folded dimension at most is shared.
  void division() const {
    const Operand& written = step.operands[0];
    const Dims points = points_per_core(step);
    const size_t kept = rank - folded_dimensions(step);
    for (size_t i = 0; i < kept; ++i) {
      if (step.slices[i] == 1 || written.in_lx()) continue;
      const bool whole = written.stick == static_cast<int>(i) || points[i] * written.strides[i] % kStickBytes == 0;
      if (!whole || written.strides[i] == 0)
        refuse("slices", "the division of dimension " + text(i) + " makes two cores write into one stick");
    }
    const auto divided = std::count_if(step.slices.begin() + static_cast<ptrdiff_t>(kept), step.slices.end(),
                                       [](int64_t slices) { return slices > 1; });
    if (divided > 1) refuse("slices", "several folded dimensions are divided over cores, at most one can be");
  }

  void tile() const {
    for (size_t i = 0; i < rank; ++i) {
      const int64_t points = step.tile[i];
      for (size_t o = 0; o < step.operands.size(); ++o)
        if (step.operands[o].stick == static_cast<int>(i) && points < step.extents[i] &&
            points % elements_per_stick(step.operands[o].format))
          refuse("tile",
                 text(points) + " points of dimension " + text(i) + " are not whole sticks of operand " + text(o));
    }
    const int64_t bytes = tile_bytes(step);
    if (step.staging + bytes > limits.lx_bytes)
      refuse("tile", "two tiles of every operand take " + text(bytes) + " bytes" +
                         (step.staging ? " from " + text(step.staging) + " on" : "") +
                         ", the scratchpad of a core has " + text(limits.lx_bytes) + "; make the tile smaller");
    for (size_t i = 0; i < step.operands.size(); ++i) {
      if (!step.operands[i].in_lx()) continue;
      const auto [low, high] = reach(step, i, points_in_lx(step, i));
      if (low < step.staging + bytes && high > step.staging)
        refuse("staging", "tiles at [" + text(step.staging) + ", " + text(step.staging + bytes) +
                              ") of LX overlap operand " + text(i) + " at [" + text(low) + ", " + text(high) + ")");
    }
  }

  void count_operands(size_t wanted) const {
    if (step.operands.size() != wanted)
      refuse("operands", std::string(name(step.op)) + " takes " + text(wanted) + ", has " + text(step.operands.size()));
  }

  void operation() const {
    switch (step.op) {
      case OpCode::copy:
      case OpCode::restickify:
        if (step.operands[0].format != step.operands[1].format)
          refuse("operands", std::string(name(step.op)) + " does not convert, the formats are " +
                                 name(step.operands[0].format) + " and " + name(step.operands[1].format));
        return;
      case OpCode::fill:
        return;
      case OpCode::elementwise:
        return tile_operation();
      case OpCode::reduce:
        return reduction();
      case OpCode::matmul:
        return matrix_product();
      case OpCode::attention:
        return attends();
      default:  // check_indexed() does these
        return;
    }
  }

  const TileOp& tile_op() const {
    const TileOp* op = tile_op_of(step);
    if (op) return *op;
    refuse("function", "the card has no tile operation '" + step.function.substr(0, 80) + "'" +
                           (step.operands.size() < 2 ? "" : std::string(" on ") + name(step.operands.back().format)));
  }

  void tile_operation() const {
    const TileOp& op = tile_op();
    count_operands(op.arity + 1);
    if (static_cast<int>(step.constants.size()) != op.constants)
      refuse("constants", step.function + " takes " + text(op.constants) + ", has " + text(step.constants.size()));
    for (size_t i = 1; i < step.operands.size(); ++i) {
      const bool condition = step.function == "where" && i == 1;
      if (domain_of(step.operands[i].format) != (condition ? Domain::real : op.in))
        refuse("operand " + text(i), step.function + " does not take " + name(step.operands[i].format) + " here");
    }
    if (domain_of(step.operands[0].format) != op.out)
      refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
  }

  void reduction() const {
    const TileOp& op = tile_op();
    if (op.arity != 2 || op.in != op.out || op.constants)
      refuse("function", step.function + " does not fold two values into one");
    if (domain_of(step.operands[0].format) != op.out)
      refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
    if (step.constants.empty() || step.constants.size() > 2)
      refuse("constants", "needs the start value, and may have a factor for the result");
    if (step.constants.size() == 2 && op.in != Domain::real) refuse("constants", "only a real result takes a factor");
    for (size_t i = rank - step.reduced; i < rank; ++i)
      if (moves(0, i)) refuse("operand 0", "moves along dimension " + text(i) + ", which is folded");
  }

  bool moves(size_t index, size_t dimension) const {
    const Operand& operand = step.operands[index];
    return operand.stick == static_cast<int>(dimension) ||
           (dimension < operand.strides.size() && operand.strides[dimension] != 0);
  }

  void matrix_product() const {
    const bool integers = domain_of(step.operands[0].format) == Domain::integer;
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const DataFormat format = step.operands[i].format;
      const bool real =
          i == 2 ? is_weight_format(format) : format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32;
      if (integers ? domain_of(format) != Domain::integer : !real)
        refuse("operands", std::string("matmul takes SEN169_FP16 and IEEE_FP32 (operand 2 also formats of one byte), "
                                       "or integers only, not ") +
                               name(format));
    }
    if (moves(0, rank - 1)) refuse("operand 0", "must have stride 0 along k, which is folded");
    if (moves(1, rank - 2)) refuse("operand 1", "must have stride 0 along n");
    if (moves(2, rank - 3)) refuse("operand 2", "must have stride 0 along m");
    const auto n = static_cast<int>(rank) - 2, k = n + 1;
    if (step.operands[0].stick != n) refuse("operand 0", "C must have its sticks along n, dimension " + text(n));
    if (step.operands[1].stick != k) refuse("operand 1", "A must have its sticks along k, dimension " + text(k));
    if (step.operands[2].stick != n && step.operands[2].stick != k)
      refuse("operand 2", "B must have its sticks along n or k, dimension " + text(n) + " or " + text(k));
  }

  void attends() const {
    using namespace attention;
    const size_t q = rank - kRows, e = rank - kWidth, l = rank - kLength, d = rank - kDepth;
    constexpr const char* kNames[] = {"O", "Q", "K", "V", "the mask"};
    const std::vector<size_t> still[] = {{l, d}, {e, l}, {q, e}, {q, d}, {e, d}};
    const size_t along[] = {e, d, d, e};
    for (size_t i = 0; i < kOperands; ++i) {
      const DataFormat format = step.operands[i].format;
      const std::string field = "operand " + text(i);
      if (i == kMask ? domain_of(format) != Domain::real
                     : format != DataFormat::SEN169_FP16 && format != DataFormat::IEEE_FP32)
        refuse(field, std::string(kNames[i]) + " must be SEN169_FP16 or IEEE_FP32" +
                          (i == kMask ? ", or another real format" : "") + ", not " + name(format));
      for (const size_t dimension : still[i])
        if (moves(i, dimension))
          refuse(field, std::string(kNames[i]) + " must have stride 0 along dimension " + text(dimension));
      if (i != kMask && step.operands[i].stick != static_cast<int>(along[i]))
        refuse(field, std::string(kNames[i]) + " must have its sticks along dimension " + text(along[i]));
    }
    for (const size_t dimension : {e, l, d})
      if (step.slices[dimension] > 1)
        refuse("slices", "dimension " + text(dimension) + " cannot be divided over cores");
  }

  void iteration_space() const {
    __int128 points = 1;
    for (int64_t extent : step.extents) {
      if (extent < 1) refuse("extents", "every extent must be at least 1, one is " + text(extent));
      points *= extent;
      if (points > (__int128{1} << 62)) refuse("extents", "the step has more than 2^62 points");
    }
    if (step.slices.size() != rank)
      refuse("slices", "needs one entry per extent, has " + text(step.slices.size()) + " for " + text(rank));
    const bool counted = step.op == OpCode::reduce || step.op == OpCode::argreduce;
    if (counted ? step.reduced < 1 || step.reduced > static_cast<int>(rank) : folded_dimensions(step) > rank)
      refuse("reduced", text(step.reduced) + " of " + text(rank) + " dimensions");
    int64_t cores = 1;
    for (size_t i = 0; i < rank; ++i) {
      if (step.slices[i] < 1 || step.slices[i] > step.extents[i])
        refuse("slices", text(step.slices[i]) + " slices for an extent of " + text(step.extents[i]));
      cores *= step.slices[i];
      if (cores > limits.cores) refuse("slices", "more than the " + text(limits.cores) + " cores of this card");
    }
    if (step.staging < 0 || step.staging > limits.lx_bytes)
      refuse("staging", text(step.staging) + " is no address of LX, which has " + text(limits.lx_bytes));
    const size_t behind = step.op == OpCode::attention ? size_t{attention::kRows} : 3;  // dimensions of one product
    if (step.op != OpCode::matmul && step.op != OpCode::attention) return;
    int64_t batch = 1;
    for (size_t i = 0; i + behind < rank; ++i) {
      batch = step.extents[i] > limits::kProducts ? step.extents[i] : batch * step.extents[i];
      if (batch > limits::kProducts)
        refuse("extents", "more than " + text(limits::kProducts) + " products in one step");
    }
  }

  void indices() const {
    if (indexed_operand(step) < 0 && !step.indirect.empty())
      refuse("indirect", std::string(name(step.op)) + " takes no indices");
    for (const Indirect& indirect : step.indirect) {
      if (indirect.operand < 2 || indirect.operand >= static_cast<int>(step.operands.size()))
        refuse("indirect", "operand " + text(indirect.operand) + " of " + text(step.operands.size()) + " is no index");
      if (indirect.extent < 1) refuse("indirect", "an extent of " + text(indirect.extent));
      const __int128 way = __int128{indirect.extent - 1} * indirect.stride;
      if (way > kAddresses || way < -kAddresses)
        refuse("indirect", "extent and stride lead beyond the card's address space");
    }
  }

  void constant(size_t index, const std::string& field) const {
    const Operand& operand = step.operands[index];
    if (index == 0) refuse(field, "a constant cannot be written");
    const bool mask = step.op == OpCode::attention && index == attention::kMask;
    if (step.op != OpCode::elementwise && !mask && !is_indexed(step.op))
      refuse(field, std::string(name(step.op)) + " reads memory, not a constant");
    if (operand.stick != -1) refuse(field, "a constant has no stick dimension");
    if (!value_fits(operand)) refuse(field, std::to_string(operand.value) + " is no integer");
  }

  void operand(size_t index, const std::string& field) const {
    const Operand& operand = step.operands[index];
    const int64_t bytes = element_bytes(operand.format);
    if (operand.strides.size() != rank)
      refuse(field, "needs one stride per extent, has " + text(operand.strides.size()) + " for " + text(rank));
    if (operand.offset < 0 || operand.offset > kAddresses)
      refuse(field, "offset " + text(operand.offset) + " is no address");
    if (operand.offset % bytes) refuse(field, "offset is not a multiple of the element's " + text(bytes) + " bytes");
    for (size_t i = 0; i < rank; ++i) {
      const __int128 way = __int128{step.extents[i] - 1} * operand.strides[i];
      if (operand.strides[i] % bytes)
        refuse(field, "a stride is not a multiple of the element's " + text(bytes) + " bytes");
      if (way > kAddresses || way < -kAddresses)
        refuse(field, "extent and stride lead beyond the card's address space");
    }
    sticks(operand, static_cast<int>(index) == indexed_operand(step), field);
    if (operand.across_cores() && operand.core_strides.size() != rank)
      refuse(field,
             "needs one core stride per extent, has " + text(operand.core_strides.size()) + " for " + text(rank));
  }

  void inside(size_t index, const std::string& field) const {
    const Operand& operand = step.operands[index];
    if (operand.across_cores()) other_cores(index, field);
    if (operand.in_lx()) return scratchpad(index, field);
    if (operand.argument < 0 || operand.argument >= static_cast<int>(program.argument_bytes.size()))
      refuse(field, "argument " + text(operand.argument) + ", there are " + text(program.argument_bytes.size()));
    const auto [low, high] = reach(step, index, step.extents);
    const int64_t size = program.argument_bytes[operand.argument];
    if (low < 0 || high > size)
      refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of argument " + text(operand.argument) +
                        ", which has " + text(size));
    const auto [from, to] = reach(step, index, points_per_core(step));
    if (to - from > limits.span_bytes)
      refuse(field, "one core spans " + text(to - from) + " bytes, the limit is " + text(limits.span_bytes) +
                        "; divide the work over more cores");
  }

  // What a copy fetches over the ring is in the LX of existing cores, each stick in one of them.
  void other_cores(size_t index, const std::string& field) const {
    const Operand& operand = step.operands[index];
    if (!operand.in_lx()) refuse(field, "core_strides lead to LX, this is device memory");
    if (step.op != OpCode::copy || index == 0)
      refuse(field, "only the operand that a copy reads may be in the LX of other cores");
    __int128 first = 0, last = 0;
    for (size_t i = 0; i < rank; ++i) {
      if (operand.core_strides[i] && operand.stick == static_cast<int>(i))
        refuse(field, "dimension " + text(i) + " runs along sticks and cannot have a core stride");
      const __int128 way = __int128{step.extents[i] - 1} * operand.core_strides[i];
      (way < 0 ? first : last) += way;
    }
    if (first < 0 || last >= limits.cores)
      refuse(field, "core_strides lead outside the " + text(limits.cores) + " cores of this card");
  }

  // A core's LX holds what that core wrote. What several cores work on together goes through device memory, or a copy
  // fetches it from where no core writes meanwhile.
  void scratchpad(size_t index, const std::string& field) const {
    const auto [low, high] = reach(step, index, points_in_lx(step, index));
    if (low < 0 || high > limits.lx_bytes)
      refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of LX, which has " + text(limits.lx_bytes));
    if (static_cast<int>(index) == indexed_operand(step))
      refuse(field, "the table of indices must be in device memory, not in LX");
    const Operand &operand = step.operands[index], &written = step.operands[0];
    if (index && written.in_lx() &&
        (operand.across_cores() || operand.offset != written.offset || operand.strides != written.strides)) {
      const auto [begin, end] = reach(step, 0, points_per_core(step));
      if (begin < high && end > low) refuse(field, "overlaps operand 0 in LX, where other points write");
    }
    for (size_t i = rank - folded_dimensions(step); i < rank; ++i)
      if (step.slices[i] > 1)
        refuse(field, "cannot be in LX while the folded dimension " + text(i) + " is divided over cores");
  }

  // An operand in sticks begins at one and moves by whole ones.
  void sticks(const Operand& operand, bool indexed, const std::string& field) const {
    if (operand.stick < -1 || operand.stick >= static_cast<int>(rank))
      refuse(field, "stick dimension " + text(operand.stick) + ", there are " + text(rank));
    const auto along = [](const Indirect& indirect) { return indirect.stick; };
    if (operand.stick == -1 && !(indexed && std::any_of(step.indirect.begin(), step.indirect.end(), along))) return;
    if (operand.offset % kStickBytes)
      refuse(field, "has sticks, but its offset " + text(operand.offset) + " is not a multiple of their " +
                        text(kStickBytes) + " bytes");
    for (size_t i = 0; i < rank; ++i) {
      const int64_t first = operand.stick == static_cast<int>(i) ? elements_per_stick(operand.format) : 1;
      if (step.extents[i] > first && operand.strides[i] % kStickBytes)
        refuse(field, "has sticks, but its stride " + text(operand.strides[i]) + " is not a multiple of their " +
                          text(kStickBytes) + " bytes");
    }
  }
};

struct PlanCheck {
  const JobPlan& plan;
  const size_t index;
  const std::vector<int64_t>& bytes;  // of every argument, the plan's own behind the caller's
  const JobStep& step = plan.steps[index];

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw InvalidProgram("plan '" + plan.name + "', step " + text(index) + " (" + name(step.type) + "), " + field +
                         ": " + why);
  }

  void all() const {
    switch (step.type) {
      case JobStep::Type::Compute:
        return compute();
      case JobStep::Type::HostCompute:
        if (!step.host) refuse("host", "there is no function to call");
        return;
      case JobStep::Type::H2D:
      case JobStep::Type::D2H:
        return transfer();
    }
  }

  void compute() const {
    if (!step.program) refuse("program", "is missing");
    const std::vector<int64_t>& wanted = step.program->argument_bytes;
    if (wanted.size() > bytes.size())
      refuse("program", "takes " + text(wanted.size()) + " arguments, the plan has " + text(bytes.size()));
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] > bytes[i])
        refuse("program",
               "needs " + text(wanted[i]) + " bytes of argument " + text(i) + ", which has " + text(bytes[i]));
  }

  void transfer() const {
    if (step.argument < 0 || step.argument >= static_cast<int>(bytes.size()))
      refuse("argument", text(step.argument) + ", there are " + text(bytes.size()));
    if (step.buffer < 0 || step.buffer >= static_cast<int>(plan.buffers.size()))
      refuse("buffer", text(step.buffer) + ", there are " + text(plan.buffers.size()));
    const auto size = static_cast<int64_t>(plan.buffers[step.buffer].size()), room = bytes[step.argument];
    if (step.offset < 0 || step.offset > room || size > room - step.offset)
      refuse("offset", "buffer " + text(step.buffer) + " of " + text(size) + " bytes at " + text(step.offset) +
                           " does not fit into argument " + text(step.argument) + ", which has " + text(room));
  }
};

}  // namespace

void validate(const Program& program, const CardLimits& limits) {
  if (program.name.size() > limits::kText)
    throw InvalidProgram("the name of a program has " + text(program.name.size()) + " bytes");
  const auto refuse = [&](const std::string& field, const std::string& why) {
    throw InvalidProgram("program '" + program.name + "', " + field + ": " + why);
  };
  if (program.steps.size() > limits::kSteps)
    refuse("steps", text(program.steps.size()) + ", the limit is " + text(limits::kSteps));
  Effort effort;
  Tries tries{limits::kTries + limits::kTriesPerStep * static_cast<int64_t>(program.steps.size())};
  for (size_t i = 0; i < program.steps.size(); ++i) {
    StepCheck{program, i, limits, &tries}.all();
    effort.add(program.steps[i]);
  }
  if (effort.points > limits::kFreePoints)
    refuse("extents", "the steps go over " + text(effort.points) +
                          " points more than 1024 for each element that they touch; the limit is 2^30");
  if (effort.multiplications > limits::kFreeMultiplications)
    refuse("extents", "the steps multiply " + text(effort.multiplications) +
                          " times more than 1024 for each product of elements that they touch; the limit is 2^32");
  check_scratchpad(program);
}

void validate(const JobPlan& plan) {
  const auto refuse = [&](const std::string& field, const std::string& why) {
    throw InvalidProgram("plan '" + plan.name + "', " + field + ": " + why);
  };
  if (plan.name.size() > limits::kText)
    throw InvalidProgram("the name of a plan has " + text(plan.name.size()) + " bytes");
  std::vector<int64_t> bytes = plan.argument_bytes;
  bytes.insert(bytes.end(), plan.allocations.begin(), plan.allocations.end());
  if (bytes.size() > limits::kArguments)
    refuse("argument_bytes and allocations", text(bytes.size()) + ", the limit is " + text(limits::kArguments));
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] < 0 || bytes[i] > kAddresses)
      refuse("argument_bytes and allocations", "argument " + text(i) + " has " + text(bytes[i]) + " bytes");
  int64_t buffers = 0;
  for (const std::string& buffer : plan.buffers) buffers += static_cast<int64_t>(buffer.size());
  if (buffers > limits::kBuffers) refuse("buffers", text(buffers) + " bytes, the limit is " + text(limits::kBuffers));
  size_t steps = 0;
  for (const JobStep& step : plan.steps) steps += step.program ? step.program->steps.size() : 0;
  for (const size_t count : {plan.steps.size(), steps})
    if (count > limits::kSteps) refuse("steps", text(count) + ", the limit is " + text(limits::kSteps));
  for (size_t i = 0; i < plan.steps.size(); ++i) PlanCheck{plan, i, bytes}.all();
}

void check_shapes(const Program& program, const CardLimits& limits) {
  for (size_t i = 0; i < program.steps.size(); ++i) StepCheck{program, i, limits}.shape();
}

void check_same_memory(const Program& program, const CardLimits& limits, const std::vector<int>& memory) {
  const auto given = static_cast<int>(memory.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    for (size_t o = 1; o < step.operands.size(); ++o) {
      const Operand &written = step.operands[0], &read = step.operands[o];
      const bool both =
          written.argument >= 0 && written.argument < given && read.argument >= 0 && read.argument < given;
      if (!both || written.argument == read.argument || memory[written.argument] != memory[read.argument]) continue;
      if (reads_written(step, o, true))
        StepCheck{program, i, limits}.refuse(
            "operand " + text(o),
            "a point reads what another point of the step writes: the launch gave one memory for arguments " +
                text(written.argument) + " and " + text(read.argument));
    }
  }
}

void check_constants(const Program& program, size_t step) {
  static constexpr CardLimits kNone{};
  StepCheck{program, step, kNone}.constants();
}

bool value_fits(const Operand& operand) {
  return domain_of(operand.format) == Domain::real || is_integer(operand.value);
}

}  // namespace spyre
