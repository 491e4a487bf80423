// The part of an indexed step that one core carries out.
#pragma once

#include "card/engine/engine.h"
#include "card/error.h"
#include "card/kernels/index_ops.h"
#include "card/kernels/operand_access.h"
#include "card/program/core_split.h"
#include "card/program/index_step.h"
#include "card/text.h"

namespace spyre::indexed {

constexpr int64_t kTile = 4096;  // decoded elements at a time
using Axes = std::vector<size_t>;

// One operand along every dimension; behind those of the step there is one more, of one point, where none is wanted.
struct OperandWalk {
  OperandAccess access;
  std::vector<AxisStride> strides;

  OperandWalk(const Step& step, size_t index, std::byte* base) : access(step.operands[index], base) {
    for (size_t axis = 0; axis <= step.extents.size(); ++axis)
      strides.push_back(stride_along(step.operands[index], axis));
  }
  int64_t at(const Dims& point, const Axes& axes) const {
    int64_t sum = 0;
    for (size_t axis : axes) sum += strides[axis].at(point[axis]);
    return sum;
  }
};

struct CorePart {
  const Step& step;
  const size_t none = step.extents.size();
  const int core;
  Dims begin, count;
  std::vector<OperandWalk> operands;
  Dims point;

  CorePart(const Step& step, int core, const std::vector<std::byte*>& bases)
      : step(step), core(core), begin(none + 1, 0), count(none + 1, 1) {
    const Dims shares = points_per_core(step);
    for (size_t axis = none, rest = static_cast<size_t>(core); axis-- > 0;) {
      const int64_t slices = step.slices[axis], extent = step.extents[axis];
      const auto slice = static_cast<int64_t>(rest) % slices;
      rest /= static_cast<size_t>(slices);
      const int64_t points = axis >= first_folded(step) ? extent : shares[axis];
      begin[axis] = slice * points;
      count[axis] = std::clamp<int64_t>(extent - begin[axis], 0, points);
    }
    point = begin;
    for (size_t i = 0; i < step.operands.size(); ++i)
      operands.emplace_back(step, i, base_of(step.operands[i], bases[i]));
  }

  // Where point 0 would be if a core's LX held all of an operand instead of the core's part.
  std::byte* base_of(const Operand& operand, std::byte* base) const {
    if (!operand.in_lx()) return base;
    base += core * operand.core_bytes;
    for (size_t axis = 0; axis < none; ++axis) base -= stride_along(operand, axis).at(begin[axis]);
    return base;
  }

  bool empty() const { return product(count) == 0; }

  template <typename Wanted>
  Axes axes(size_t first, size_t end, const Wanted& wanted) const {
    Axes found;
    for (size_t axis = first; axis < end; ++axis)
      if (wanted(axis)) found.push_back(axis);
    return found;
  }
  Axes axes(size_t first, size_t end) const {
    return axes(first, end, [](size_t) { return true; });
  }

  // The dimension along which these operands are best taken in runs.
  size_t longest(const Axes& axes, std::initializer_list<size_t> wanted) const {
    size_t best = none;
    int64_t most = 1;
    for (size_t axis : axes) {
      int64_t score = count[axis];
      for (size_t operand : wanted)
        if (score > 1 && operands[operand].strides[axis].dense()) score *= 8;
      if (score > most) best = axis, most = score;
    }
    return best;
  }

  // Sets `point` to every point of these dimensions, in row-major order, and back to the first.
  template <typename Body>
  void walk(const Axes& axes, const Body& body) {
    for (size_t moved = 1; moved;) {
      end_if_stopped();
      body();
      for (moved = axes.size(); moved; --moved) {
        const size_t axis = axes[moved - 1];
        if (++point[axis] < begin[axis] + count[axis]) break;
        point[axis] = begin[axis];
      }
    }
  }

  void check_fits(bool fits) const {
    if (fits || !step.checked) return;
    throw ValueRange("a result of " + (step.function.empty() ? name(step.op) : step.function) + " does not fit the " +
                     text(8 * element_bytes(step.operands[0].format)) + " bits that the card keeps it in" +
                     (step.source.empty() ? "" : " (" + step.source + ")"));
  }
};

inline Axes without(Axes axes, size_t axis) {
  std::erase(axes, axis);
  return axes;
}

struct alignas(64) Tile {
  std::byte bytes[kTile * sizeof(int64_t)];
  float* reals() { return reinterpret_cast<float*>(bytes); }
  int64_t* integers() { return reinterpret_cast<int64_t*>(bytes); }
};

// In index_moves.cpp and index_folds.cpp: one step each.
void gather(CorePart& part);
void scatter(CorePart& part);
void scan(CorePart& part);
void argreduce(CorePart& part);
void topk(CorePart& part);

}  // namespace spyre::indexed
