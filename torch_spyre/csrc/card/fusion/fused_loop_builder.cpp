// Turns steps over the same points into what a pass does to a tile.
#include <algorithm>

#include "card/fusion/fusion_group.h"
#include "card/kernels/compute.h"

namespace spyre {

namespace {

Dims points_of(const Member& member) { return member.shape.in_lx ? points_per_core(member.step) : member.step.extents; }

bool is_copy(const Step& step) { return step.op == OpCode::copy || step.function == "copy"; }
bool changes_sign(const Step& step) { return step.function == "neg" || step.function == "abs"; }

// Whether what a step makes of codes are codes.
bool passes_on(const Step& step) {
  return (is_copy(step) || changes_sign(step)) && step.operands[1].format == DataFormat::SEN169_FP16;
}

// A dimension of a step, as the loops of a pass go along it.
struct Dimension {
  size_t index;
  bool is_row, is_lanes;
  int64_t cores, count;  // by core, and points or sticks of a core
};

std::vector<Dimension> dimensions_of(const Member& member) {
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

View view_of(const Member& member, size_t index, const Knowledge& known) {
  const Step& step = member.step;
  const Operand& operand = step.operands[index];
  View view{operand.argument,
            operand.offset,
            operand.format,
            Source::splat,
            {},
            0,
            member.index,
            index,
            known.local.contains({member.place, index})};
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
      view.stride[kOuterRows] = by_core(known.rows_of_core);
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
  Builder(const std::vector<Member>& members, const Knowledge& known)
      : members_(members), known_(known), pass_(std::make_unique<Pass>()) {
    set_loops();
    for (size_t m = 0; m < members.size(); ++m) {
      free_slots(m);
      members[m].step.op == OpCode::reduce ? add_fold(m) : add_elementwise(m);
    }
  }
  std::unique_ptr<Pass> take() { return used_slots_ > kSlots ? nullptr : std::move(pass_); }

 private:
  static constexpr int kNone = -1;
  // What a member has made.
  struct Value {
    int slot = kNone;        // where it was saved
    bool made_nans = false;  // NaNs among it are an operation's, and may differ between machines:
    bool settled = true;     //   unless they were made canonical
  };

  void set_loops() {
    const Member& member = members_[0];
    Pass& pass = *pass_;
    pass.count[kOuterRows] = known_.cores;
    pass.count[kInnerRows] = known_.rows_of_core;
    for (const Dimension& dimension : dimensions_of(member)) {
      if (dimension.is_lanes) {
        const int64_t extent = member.step.extents[dimension.index];
        pass.lanes = extent - (extent - 1) / kRow * kRow;
      }
      if (dimension.is_row) {
        if (dimension.is_lanes) pass.sticks = kInnerRows;
        continue;
      }
      if (dimension.cores > 1) pass.count[pass.loops++] = dimension.cores;
      if (dimension.is_lanes) pass.sticks = pass.loops;
      pass.count[pass.loops++] = dimension.count;
    }
    pass.order = view_of(member, member.step.op == OpCode::reduce ? 1 : 0, known_);
  }

  int add_view(size_t m, size_t operand) {
    pass_->views.push_back(view_of(members_[m], operand, known_));
    return static_cast<int>(pass_->views.size()) - 1;
  }
  void emit(LinkKind kind, int view = kNone, int slot = kNone, bool canonical = false) {
    pass_->code.push_back({kind, view, slot, canonical});
  }

  // The member that has written what an operand of member m reads.
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
    emit(LinkKind::canonical);
    values_[value].settled = true;
  }
  // Of the value in registers.
  void save(int value) {
    if (values_[value].slot != kNone) return;
    settle_nans(value);
    values_[value].slot = take_slot();
    emit(LinkKind::store, kNone, values_[value].slot);
  }
  // Before the registers get another value: members from m on may want this one.
  void keep_current(size_t m) {
    if (current_ != kNone && is_read_from(m, current_)) save(current_);
  }
  void load(size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer != kNone && writer == current_) return;
    keep_current(m);
    if (writer == kNone)
      emit(LinkKind::load, add_view(m, operand));
    else
      emit(LinkKind::load, kNone, values_[writer].slot);
    current_ = writer;
  }

