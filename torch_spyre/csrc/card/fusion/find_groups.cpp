// Finds the steps of a program that run together.
#include <algorithm>

#include "card/fusion/epilogue.h"
#include "card/fusion/fusion_group.h"
#include "card/fusion/split_at_writers.h"
#include "card/kernels/compute.h"

namespace spyre {

namespace {

// A single row is one thread's work.
constexpr int64_t kLongestRow = 1 << 15;
// Members of a group are compared with each other, and steps with those behind them: more would take too long to plan.
constexpr size_t kMostMembers = 256, kLookAhead = 4096;

bool same_points(const Member& a, const Member& b) {
  return a.step.extents == b.step.extents && a.step.slices == b.step.slices && a.shape.lanes == b.shape.lanes;
}

// Steps that may become a segment.
class Group {
 public:
  bool add(size_t index, const Step& given) {
    if (members_.size() == kMostMembers) return false;
    const auto shape = shape_of(given);
    if (!shape) return false;
    Member member = member_of(index, given, *shape);
    if (join(members_, member)) {
      members_.push_back(std::move(member));
      return true;
    }
    // Steps along one row of sticks, one of which folds it: to all of them it is a single row.
    std::vector<Member> single = members_;
    bool possible = make_single(member);
    for (Member& each : single) possible &= make_single(each);
    if (!possible || !join(single, member)) return false;
    members_ = std::move(single);
    members_.push_back(std::move(member));
    return true;
  }
  bool empty() const { return members_.empty(); }
  std::vector<Member> take() { return std::exchange(members_, {}); }

 private:
  static bool make_single(Member& member) {
    if (member.shape.row >= 0 && member.shape.row != member.shape.lanes) return false;
    const int lanes = member.shape.lanes;
    if (lanes >= 0 && member.step.extents[lanes] > kLongestRow) return false;
    member.shape.row = -1;
    return true;
  }

  static bool join(const std::vector<Member>& members, const Member& member) {
    for (const Member& other : members) {
      const bool row_is_lanes = member.shape.row == member.shape.lanes && member.shape.row >= 0;
      const bool other_is_lanes = other.shape.row == other.shape.lanes && other.shape.row >= 0;
      if ((member.shape.row < 0) != (other.shape.row < 0) || row_is_lanes != other_is_lanes) return false;
      if (member.shape.row >= 0) {
        if (member.step.extents[member.shape.row] != other.step.extents[other.shape.row]) return false;
        if (member.shape.in_lx && other.shape.in_lx &&
            member.step.slices[member.shape.row] != other.step.slices[other.shape.row])
          return false;
      }
      if (meeting(other, member) == Meeting::apart) return false;
    }
    return true;
  }

  std::vector<Member> members_;
};

// Members in the order of the program, those of one pass together.
using Passes = std::vector<std::vector<Member>>;

// Whether a step reads, at each point, just the element that a fold writes for the row of that point.
bool reads_result(const Step& step, size_t operand, const Step& fold) {
  const Operand &x = step.operands[operand], &y = fold.operands[0];
  if (x.offset != y.offset || x.format != y.format || x.core_strides != y.core_strides) return false;
  for (size_t d = 0; d < step.extents.size(); ++d)
    if (step.extents[d] > 1 && x.strides[d] != y.strides[d]) return false;
  return true;
}

// Whether a pass may carry out `later` right behind `earlier`, point by point. A fold writes when its row is over: it
// may overwrite what others have read for that row.
bool in_one_pass(const Member& earlier, const Member& later) {
  if (meeting(earlier, later) <= Meeting::same_place) return true;
  if (later.step.op != OpCode::reduce || earlier.step.op == OpCode::reduce || overlap(earlier, 0, later, 0))
    return false;
  if (overlap(earlier, 0, later, 1) && !same_place(earlier.step, 0, later.step, 1)) return false;
  for (size_t i = 1; i < earlier.step.operands.size(); ++i)
    if (overlap(earlier, i, later, 0) && !reads_result(earlier.step, i, later.step)) return false;
  return true;
}

// Loops that go by core would end a fold at the end of a core's columns.
bool splits_fold(const Member& a, const Member& b) {
  const auto is_split = [](const Member& member) {
    return member.step.op == OpCode::reduce && member.step.slices[static_cast<size_t>(member.shape.lanes)] > 1;
  };
  return (a.shape.in_lx || b.shape.in_lx) && (is_split(a) || is_split(b));
}

Passes passes_of(std::vector<Member> members) {
  Passes passes;
  for (Member& member : members) {
    const auto goes_with = [&](const Member& other) {
      return in_one_pass(other, member) && !splits_fold(other, member);
    };
    const auto joins = [&](const std::vector<Member>& pass) {
      return !member.shape.only_rows && !pass[0].shape.only_rows && same_points(pass[0], member) &&
             std::all_of(pass.begin(), pass.end(), goes_with);
    };
    if (passes.empty() || !joins(passes.back())) passes.emplace_back();
    passes.back().push_back(std::move(member));
  }
  // Loops go by core as soon as one operand does.
  for (std::vector<Member>& pass : passes) {
    const bool in_lx = std::any_of(pass.begin(), pass.end(), [](const Member& member) { return member.shape.in_lx; });
    for (Member& member : pass) member.shape.in_lx = in_lx;
  }
  return passes;
}

// Who reads what a step leaves in LX.
class Readers {
 public:
  explicit Readers(const Program& program) {
    for (size_t i = 0; i < program.steps.size(); ++i) all_.push_back(member_of(i, program.steps[i], {}));
  }
  // With others in the place of the steps from `begin` to `end`.
  Readers(const Readers& readers, size_t begin, size_t end, const std::vector<Member>& members)
      : all_(readers.all_.begin(), readers.all_.begin() + static_cast<int64_t>(begin)) {
    all_.insert(all_.end(), members.begin(), members.end());
    all_.insert(all_.end(), readers.all_.begin() + static_cast<int64_t>(end), readers.all_.end());
  }

