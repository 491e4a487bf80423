// Turns steps over the same points into what a fused loop does to a tile.
#include <algorithm>

#include "card/error.h"
#include "card/fusion/fusion_group.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

Dims points_of(const GroupStep& member) {
  return member.shape.in_lx ? points_per_core(member.step) : member.step.extents;
}

bool is_copy(const Step& step) { return step.op == OpCode::copy || step.function == "copy"; }
bool changes_sign(const Step& step) { return step.function == "neg" || step.function == "abs"; }

// Whether a step gives codes, exactly, where it reads codes.
bool keeps_codes(const Step& step) {
  return (is_copy(step) || changes_sign(step)) && step.operands[1].format == DataFormat::SEN169_FP16;
}

// The kind of an op that has one, or it would be in no group.
OpKind planned(std::optional<OpKind> kind) {
  if (!kind) throw InvalidProgram("a fusion group has an op that no fused loop knows.");
  return *kind;
}

// A dimension of a step, as a fused loop goes along it.
struct Dimension {
  size_t index;
  bool is_row, is_lanes;
  int64_t cores, count;  // by core, and points or sticks of a core
};

std::vector<Dimension> dimensions_of(const GroupStep& member) {
  const Dims points = points_of(member);
  std::vector<Dimension> all;
  for (size_t d = 0; d < points.size(); ++d) {
    if (member.step.extents[d] == 1) continue;
    const int i = static_cast<int>(d);
    const bool is_lanes = i == member.shape.lanes;
    all.push_back({d, i == member.shape.row, is_lanes, member.shape.in_lx ? member.step.slices[d] : 1,
                   is_lanes ? (points[d] + kRow - 1) / kRow : points[d]});
  }
  return all;
}

OperandView view_of(const GroupStep& member, size_t index, const GroupFacts& facts) {
  const Step& step = member.step;
  const Operand& operand = step.operands[index];
  OperandView view{operand.argument,
                   operand.offset,
                   operand.format,
                   Source::splat,
                   {},
                   0,
                   member.index,
                   index,
                   facts.local.contains({member.place, index})};
  if (operand.is_constant()) return view;
  if (member.shape.lanes >= 0 && operand.stick == member.shape.lanes)
    view.source = operand.format == DataFormat::SEN169_FP16 ? Source::codes : Source::floats;
  size_t next = kInnerRows + 1;
  for (const Dimension& dimension : dimensions_of(member)) {
    int64_t stride = operand.strides[dimension.index];
    if (dimension.is_lanes && view.source == Source::floats) {
      view.half = stride;
      stride *= 2;
    }
    int64_t cores = 1;
    for (size_t d = dimension.index + 1; d < step.slices.size(); ++d) cores *= step.slices[d];
    const auto by_core = [&](int64_t count) { return operand.in_lx() ? cores * operand.core_bytes : stride * count; };
    if (dimension.is_row) {
      view.stride[kOuterRows] = by_core(facts.rows_of_core);
      view.stride[kInnerRows] = stride;
      continue;
    }
    if (dimension.cores > 1) view.stride[next++] = by_core(dimension.count);
    view.stride[next++] = stride;
  }
  return view;
}

class Builder {
 public:
  Builder(const std::vector<GroupStep>& members, const GroupFacts& facts)
      : members_(members), facts_(facts), fused_(std::make_unique<FusedLoop>()) {
    set_loops();
    for (size_t m = 0; m < members.size(); ++m) {
      free_slots(m);
      members[m].step.op == OpCode::reduce ? add_fold(m) : add_elementwise(m);
    }
  }
  std::unique_ptr<FusedLoop> take() { return used_slots_ > kSlots ? nullptr : std::move(fused_); }

 private:
  static constexpr int kNone = -1;
  // The result of a member.
  struct Value {
    int slot = kNone;        // where it was saved
    bool made_nans = false;  // an operation has made its NaNs, which may differ between machines
    bool settled = true;     //   unless they were made canonical
  };

  void set_loops() {
    const GroupStep& member = members_[0];
    FusedLoop& fused = *fused_;
    fused.count[kOuterRows] = facts_.cores;
    fused.count[kInnerRows] = facts_.rows_of_core;
    for (const Dimension& dimension : dimensions_of(member)) {
      if (dimension.is_lanes) {
        const int64_t extent = member.step.extents[dimension.index];
        fused.lanes = extent - (extent - 1) / kRow * kRow;
      }
      if (dimension.is_row) {
        if (dimension.is_lanes) fused.sticks = kInnerRows;
        continue;
      }
      if (dimension.cores > 1) fused.count[fused.loops++] = dimension.cores;
      if (dimension.is_lanes) fused.sticks = fused.loops;
      fused.count[fused.loops++] = dimension.count;
    }
    fused.order = view_of(member, member.step.op == OpCode::reduce ? 1 : 0, facts_);
  }