  void add_elementwise(size_t m) {
    const Step& step = members_[m].step;
    const std::string_view name = step.function;
    Value value;
    if (is_copy(step) || changes_sign(step)) {  // NaNs pass as they are
      load(m, 1);
      if (current_ != kNone) settle_nans(current_);
      keep_current(m + 1);
      if (!is_copy(step)) emit(*unary_link(name, false));
    } else if (const auto unary = unary_link(name, step.operands[0].format == DataFormat::SEN169_FP16)) {
      load(m, 1);
      keep_current(m + 1);
      emit(*unary);
      value = {kNone, true, false};
    } else if (const auto binary = binary_link(name)) {
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

  // One of the first two operands into registers, the second only if it is there already; gives the other.
  size_t load_either(size_t m) {
    const int second = writer_of(m, 2);
    if (second != kNone && second == current_ && writer_of(m, 1) != second) return 1;
    load(m, 1);
    return 2;
  }

  void add_binary(size_t m, const BinaryLink& binary) {
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
    emit_with(LinkKind::fma, m, factor);
    emit_with(LinkKind::addend, m, 3);
  }

  // An operand that is in registers, and is needed a second time from memory.
  void save_if_current(size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer != kNone && writer == current_) save(writer);
  }
  void emit_with(LinkKind kind, size_t m, size_t operand) {
    const int writer = writer_of(m, operand);
    if (writer == kNone)
      emit(kind, add_view(m, operand));
    else
      emit(kind, kNone, values_[writer].slot);
  }

  // Tile operations see floats in slots, and give canonical NaNs where they make some.
  void add_call(size_t m) {
    TileStep call;
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
        emit(LinkKind::store, kNone, call.inputs.back());
      }
    }
    call.slot = take_slot();
    temporary_.push_back(call.slot);
    pass_->code.push_back(call);
    emit(LinkKind::load, kNone, call.slot);
  }

  // Rounds and writes what a member has made, as far as somebody wants it.
  void finish(size_t m, Value value) {
    const bool codes = members_[m].step.operands[0].format == DataFormat::SEN169_FP16;
    const bool made_nans = value.made_nans;
    if (codes) value.settled = true;  // by rounding
    current_ = static_cast<int>(m);
    values_.resize(m + 1);
    values_[m] = value;
    const bool rounded = codes && passes_on(members_[m].step);
    if (codes && !rounded && is_read_from(m + 1, current_)) emit(LinkKind::round, kNone, kNone, made_nans);
    if (known_.dropped.contains(members_[m].place)) return;
    if (!codes) settle_nans(current_);
    const bool copies = codes && copies_memory(m);
    const bool was_rounded = rounded || pass_->code.back().link == LinkKind::round;
    emit(copies ? LinkKind::copy : LinkKind::store, add_view(m, 0), kNone, made_nans && !copies);
    pass_->code.back().rounded = was_rounded;
  }
  // Codes that were just loaded need no encoding.
  bool copies_memory(size_t m) const {
    const TileStep& last = pass_->code.back();
    return is_copy(members_[m].step) && last.link == LinkKind::load && last.view != kNone &&
           pass_->views[last.view].source == Source::codes;
  }

  void add_fold(size_t m) {
    const Step& step = members_[m].step;
    const bool wide = sums_wide(step), halves = wide || step.operands[1].format == DataFormat::IEEE_FP32;
    load(m, 1);
    const int slot = used_slots_++;  // of its own: it lives as long as the row
    Fold fold{members_[m].index, tile_op_of(step), slot, halves ? kRow / 2 : kRow, view_of(members_[m], 0, known_)};
    if (wide) fold.sums = sums_in_blocks(step) ? used_slots_++ : slot;
    const bool at_once = wide && !fold.in_blocks();
    emit(at_once ? LinkKind::fold_wide_add : *fold_link(fold.op->name, halves ? Source::floats : Source::codes), kNone,
         slot);
    values_.resize(m + 1);
    pass_->folds.push_back(fold);
  }

  const std::vector<Member>& members_;
  const Knowledge& known_;
  std::unique_ptr<Pass> pass_;
  std::vector<Value> values_;  // by member
  std::vector<int> free_, temporary_;
  int current_ = kNone;  // the value in registers
  int used_slots_ = 0;
};

}  // namespace

std::unique_ptr<Pass> pass_of(const std::vector<Member>& members, const Knowledge& known) {
  return Builder(members, known).take();
}

// Local LX, of kTileRows rows only, and with room for a float wherever the program has a code.
std::optional<View> in_floats(const View& view, int64_t rows_of_core) {
  const int64_t before = rows_of_core * kStickBytes, after = std::min(rows_of_core, kTileRows) * kStickBytes;
  if (view.source == Source::splat || view.stride[kInnerRows] != kStickBytes) return {};
  View found = view;
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

std::unique_ptr<const RowStep> row_step_of(const Member& member, const Knowledge& known) {
  auto row = std::make_unique<RowStep>();
  row->step = member.index;
  row->op = member.step.op == OpCode::copy ? nullptr : tile_op_of(member.step);
  for (size_t i = 0; i < member.step.operands.size(); ++i) row->views.push_back(view_of(member, i, known));
  return row;
}

}  // namespace spyre