  // Whether a step later than `beside` reads anything of it, or one until then that reads another place than it wrote.
  bool read(const Member& writer, size_t beside) const {
    for (size_t at = writer.place + 1; at < all_.size(); ++at) {
      if (at - writer.place > kLookAhead) return true;
      const Member& later = all_[at];
      for (size_t i = updates_written(later.step) ? 0 : 1; i < later.step.operands.size(); ++i)
        if (overlap(writer, 0, later, i) && !(at <= beside && same_place(writer.step, 0, later.step, i))) return true;
      if (same_place(writer.step, 0, later.step, 0)) return false;
    }
    return false;
  }
  // Whether a step from `end` on reads anything of it.
  bool read_from(size_t end, const Member& writer) const {
    for (size_t at = writer.place + 1; at < all_.size(); ++at) {
      if (at - writer.place > kLookAhead) return true;
      const Member& later = all_[at];
      for (size_t i = updates_written(later.step) ? 0 : 1; i < later.step.operands.size() && at >= end; ++i)
        if (overlap(writer, 0, later, i)) return true;
      if (same_place(writer.step, 0, later.step, 0)) return false;
    }
    return false;
  }

 private:
  std::vector<Member> all_;
};

struct Planned {
  size_t begin, end;
  Passes passes;
  size_t after = end;  // the place of what comes behind
  std::shared_ptr<const Readers> readers{};
};

// LX that a block of rows fills and reads before the next block begins: all blocks of a thread can have the same
// memory, which stays in its cache. What is read there must have been written there, to the last byte.
class Local {
 public:
  explicit Local(const Planned& planned) {
    for (const auto& pass : planned.passes)
      for (const Member& member : pass) members_.push_back(&member);
    for (const Member* member : members_) {
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
    for (const Member* member : members_)
      for (size_t i = 0; i < member->step.operands.size(); ++i)
        if (i == 0 ? writers_.contains(member->place) : meets_writer(*member, i)) found.insert({member->place, i});
    return found;
  }

 private:
  static bool writes_lx(const Member& member) { return member.step.operands[0].in_lx(); }
  static bool fills_span(const Member& member) {
    return member.shape.row >= 0 && member.step.op != OpCode::reduce &&
           bytes_behind(member.step, 0, points_per_core(member.step)) == member.spans[0].second - member.spans[0].first;
  }
  bool meets_writer(const Member& reader, size_t operand) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member* writer) {
      return writer->place < reader.place && writers_.contains(writer->place) && overlap(*writer, 0, reader, operand);
    });
  }
  // Whether the writers before it have left all that an operand may touch.
  bool is_covered(const Member& reader, size_t operand) const {
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (const Member* writer : members_)
      if (writer->place < reader.place && writers_.contains(writer->place)) parts.push_back(writer->spans[0]);
    std::sort(parts.begin(), parts.end());
    int64_t reached = reader.spans[operand].first;
    for (const auto& [from, to] : parts)
      if (from <= reached) reached = std::max(reached, to);
    return reached >= reader.spans[operand].second;
  }
  bool drop_around(const Member& member, size_t operand) {
    return std::erase_if(writers_, [&](size_t place) {
             const auto writer = std::find_if(members_.begin(), members_.end(),
                                              [&](const Member* each) { return each->place == place; });
             return overlap(**writer, 0, member, operand);
           }) > 0;
  }
  bool drop_one() {
    for (const Member* member : members_) {
      if (writes_lx(*member) && !writers_.contains(member->place) && drop_around(*member, 0)) return true;
      for (size_t i = 1; i < member->step.operands.size(); ++i)
        if (meets_writer(*member, i) && !is_covered(*member, i) && drop_around(*member, i)) return true;
    }
    return false;
  }

