// Finds the fusion groups of a program, and the fused loops of each.
#include <algorithm>

#include "card/fusion/epilogue.h"
#include "card/fusion/fusion_group.h"
#include "card/fusion/split_at_writers.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

// A single row is the work of one thread.
constexpr int64_t kLongestRow = 1 << 15;
// Members of a group are compared with each other, and steps with later ones: more would take too long to plan.
constexpr size_t kMostMembers = 256, kLookAhead = 4096;

bool same_points(const GroupStep& a, const GroupStep& b) {
  return a.step.extents == b.step.extents && a.step.slices == b.step.slices && a.shape.lanes == b.shape.lanes;
}

// Collects steps, one after the other, for as long as they can be one group.
class GroupBuilder {
 public:
  bool add(size_t index, const Step& given) {
    if (members_.size() == kMostMembers) return false;
    const auto shape = shape_of(given);
    if (!shape) return false;
    GroupStep member = group_step_of(index, given, *shape);
    if (join(members_, member)) {
      members_.push_back(std::move(member));
      return true;
    }
    // Steps along one row of sticks, one of which folds it, take it as a single row.
    std::vector<GroupStep> single = members_;
    bool possible = make_single(member);
    for (GroupStep& each : single) possible &= make_single(each);
    if (!possible || !join(single, member)) return false;
    members_ = std::move(single);
    members_.push_back(std::move(member));
    return true;
  }
  bool empty() const { return members_.empty(); }
  std::vector<GroupStep> take() { return std::exchange(members_, {}); }

 private:
  static bool make_single(GroupStep& member) {
    if (member.shape.row >= 0 && member.shape.row != member.shape.lanes) return false;
    const int lanes = member.shape.lanes;
    if (lanes >= 0 && member.step.extents[lanes] > kLongestRow) return false;
    member.shape.row = -1;
    return true;
  }

  static bool join(const std::vector<GroupStep>& members, const GroupStep& member) {
    for (const GroupStep& other : members) {
      const bool row_is_lanes = member.shape.row == member.shape.lanes && member.shape.row >= 0;
      const bool other_is_lanes = other.shape.row == other.shape.lanes && other.shape.row >= 0;
      if ((member.shape.row < 0) != (other.shape.row < 0) || row_is_lanes != other_is_lanes) return false;
      if (member.shape.row >= 0) {
        if (member.step.extents[member.shape.row] != other.step.extents[other.shape.row]) return false;
        if (member.shape.in_lx && other.shape.in_lx &&
            member.step.slices[member.shape.row] != other.step.slices[other.shape.row])
          return false;
      }
      if (dependence_between(other, member) == Dependence::other_rows) return false;
    }
    return true;
  }

  std::vector<GroupStep> members_;
};

// The members of each fused loop, in the order of the program.
using LoopMembers = std::vector<std::vector<GroupStep>>;

// Whether a step reads, at each point, just the element that a fold writes for the row of that point.
bool reads_result(const Step& step, size_t operand, const Step& fold) {
  const Operand &x = step.operands[operand], &y = fold.operands[0];
  if (x.offset != y.offset || x.format != y.format || x.core_strides != y.core_strides) return false;
  for (size_t d = 0; d < step.extents.size(); ++d)
    if (step.extents[d] > 1 && x.strides[d] != y.strides[d]) return false;
  return true;
}

// Whether a fused loop may carry out `later` right behind `earlier`, point by point. A fold writes at the end of its
// row, so it may overwrite what others have read for that row.
bool can_share_loop(const GroupStep& earlier, const GroupStep& later) {
  if (dependence_between(earlier, later) <= Dependence::same_point) return true;
  if (later.step.op != OpCode::reduce || earlier.step.op == OpCode::reduce || overlap(earlier, 0, later, 0))
    return false;
  if (overlap(earlier, 0, later, 1) && !same_place(earlier.step, 0, later.step, 1)) return false;
  for (size_t i = 1; i < earlier.step.operands.size(); ++i)
    if (overlap(earlier, i, later, 0) && !reads_result(earlier.step, i, later.step)) return false;
  return true;
}

// A loop by core would end a fold at the end of a core's columns.
bool splits_fold(const GroupStep& a, const GroupStep& b) {
  const auto is_split = [](const GroupStep& member) {
    return member.step.op == OpCode::reduce && member.step.slices[static_cast<size_t>(member.shape.lanes)] > 1;
  };
  return (a.shape.in_lx || b.shape.in_lx) && (is_split(a) || is_split(b));
}

LoopMembers split_into_loops(std::vector<GroupStep> members) {
  LoopMembers loops;
  for (GroupStep& member : members) {
    const auto goes_with = [&](const GroupStep& other) {
      return can_share_loop(other, member) && !splits_fold(other, member);
    };
    const auto joins = [&](const std::vector<GroupStep>& loop) {
      return !member.shape.only_rows && !loop[0].shape.only_rows && same_points(loop[0], member) &&
             std::all_of(loop.begin(), loop.end(), goes_with);
    };
    if (loops.empty() || !joins(loops.back())) loops.emplace_back();
    loops.back().push_back(std::move(member));
  }
  // A loop goes by core as soon as one operand does.
  for (std::vector<GroupStep>& loop : loops) {
    const bool in_lx =
        std::any_of(loop.begin(), loop.end(), [](const GroupStep& member) { return member.shape.in_lx; });
    for (GroupStep& member : loop) member.shape.in_lx = in_lx;
  }
  return loops;
}