  int add_view(size_t m, size_t operand) {
    fused_->views.push_back(view_of(members_[m], operand, facts_));
    return static_cast<int>(fused_->views.size()) - 1;
  }
  void emit(OpKind kind, int view = kNone, int slot = kNone, bool canonical = false) {
    fused_->code.push_back({kind, view, slot, canonical});
  }

  // The member that writes what an operand of member m reads.
  int writer_of(size_t m, size_t operand) const {
    for (size_t w = m; w-- > 0;)
      if (same_place(members_[w].step, 0, members_[m].step, operand)) return static_cast<int>(w);
    return kNone;
  }
  bool is_read_from(size_t m, int value) const {
    for (; m < members_.size(); ++m)
      for (size_t i = 1; i < members_[m].step.operands.size(); ++i)
        if (writer_of(m, i) == value) return true;
    return false;
  }

  int take_slot() {
    if (free_.empty()) return used_slots_++;
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void free_slots(size_t m) {
    free_.insert(free_.end(), temporary_.begin(), temporary_.end());
    temporary_.clear();
    for (size_t v = 0; v < values_.size(); ++v)
      if (values_[v].slot != kNone && !is_read_from(m, static_cast<int>(v)))
        free_.push_back(std::exchange(values_[v].slot, kNone));
  }

  void settle_nans(int value) {
    if (values_[value].settled) return;
    emit(OpKind::canonical);
    values_[value].settled = true;
  }
  // Saves the value in registers to a slot.
  void save(int value) {
    if (values_[value].slot != kNone) return;
    settle_nans(value);
    values_[value].slot = take_slot();
    emit(OpKind::store, kNone, values_[value].slot);
  }
  // Saves the value in registers, before it is replaced, if members from m on read it.
  void keep_current(size_t m) {
    if (current_ != kNone && is_read_from(m, current_)) save(current_);
  }
  void load(size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer != kNone && writer == current_) return;
    keep_current(m);
    if (writer == kNone)
      emit(OpKind::load, add_view(m, operand));
    else
      emit(OpKind::load, kNone, values_[writer].slot);
    current_ = writer;
  }

  void add_elementwise(size_t m) {
    const Step& step = members_[m].step;
    const std::string_view name = step.function;
    Value value;
    if (is_copy(step) || changes_sign(step)) {  // NaNs stay as they are
      load(m, 1);
      if (current_ != kNone) settle_nans(current_);
      keep_current(m + 1);
      if (!is_copy(step)) emit(planned(unary_op_kind(name, false)));
    } else if (const auto unary = unary_op_kind(name, step.operands[0].format == DataFormat::SEN169_FP16)) {
      load(m, 1);
      keep_current(m + 1);
      emit(*unary);
      value = {kNone, true, false};
    } else if (const auto binary = binary_op_kinds(name)) {
      add_binary(m, *binary);
      value = {kNone, true, false};
    } else if (name == "fma") {
      add_fma(m);
      value = {kNone, true, false};
    } else {
      add_call(m);
    }
    finish(m, value);
  }

  // Loads one of the first two operands, the second only if it is in registers already; returns the other.
  size_t load_either(size_t m) {
    const int second = writer_of(m, 2);
    if (second != kNone && second == current_ && writer_of(m, 1) != second) return 1;
    load(m, 1);
    return 2;
  }

  void add_binary(size_t m, const BinaryOpKinds& binary) {
    const size_t other = load_either(m);
    save_if_current(m, other);
    keep_current(m + 1);
    emit_with(other == 1 ? binary.swapped : binary.in_order, m, other);
  }

  // a * b + c
  void add_fma(size_t m) {
    const size_t factor = load_either(m);
    save_if_current(m, factor);
    save_if_current(m, 3);
    keep_current(m + 1);
    emit_with(OpKind::fma, m, factor);
    emit_with(OpKind::addend, m, 3);
  }

