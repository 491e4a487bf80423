#include "card/fusion/step_dependence.h"

#include <algorithm>

#include "card/fusion/threaded_ops.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

bool is_real(DataFormat format) { return format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32; }

bool is_plain(const Operand& operand) {
  return is_real(operand.format) && !operand.across_cores() &&
         std::all_of(operand.strides.begin(), operand.strides.end(), [](int64_t stride) { return stride >= 0; });
}

bool in_sticks(const Step& step, const Operand& operand) {
  return operand.stick >= 0 && step.extents[operand.stick] > 1;
}

// An element for all lanes, or elements in sticks along them.
bool fits_lanes(const Step& step, const Operand& operand, int lanes) {
  if (operand.is_constant()) return true;
  if (!is_plain(operand)) return false;
  return operand.stick == lanes || (!in_sticks(step, operand) && operand.strides[lanes] == 0);
}

bool computes_reals(const Step& step) {
  if (step.op == OpCode::copy) return true;
  const TileOp* op = tile_op_of(step);
  return op && op->in == Domain::real && op->out == Domain::real;
}

// Whether a reduce goes along the sticks of what it reads and along nothing else, as a fused loop does it.
bool folds_sticks(const Step& step) {
  const Operand& read = step.operands[1];
  const size_t kept = step.extents.size() - static_cast<size_t>(step.reduced);
  if (read.is_constant() || read.stick < static_cast<int>(kept)) return false;
  for (size_t i = kept; i < step.extents.size(); ++i)
    if (static_cast<int>(i) != read.stick && step.extents[i] > 1) return false;
  for (size_t i = 0; i < kept; ++i)
    if (step.extents[i] > 1 && read.strides[i] == element_bytes(read.format)) return false;
  return sums_wide(step) || fold_op_kind(step.function, Source::codes).has_value();
}

// Whether all cores have the same number of points, but for the last one's rows.
bool divides_evenly(const Step& step, const StepShape& shape) {
  const Dims points = points_per_core(step);
  for (size_t i = 0; i < points.size(); ++i) {
    const bool is_lanes = static_cast<int>(i) == shape.lanes, is_row = static_cast<int>(i) == shape.row;
    if ((is_lanes || !is_row) && points[i] * step.slices[i] != step.extents[i]) return false;
    if (is_lanes && step.slices[i] > 1 && points[i] % kRow) return false;
  }
  return true;
}

bool fits(const Step& step, const StepShape& shape) {
  return std::all_of(step.operands.begin(), step.operands.end(), [&](const Operand& operand) {
    if (operand.is_constant()) return true;
    return shape.only_rows ? is_plain(operand) && !in_sticks(step, operand) : fits_lanes(step, operand, shape.lanes);
  });
}

// Bytes of an operand that belong to row r: [first, last) + r * step, modulo `period`.
struct Rows {
  int64_t step, period, first, last;
};

std::optional<Rows> rows_in(const GroupStep& member, size_t index) {
  const Operand& operand = member.step.operands[index];
  const int row = member.shape.row;
  if (row < 0 || operand.strides[row] == 0) return {};
  const Dims points = operand.in_lx() ? points_per_core(member.step) : member.step.extents;
  const int64_t stick = elements_per_stick(operand.format);
  int64_t inside = operand.stick >= 0 ? kStickBytes : element_bytes(operand.format), count = points[row];
  Rows rows{operand.strides[row], 0, 0, 0};
  if (row == operand.stick) {  // a row is 64 lanes
    if (stick != kRow) inside += operand.strides[row];
    rows.step *= kRow / stick;
    count = (count + kRow - 1) / kRow;
  }
  rows.period = rows.step * count;
  for (size_t d = 0; d < points.size(); ++d) {
    const int64_t n = operand.stick == static_cast<int>(d) ? (points[d] + stick - 1) / stick : points[d];
    if (static_cast<int>(d) != row && operand.strides[d] % rows.period) inside += operand.strides[d] * (n - 1);
  }
  rows.first = operand.offset % rows.period;
  rows.last = rows.first + inside;
  return rows;
}

// The distance, in cores, between the scratchpads of consecutive slices of the rows.
int64_t core_step(const GroupStep& member) {
  int64_t cores = 1;
  for (size_t d = static_cast<size_t>(member.shape.row) + 1; d < member.step.slices.size(); ++d)
    cores *= member.step.slices[d];
  return cores;
}

bool row_by_row(const GroupStep& a, size_t i, const GroupStep& b, size_t j) {
  if (a.shape.row < 0 && b.shape.row < 0) return true;  // a single row
  const auto x = rows_in(a, i), y = rows_in(b, j);
  if (!x || !y || x->step != y->step || x->period != y->period) return false;
  if (a.step.operands[i].in_lx() && core_step(a) != core_step(b)) return false;
  const int64_t window = std::min(x->first, y->first) / x->step * x->step;
  return std::max(x->last, y->last) <= window + x->step;
}

int64_t sticks_of(const GroupStep& member, const Operand& operand) {
  const int64_t per_stick = elements_per_stick(operand.format);
  return (lanes_of(member) + per_stick - 1) / per_stick;
}