  std::vector<const Member*> members_;
  std::set<size_t> writers_;  // their places
};

// What a block of rows leaves in local LX may be kept there in floats, decoded: if that holds for all of it.
void keep_floats(std::vector<Segment::Item>& items, int64_t rows_of_core) {
  std::vector<std::vector<View>> found(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const auto is_local = [](const View& view) { return view.local; };
    if (items[i].row && std::any_of(items[i].row->views.begin(), items[i].row->views.end(), is_local)) return;
    if (!items[i].pass) continue;
    for (const Fold& fold : items[i].pass->folds)
      if (fold.written.local) return;
    for (const View& view : items[i].pass->views) {
      const std::optional<View> floats = view.local ? in_floats(view, rows_of_core) : view;
      if (!floats) return;
      found[i].push_back(*floats);
    }
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].pass) items[i].pass->views_in_floats = std::move(found[i]);
}

Segment segment_of(const Planned& planned) {
  Segment segment;
  segment.begin = planned.begin;
  segment.end = planned.end;
  int64_t cores = 1;
  for (const auto& pass : planned.passes)
    for (const Member& member : pass) {
      segment.rows = rows_of(member);
      if (!member.shape.in_lx || member.shape.row < 0) continue;
      const int64_t points = points_per_core(member.step)[member.shape.row];
      cores = member.step.slices[member.shape.row];
      segment.rows_of_core = member.shape.row == member.shape.lanes ? (points + kRow - 1) / kRow : points;
    }
  if (cores == 1) segment.rows_of_core = segment.rows;
  Knowledge known{cores, segment.rows_of_core, {}, Local(planned).operands()};
  for (const auto& pass : planned.passes)
    for (const Member& member : pass)
      if (member.step.operands[0].in_lx() && member.step.op != OpCode::reduce && !member.shape.only_rows &&
          !planned.readers->read(member, pass.back().place))
        known.dropped.insert(member.place);
  std::vector<Segment::Item> items;
  for (const auto& pass : planned.passes) {
    if (pass[0].shape.only_rows) {
      items.push_back({nullptr, row_step_of(pass[0], known)});
      continue;
    }
    if (splits_fold(pass[0], pass[0])) return segment;
    items.push_back({pass_of(pass, known), nullptr});
    if (!items.back().pass) return segment;
  }
  keep_floats(items, segment.rows_of_core);
  segment.items = std::move(items);
  return segment;
}

}  // namespace

std::shared_ptr<const Schedule> schedule_of(const Program& program) {
  std::vector<Planned> all;
  const auto readers = std::make_shared<const Readers>(program);
  Group group;
  const auto close = [&](size_t end) {
    if (group.empty()) return;
    std::vector<Member> members = group.take();
    std::vector<Member> pieces = program.steps.size() > kLookAhead ? members : in_pieces(members);
    const size_t begin = members[0].index, after = begin + pieces.size();
    auto here = readers;
    if (pieces.size() != members.size()) {
      for (size_t i = 0; i < pieces.size(); ++i) pieces[i].place = begin + i;
      here = std::make_shared<const Readers>(*readers, begin, end, pieces);
    }
    all.push_back({begin, end, passes_of(std::move(pieces)), after, std::move(here)});
  };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (group.add(i, program.steps[i])) continue;
    close(i);
    if (!group.add(i, program.steps[i])) all.push_back({i, i + 1, {}});
  }
  close(program.steps.size());

  auto schedule = std::make_shared<Schedule>();
  for (const Planned& planned : all) {
    Segment& segment = schedule->segments.emplace_back(segment_of(planned));
    if (segment.items.empty()) continue;
    if (segment.begin > 0) segment.behind_tasks = blocks_behind_tasks(program, segment.begin - 1, segment);
    const size_t begin = segment.begin - (segment.behind_tasks.empty() ? 0 : 1);  // with the product, if it is mixed in
    for (size_t i = begin; i < segment.end; ++i)
      for (size_t operand = 0; operand < program.steps[i].operands.size(); ++operand) {
        const int argument = program.steps[i].operands[operand].argument;
        if (argument < 0) continue;
        schedule->used.insert(argument);
        if (operand == 0) schedule->written.insert(argument);
      }
  }
  return schedule;
}

}  // namespace spyre