  // Saves an operand that is in registers and is needed a second time, from memory.
  void save_if_current(size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer != kNone && writer == current_) save(writer);
  }
  void emit_with(OpKind kind, size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer == kNone)
      emit(kind, add_view(m, operand));
    else
      emit(kind, kNone, values_[writer].slot);
  }

  // A tile operation reads and writes floats in slots, and its NaNs are canonical.
  void add_call(size_t m) {
    Instruction call;
    call.call = tile_op_of(members_[m].step);
    call.step = members_[m].index;
    for (size_t i = 1; i < members_[m].step.operands.size(); ++i) {
      load(m, i);
      if (current_ != kNone) {
        save(current_);
        call.inputs.push_back(values_[current_].slot);
      } else {
        call.inputs.push_back(take_slot());
        temporary_.push_back(call.inputs.back());
        emit(OpKind::store, kNone, call.inputs.back());
      }
    }
    call.slot = take_slot();
    temporary_.push_back(call.slot);
    fused_->code.push_back(call);
    emit(OpKind::load, kNone, call.slot);
  }

  // Rounds the result of a member if a later one reads it, and writes it if it is read from memory.
  void finish(size_t m, Value value) {
    const bool codes = members_[m].step.operands[0].format == DataFormat::SEN169_FP16;
    const bool made_nans = value.made_nans;
    if (codes) value.settled = true;  // by rounding
    current_ = static_cast<int>(m);
    values_.resize(m + 1);
    values_[m] = value;
    const bool rounded = codes && keeps_codes(members_[m].step);
    if (codes && !rounded && is_read_from(m + 1, current_)) emit(OpKind::round, kNone, kNone, made_nans);
    if (facts_.dropped.contains(members_[m].place)) return;
    if (!codes) settle_nans(current_);
    const bool copies = codes && copies_memory(m);
    const bool was_rounded = rounded || fused_->code.back().kind == OpKind::round;
    emit(copies ? OpKind::copy : OpKind::store, add_view(m, 0), kNone, made_nans && !copies);
    fused_->code.back().rounded = was_rounded;
  }
  // Codes that were just loaded need no encoding.
  bool copies_memory(size_t m) const {
    const Instruction& last = fused_->code.back();
    return is_copy(members_[m].step) && last.kind == OpKind::load && last.view != kNone &&
           fused_->views[last.view].source == Source::codes;
  }

  void add_fold(size_t m) {
    const Step& step = members_[m].step;
    const bool wide = sums_wide(step), halves = wide || step.operands[1].format == DataFormat::IEEE_FP32;
    load(m, 1);
    const int slot = used_slots_++;  // of its own: it lives as long as the row
    Fold fold{members_[m].index, tile_op_of(step), slot, halves ? kRow / 2 : kRow, view_of(members_[m], 0, facts_)};
    if (wide) fold.sums = sums_in_blocks(step) ? used_slots_++ : slot;
    const bool at_once = wide && !fold.in_blocks();
    emit(
        at_once ? OpKind::fold_wide_add : planned(fold_op_kind(fold.op->name, halves ? Source::floats : Source::codes)),
        kNone, slot);
    values_.resize(m + 1);
    fused_->folds.push_back(fold);
  }

  const std::vector<GroupStep>& members_;
  const GroupFacts& facts_;
  std::unique_ptr<FusedLoop> fused_;
  std::vector<Value> values_;  // by member
  std::vector<int> free_, temporary_;
  int current_ = kNone;  // the value in registers
  int used_slots_ = 0;
};

}  // namespace

std::unique_ptr<FusedLoop> fused_loop_of(const std::vector<GroupStep>& members, const GroupFacts& facts) {
  return Builder(members, facts).take();
}

// Local LX has kTileRows rows only, and room for a float wherever the program has a code.
std::optional<OperandView> in_floats(const OperandView& view, int64_t rows_of_core) {
  const int64_t before = rows_of_core * kStickBytes, after = std::min(rows_of_core, kTileRows) * kStickBytes;
  if (view.source == Source::splat || view.stride[kInnerRows] != kStickBytes) return {};
  OperandView found = view;
  bool fits = true;
  const auto fit = [&](int64_t& bytes) {
    fits &= bytes % before == 0;
    bytes = bytes / before * after * 2;
  };
  fit(found.offset);
  for (size_t i = kInnerRows + 1; i < kLoops; ++i) fit(found.stride[i]);
  fit(found.half);
  found.stride[kInnerRows] = 2 * kStickBytes;
  if (view.source == Source::codes) {
    found.source = Source::floats;
    found.half = kStickBytes;
  }
  return fits ? std::optional(found) : std::nullopt;
}

std::unique_ptr<const RowStep> row_step_of(const GroupStep& member, const GroupFacts& facts) {
  auto row = std::make_unique<RowStep>();
  row->step = member.index;
  row->op = member.step.op == OpCode::copy ? nullptr : tile_op_of(member.step);
  for (size_t i = 0; i < member.step.operands.size(); ++i) row->views.push_back(view_of(member, i, facts));
  return row;
}

}  // namespace spyre
