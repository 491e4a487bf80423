#include "card/program/index_step.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "card/program/limits.h"
#include "card/program/step_ops.h"
#include "card/text.h"

namespace spyre {

namespace indexed {

size_t first_folded(const Step& step) {
  const size_t rank = step.extents.size();
  switch (step.op) {
    case OpCode::scan:
    case OpCode::topk:
      return rank - 1;
    case OpCode::argreduce:
      return rank - step.reduced;
    default:
      return rank;
  }
}

const TileOp* folding_op(const Step& step) {
  const TileOp* op = find_tile_op(step.function, domain_of(step.operands[1].format));
  return op && op->arity == 2 && op->in == op->out && op->constants == 0 ? op : nullptr;
}

// Sorted by size, every step is longer than all shorter ones together.
bool places_differ(const Step& step) {
  const Operand& table = step.operands[0];
  std::vector<std::pair<int64_t, int64_t>> levels;  // a step, and as far as its steps go
  const auto add = [&](int64_t stride, int64_t count) {
    if (count > 1) levels.emplace_back(std::abs(stride), std::abs(stride) * (count - 1));
  };
  const auto add_axis = [&](const AxisStride& along, int64_t extent) {
    if (!along.stick) return add(along.stride, extent);
    add(along.element, std::min(along.stick, extent));
    add(along.stride, (extent + along.stick - 1) / along.stick);
  };
  for (size_t axis = 0; axis < step.extents.size(); ++axis)
    if (moves(table, axis)) add_axis(stride_along(table, axis), step.extents[axis]);
  for (const Indirect& indirect : step.indirect) add_axis(stride_along(indirect, table), indirect.extent);
  std::sort(levels.begin(), levels.end());
  int64_t shorter = 0;
  for (const auto& [stride, reach] : levels) {
    if (stride <= shorter) return false;
    shorter += reach;
  }
  return true;
}

namespace {

using Refusal = std::optional<std::pair<std::string, std::string>>;

struct Check {
  const Step& step;
  const size_t rank = step.extents.size();

  Refusal all() const {
    switch (step.op) {
      case OpCode::iota:
        return iota();
      case OpCode::gather:
        return gather();
      case OpCode::scatter:
        return scatter();
      case OpCode::scan:
        return scan();
      case OpCode::argreduce:
        return argreduce();
      default:
        return topk();
    }
  }

  static std::string operand(size_t index) { return "operand " + text(static_cast<int64_t>(index)); }
  const char* format(size_t index) const { return name(step.operands[index].format); }
  Domain domain(size_t index) const { return domain_of(step.operands[index].format); }

  Refusal count(size_t wanted) const {
    if (step.operands.size() == wanted) return {};
    return {
        {"operands", std::string(name(step.op)) + " takes " + text(wanted) + ", has " + text(step.operands.size())}};
  }
  Refusal constants(size_t wanted, const char* which) const {
    if (step.constants.size() == wanted) return {};
    return {{"constants", std::string("needs ") + which + ", has " + text(step.constants.size())}};
  }
  Refusal function(const char* first, const char* second) const {
    if (step.function == first || step.function == second) return {};
    return {{"function",
             "must be " + std::string(first) + " or " + second + ", not '" + step.function.substr(0, 80) + "'"}};
  }
  Refusal same_format() const {
    if (step.operands[0].format == step.operands[1].format) return {};
    return {{"operands",
             std::string(name(step.op)) + " does not convert, the formats are " + format(0) + " and " + format(1)}};
  }
  Refusal memory(size_t index) const {
    if (!step.operands[index].is_constant()) return {};
    return {{operand(index), "is a constant, " + std::string(name(step.op)) + " needs it in memory"}};
  }
  // The operand has elements of its own for every point of these dimensions.
  Refusal moving(size_t index, size_t begin, size_t end) const {
    for (size_t axis = begin; axis < end; ++axis)
      if (step.extents[axis] > 1 && !moves(step.operands[index], axis))
        return {{operand(index), "must have a stride along dimension " + text(axis)}};
    return {};
  }
  Refusal still(size_t index, size_t begin, size_t end, const char* why) const {
    for (size_t axis = begin; axis < end; ++axis)
      if (moves(step.operands[index], axis))
        return {{operand(index), "must have stride 0 along dimension " + text(axis) + ", " + why}};
    return {};
  }
  Refusal folds() const {
    if (!folding_op(step))
      return {{"function", "the card has no tile operation '" + step.function.substr(0, 80) +
                               "' that folds two values of " + format(1) + " into one"}};
    if (domain(0) != domain(1)) return {{operand(0), step.function + " does not give " + format(0)}};
    return {};
  }
  // Positions below `count` can be written.
  Refusal positions(int64_t count) const {
    if (domain(0) != Domain::integer)
      return {{operand(0), std::string("positions must be integers, not ") + format(0)}};
    const int64_t bits =
        step.operands[0].format == DataFormat::SENUINT32 ? 9 : 8 * element_bytes(step.operands[0].format);
    if (count - 1 < int64_t{1} << (bits - 1)) return {};
    return {{operand(0), std::string(format(0)) + " does not hold positions up to " + text(count - 1)}};
  }

  static Refusal first_of(std::initializer_list<Refusal> refusals) {
    for (const Refusal& refusal : refusals)
      if (refusal) return refusal;
    return {};
  }