// Whether operands share no byte though their spans overlap: they are different sticks of the same rows, in a layout in
// which each stride is larger than all that smaller strides reach.
bool are_side_by_side(const GroupStep& a, size_t i, const GroupStep& b, size_t j) {
  const auto distance = sticks_between(a, i, b, j);
  if (!distance) return false;
  const Operand &x = a.step.operands[i], &y = b.step.operands[j];
  const int64_t first = sticks_of(a, x), second = sticks_of(b, y);
  if (*distance < first && *distance > -second) return false;
  const int64_t all = *distance > 0 ? *distance + second : first - *distance;
  const int64_t stride = first > 1 ? x.strides[x.stick] : y.strides[y.stick];
  std::vector<std::pair<int64_t, int64_t>> loops{{stride, all}};
  const Dims points = x.in_lx() ? points_per_core(a.step) : a.step.extents;
  for (size_t d = 0; d < points.size(); ++d)
    if (static_cast<int>(d) != x.stick && a.step.extents[d] > 1) loops.emplace_back(x.strides[d], points[d]);
  std::sort(loops.begin(), loops.end());
  int64_t reached = kStickBytes;
  for (const auto& [step, count] : loops) {
    if (step < reached) return false;
    reached += step * (count - 1);
  }
  return true;
}

}  // namespace

std::optional<StepShape> shape_of(const Step& step) {
  const bool folds = step.op == OpCode::reduce;
  if (!folds && step.op != OpCode::elementwise && step.op != OpCode::copy) return {};
  if (step.operands.size() < 2 || step.checked || !computes_reals(step) || (folds && !folds_sticks(step))) return {};
  StepShape shape;
  for (const Operand& operand : step.operands) shape.in_lx |= operand.in_lx();
  const size_t kept = step.extents.size() - folded_dimensions(step);
  size_t many = 0;
  for (size_t i = 0; i < step.extents.size(); ++i) {
    if (step.extents[i] == 0) return {};
    if (step.extents[i] == 1) continue;
    ++many;
    if (shape.row < 0 && i < kept) shape.row = static_cast<int>(i);
  }
  const int stick = step.operands[folds ? 1 : 0].stick;
  if (stick >= 0 && step.extents[stick] > 1)
    shape.lanes = stick;
  else
    shape.only_rows = true;
  if (shape.only_rows && (folds || many > 1)) return {};
  if (2 * many + 1 > kLoops || !fits(step, shape)) return {};
  if (shape.in_lx && !divides_evenly(step, shape)) return {};
  return shape;
}

std::vector<std::pair<int64_t, int64_t>> spans_of(const Step& step) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Operand& operand = step.operands[i];
    spans.push_back(operand.is_constant() ? std::pair<int64_t, int64_t>{}
                                          : reach(step, i, operand.in_lx() ? points_in_lx(step, i) : step.extents));
  }
  return spans;
}

GroupStep group_step_of(size_t index, const Step& step, const StepShape& shape) {
  return {index, step, shape, spans_of(step)};
}

int64_t rows_of(const GroupStep& member) {
  const int row = member.shape.row;
  if (row < 0) return 1;
  const int64_t points = member.step.extents[row];
  return row == member.shape.lanes ? (points + kRow - 1) / kRow : points;
}

int64_t lanes_of(const GroupStep& member) { return member.step.extents[member.shape.lanes]; }

std::optional<int64_t> sticks_between(const GroupStep& a, size_t i, const GroupStep& b, size_t j) {
  const Operand &x = a.step.operands[i], &y = b.step.operands[j];
  const int lanes = a.shape.lanes;
  if (lanes < 0 || b.shape.lanes != lanes || x.argument != y.argument || x.format != y.format || x.stick != lanes ||
      y.stick != lanes || x.core_strides != y.core_strides || a.step.extents.size() != b.step.extents.size())
    return {};
  for (size_t d = 0; d < a.step.extents.size(); ++d) {
    if (static_cast<int>(d) == lanes) continue;
    if (a.step.extents[d] != b.step.extents[d] || a.step.slices[d] != b.step.slices[d]) return {};
    if (a.step.extents[d] > 1 && x.strides[d] != y.strides[d]) return {};
  }
  const bool several_x = sticks_of(a, x) > 1, several_y = sticks_of(b, y) > 1;
  const int64_t step = several_x ? x.strides[lanes] : y.strides[lanes], bytes = y.offset - x.offset;
  if ((several_x && several_y && x.strides[lanes] != y.strides[lanes]) || step <= 0 || bytes % step) return {};
  return bytes / step;
}

bool overlap(const GroupStep& a, size_t i, const GroupStep& b, size_t j) {
  const Operand &x = a.step.operands[i], &y = b.step.operands[j];
  return !x.is_constant() && x.argument == y.argument && a.spans[i].first < b.spans[j].second &&
         b.spans[j].first < a.spans[i].second && !are_side_by_side(a, i, b, j);
}

bool same_place(const Step& a, size_t i, const Step& b, size_t j) {
  const Operand &x = a.operands[i], &y = b.operands[j];
  if (x.is_constant() || x.argument != y.argument || x.offset != y.offset || x.stick != y.stick ||
      x.format != y.format || x.core_strides != y.core_strides || a.extents != b.extents || a.slices != b.slices)
    return false;
  for (size_t d = 0; d < a.extents.size(); ++d)
    if (a.extents[d] > 1 && (x.strides[d] != y.strides[d] || x.strides[d] == 0)) return false;
  return true;
}

Dependence dependence_between(const GroupStep& a, const GroupStep& b) {
  Dependence closest = Dependence::none;
  for (size_t i = 0; i < a.step.operands.size(); ++i)
    for (size_t j = 0; j < b.step.operands.size(); ++j) {
      if ((i && j) || !overlap(a, i, b, j)) continue;
      closest = std::max(closest, same_place(a.step, i, b.step, j) ? Dependence::same_point
                                  : row_by_row(a, i, b, j)         ? Dependence::same_row
                                                                   : Dependence::other_rows);
    }
  return closest;
}

}  // namespace spyre