// Which steps read what a step leaves in LX.
class Readers {
 public:
  explicit Readers(const Program& program) {
    for (size_t i = 0; i < program.steps.size(); ++i) all_.push_back(group_step_of(i, program.steps[i], {}));
  }
  // With other members in the place of the steps from `begin` to `end`.
  Readers(const Readers& readers, size_t begin, size_t end, const std::vector<GroupStep>& members)
      : all_(readers.all_.begin(), readers.all_.begin() + static_cast<int64_t>(begin)) {
    all_.insert(all_.end(), members.begin(), members.end());
    all_.insert(all_.end(), readers.all_.begin() + static_cast<int64_t>(end), readers.all_.end());
  }

  // Whether a step after `beside` reads any of it, or one up to there reads it at other points than it was written.
  bool read(const GroupStep& writer, size_t beside) const {
    for (size_t at = writer.place + 1; at < all_.size(); ++at) {
      if (at - writer.place > kLookAhead) return true;
      const GroupStep& later = all_[at];
      for (size_t i = updates_written(later.step) ? 0 : 1; i < later.step.operands.size(); ++i)
        if (overlap(writer, 0, later, i) && !(at <= beside && same_place(writer.step, 0, later.step, i))) return true;
      if (same_place(writer.step, 0, later.step, 0)) return false;
    }
    return false;
  }
  // Whether a step from `end` on reads any of it.
  bool read_from(size_t end, const GroupStep& writer) const {
    for (size_t at = writer.place + 1; at < all_.size(); ++at) {
      if (at - writer.place > kLookAhead) return true;
      const GroupStep& later = all_[at];
      for (size_t i = updates_written(later.step) ? 0 : 1; i < later.step.operands.size() && at >= end; ++i)
        if (overlap(writer, 0, later, i)) return true;
      if (same_place(writer.step, 0, later.step, 0)) return false;
    }
    return false;
  }

 private:
  std::vector<GroupStep> all_;
};

struct PlannedGroup {
  size_t begin, end;
  LoopMembers loops;
  size_t after = end;  // the place of the step behind the group
  std::shared_ptr<const Readers> readers{};
};

// Finds LX that a block of rows fills and reads before the next block begins: all blocks of a thread can have the same
// memory, which stays in its cache. What is read there must have been written there, to the last byte.
class LocalLx {
 public:
  explicit LocalLx(const PlannedGroup& planned) {
    for (const auto& loop : planned.loops)
      for (const GroupStep& member : loop) members_.push_back(&member);
    for (const GroupStep* member : members_) {
      const int row = member->shape.row;
      for (size_t d = 0; d < member->step.slices.size() && member->shape.in_lx; ++d)
        if (static_cast<int>(d) != row && member->step.slices[d] > 1) return;
      if (writes_lx(*member) && fills_span(*member) && !planned.readers->read_from(planned.after, *member))
        writers_.insert(member->place);
    }
    while (drop_one()) continue;
  }

  std::set<std::pair<size_t, size_t>> operands() const {
    std::set<std::pair<size_t, size_t>> found;
    for (const GroupStep* member : members_)
      for (size_t i = 0; i < member->step.operands.size(); ++i)
        if (i == 0 ? writers_.contains(member->place) : reads_writer(*member, i)) found.insert({member->place, i});
    return found;
  }

 private:
  static bool writes_lx(const GroupStep& member) { return member.step.operands[0].in_lx(); }
  static bool fills_span(const GroupStep& member) {
    return member.shape.row >= 0 && member.step.op != OpCode::reduce &&
           bytes_behind(member.step, 0, points_per_core(member.step)) == member.spans[0].second - member.spans[0].first;
  }
  bool reads_writer(const GroupStep& reader, size_t operand) const {
    return std::any_of(members_.begin(), members_.end(), [&](const GroupStep* writer) {
      return writer->place < reader.place && writers_.contains(writer->place) && overlap(*writer, 0, reader, operand);
    });
  }
  // Whether the writers before it have left all that an operand may touch.
  bool is_covered(const GroupStep& reader, size_t operand) const {
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (const GroupStep* writer : members_)
      if (writer->place < reader.place && writers_.contains(writer->place)) parts.push_back(writer->spans[0]);
    std::sort(parts.begin(), parts.end());
    int64_t reached = reader.spans[operand].first;
    for (const auto& [from, to] : parts)
      if (from <= reached) reached = std::max(reached, to);
    return reached >= reader.spans[operand].second;
  }
  bool drop_around(const GroupStep& member, size_t operand) {
    return std::erase_if(writers_, [&](size_t place) {
             const auto writer = std::find_if(members_.begin(), members_.end(),
                                              [&](const GroupStep* each) { return each->place == place; });
             return overlap(**writer, 0, member, operand);
           }) > 0;
  }
  bool drop_one() {
    for (const GroupStep* member : members_) {
      if (writes_lx(*member) && !writers_.contains(member->place) && drop_around(*member, 0)) return true;
      for (size_t i = 1; i < member->step.operands.size(); ++i)
        if (reads_writer(*member, i) && !is_covered(*member, i) && drop_around(*member, i)) return true;
    }
    return false;
  }