  Refusal iota() const {
    if (Refusal wrong = first_of({count(1), constants(1 + rank, "a first value and one step per extent")}))
      return wrong;
    if (domain(0) == Domain::integer) {
      double most = 0;
      for (size_t i = 0; i <= rank; ++i) {
        const double constant = step.constants[i];
        if (std::trunc(constant) != constant || std::isinf(constant))
          return {{"constants", std::to_string(constant) + " is no integer, as " + format(0) + " needs"}};
        most += std::abs(constant) * static_cast<double>(i ? step.extents[i - 1] : 1);
      }
      if (most > 0x1p53) return {{"constants", "lead to integers above 2^53, which are not exact"}};
    }
    return moving(0, 0, rank);
  }

  // The table is operand 1 of gather and operand 0 of scatter.
  Refusal indices(size_t table) const {
    if (step.operands.size() < 3)
      return {{"operands", std::string(name(step.op)) + " takes at least 3, has " + text(step.operands.size())}};
    for (size_t i = 2; i < step.operands.size(); ++i) {
      if (domain(i) != Domain::integer)
        return {{operand(i), std::string("indices must be integers, not ") + format(i)}};
      if (std::none_of(step.indirect.begin(), step.indirect.end(),
                       [i](const Indirect& indirect) { return indirect.operand == static_cast<int>(i); }))
        return {{"indirect", "has no entry for the indices in operand " + text(i)}};
    }
    bool sticks = step.operands[table].stick >= 0;
    for (size_t i = 0; i < step.indirect.size(); ++i) {
      const Indirect& indirect = step.indirect[i];
      const std::string which = "entry " + text(i) + " ";
      if (indirect.operand < 2 || indirect.operand >= static_cast<int>(step.operands.size()))
        return {{"indirect", which + "names operand " + text(indirect.operand) + ", which is no index"}};
      if (indirect.extent < 1) return {{"indirect", which + "has an extent of " + text(indirect.extent)}};
      if (indirect.stride % element_bytes(step.operands[table].format))
        return {{"indirect", which + "has a stride that is not a multiple of the element's " +
                                 text(element_bytes(step.operands[table].format)) + " bytes"}};
      const __int128 way = __int128{indirect.extent} * indirect.stride;
      if (indirect.extent > limits::kAddresses || way > limits::kAddresses || way < -limits::kAddresses)
        return {{"indirect", which + "has extent and stride that lead beyond the card's address space"}};
      if (indirect.stick && sticks)
        return {{"indirect", which + "is the second that runs along the sticks of operand " + text(table)}};
      sticks |= indirect.stick;
    }
    return memory(table);
  }

  Refusal gather() const {
    if (Refusal wrong = indices(1)) return wrong;
    return first_of({same_format(), moving(0, 0, rank)});
  }

  Refusal scatter() const {
    if (Refusal wrong = indices(0)) return wrong;
    if (Refusal wrong = step.function == "copy" ? same_format() : folds()) return wrong;
    const bool differ = places_differ(step);
    for (size_t axis = 0; axis < rank; ++axis)
      if (step.slices[axis] > 1 && !(differ && moves(step.operands[0], axis)))
        return {{"slices", "dimension " + text(axis) + " is divided, and two cores could write one element"}};
    return {};
  }

  Refusal scan() const {
    if (Refusal wrong = count(2)) return wrong;
    if (rank < 1) return {{"extents", "needs the dimension to scan"}};
    if (finds_positions(step))
      return first_of({positions(step.extents.back()), constants(1, "the value to start from"), moving(0, 0, rank)});
    return first_of({folds(), constants(1, "the value to start from"), moving(0, 0, rank)});
  }

  Refusal argreduce() const {
    if (Refusal wrong = first_of({count(2), function("argmax", "argmin")})) return wrong;
    if (step.reduced < 1 || step.reduced > static_cast<int>(rank))
      return {{"reduced", text(step.reduced) + " of " + text(rank) + " dimensions"}};
    const size_t folded = first_folded(step);
    const Dims last(step.extents.begin() + static_cast<ptrdiff_t>(folded), step.extents.end());
    return first_of({positions(product(last)), still(0, folded, rank, "which is folded"), moving(0, 0, folded)});
  }

  Refusal topk() const {
    if (Refusal wrong = first_of({count(2), function("topkvalue", "topkindex")})) return wrong;
    if (rank < 2) return {{"extents", "needs k and n"}};
    const int64_t k = step.extents[rank - 2], n = step.extents[rank - 1];
    if (k > n) return {{"extents", "the first " + text(k) + " of " + text(n) + " elements"}};
    if (n > limits::kOrdered) return {{"extents", "more than " + text(limits::kOrdered) + " elements to order"}};
    if (Refusal wrong = constants(1, "1 for the largest or 0 for the smallest")) return wrong;
    if (step.constants[0] != 0 && step.constants[0] != 1)
      return {{"constants", "1 takes the largest, 0 the smallest; this is " + std::to_string(step.constants[0])}};
    return first_of({memory(1), step.function == "topkvalue" ? same_format() : positions(n),
                     still(0, rank - 1, rank, "which is folded"), still(1, rank - 2, rank - 1, "which counts ranks"),
                     moving(0, 0, rank - 1)});
  }
};

}  // namespace
}  // namespace indexed

bool is_indexed(OpCode op) {
  switch (op) {
    case OpCode::iota:
    case OpCode::gather:
    case OpCode::scatter:
    case OpCode::scan:
    case OpCode::argreduce:
    case OpCode::topk:
      return true;
    default:
      return false;
  }
}

std::optional<std::pair<std::string, std::string>> check_indexed(const Step& step) {
  return indexed::Check{step}.all();
}

}  // namespace spyre