  std::vector<const GroupStep*> members_;
  std::set<size_t> writers_;  // their places
};

// Local LX may hold floats, already decoded, instead of codes, if all views of it can.
void keep_floats(std::vector<FusionGroup::Item>& items, int64_t rows_of_core) {
  std::vector<std::vector<OperandView>> found(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const auto is_local = [](const OperandView& view) { return view.local; };
    if (items[i].row && std::any_of(items[i].row->views.begin(), items[i].row->views.end(), is_local)) return;
    if (!items[i].loop) continue;
    for (const Fold& fold : items[i].loop->folds)
      if (fold.written.local) return;
    for (const OperandView& view : items[i].loop->views) {
      const std::optional<OperandView> floats = view.local ? in_floats(view, rows_of_core) : view;
      if (!floats) return;
      found[i].push_back(*floats);
    }
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].loop) items[i].loop->views_in_floats = std::move(found[i]);
}

FusionGroup group_of(const PlannedGroup& planned) {
  FusionGroup group;
  group.begin = planned.begin;
  group.end = planned.end;
  int64_t cores = 1;
  for (const std::vector<GroupStep>& loop : planned.loops)
    for (const GroupStep& member : loop) {
      group.rows = rows_of(member);
      if (!member.shape.in_lx || member.shape.row < 0) continue;
      const int64_t points = points_per_core(member.step)[member.shape.row];
      cores = member.step.slices[member.shape.row];
      group.rows_of_core = member.shape.row == member.shape.lanes ? (points + kRow - 1) / kRow : points;
    }
  if (cores == 1) group.rows_of_core = group.rows;
  GroupFacts facts{cores, group.rows_of_core, {}, LocalLx(planned).operands()};
  for (const std::vector<GroupStep>& loop : planned.loops)
    for (const GroupStep& member : loop)
      if (member.step.operands[0].in_lx() && member.step.op != OpCode::reduce && !member.shape.only_rows &&
          !planned.readers->read(member, loop.back().place))
        facts.dropped.insert(member.place);
  std::vector<FusionGroup::Item> items;
  for (const std::vector<GroupStep>& loop : planned.loops) {
    if (loop[0].shape.only_rows) {
      items.push_back({nullptr, row_step_of(loop[0], facts)});
      continue;
    }
    if (splits_fold(loop[0], loop[0])) return group;
    items.push_back({fused_loop_of(loop, facts), nullptr});
    if (!items.back().loop) return group;
  }
  keep_floats(items, group.rows_of_core);
  group.items = std::move(items);
  return group;
}

}  // namespace

std::shared_ptr<const FusionPlan> plan_fusion(const Program& program) {
  std::vector<PlannedGroup> all;
  const auto readers = std::make_shared<const Readers>(program);
  GroupBuilder builder;
  const auto close = [&](size_t end) {
    if (builder.empty()) return;
    std::vector<GroupStep> members = builder.take();
    std::vector<GroupStep> parts = program.steps.size() > kLookAhead ? members : split_at_writers(members);
    const size_t begin = members[0].index, after = begin + parts.size();
    auto here = readers;
    if (parts.size() != members.size()) {
      for (size_t i = 0; i < parts.size(); ++i) parts[i].place = begin + i;
      here = std::make_shared<const Readers>(*readers, begin, end, parts);
    }
    all.push_back({begin, end, split_into_loops(std::move(parts)), after, std::move(here)});
  };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (builder.add(i, program.steps[i])) continue;
    close(i);
    if (!builder.add(i, program.steps[i])) all.push_back({i, i + 1, {}});
  }
  close(program.steps.size());

  auto plan = std::make_shared<FusionPlan>();
  for (const PlannedGroup& planned : all) {
    FusionGroup& group = plan->groups.emplace_back(group_of(planned));
    if (group.items.empty()) continue;
    if (group.begin > 0) group.after_tasks = blocks_after_tasks(program, group.begin - 1, group);
    const size_t begin =
        group.begin - (group.after_tasks.empty() ? 0 : 1);  // with the matmul that it is the epilogue of
    for (size_t i = begin; i < group.end; ++i)
      for (size_t operand = 0; operand < program.steps[i].operands.size(); ++operand) {
        const int argument = program.steps[i].operands[operand].argument;
        if (argument < 0) continue;
        plan->used.insert(argument);
        if (operand == 0) plan->written.insert(argument);
      }
  }
  return plan;
}

}  // namespace spyre
