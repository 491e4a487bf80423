// Finds the steps of a program that run together.
#include <algorithm>

#include "compute.h"
#include "segment.h"

namespace spyre {

namespace {

// A single row is one thread's work.
constexpr int64_t kLongestRow = 1 << 15;

bool same_points(const Member& a, const Member& b) {
  return a.step.extents == b.step.extents && a.step.slices == b.step.slices && a.shape.lanes == b.shape.lanes;
}

// Steps that may become a segment.
class Group {
 public:
  bool add(size_t index, const Step& given) {
    const auto shape = shape_of(given);
    if (!shape) return false;
    Member member = member_of(index, without_copies(given), *shape);
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

  // Reads where a copy to LX was read from, if that is still there.
  Step without_copies(Step step) const {
    for (size_t i = 1; i < step.operands.size(); ++i)
      for (size_t m = members_.size(); m-- > 0;) {
        const Member& copy = members_[m];
        if (copy.step.op != OpCode::copy || !copy.step.operands[0].in_lx() || !same_place(copy.step, 0, step, i))
          continue;
        bool there = true;
        for (size_t later = m + 1; later < members_.size(); ++later)
          there &= !overlap(members_[later], 0, copy, 0) && !overlap(members_[later], 0, copy, 1);
        if (there) step.operands[i] = copy.step.operands[1];
        break;
      }
    return step;
  }

  std::vector<Member> members_;
};

// Members in the order of the program, those of one pass together.
using Passes = std::vector<std::vector<Member>>;

Passes passes_of(std::vector<Member> members) {
  Passes passes;
  for (Member& member : members) {
    const auto joins = [&](const std::vector<Member>& pass) {
      return !member.shape.only_rows && !pass[0].shape.only_rows && same_points(pass[0], member) &&
             std::all_of(pass.begin(), pass.end(),
                         [&](const Member& other) { return meeting(other, member) <= Meeting::same_place; });
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

// What is read from LX, later than a step and other than in its own pass.
class Readers {
 public:
  explicit Readers(const Program& program) {
    for (size_t i = 0; i < program.steps.size(); ++i) all_.push_back(member_of(i, program.steps[i], {}));
  }
  void replace(const Member& member) { all_[member.index] = member; }

  // Whether anything of what member m of a pass has left in LX is read there.
  bool read(const std::vector<Member>& pass, size_t m) const {
    const Member& writer = pass[m];
    for (size_t at = writer.index + 1; at < all_.size(); ++at) {
      const Member& later = all_[at];
      const bool beside = at <= pass.back().index;  // gets it from registers, if it reads the same place
      for (size_t i = updates_written(later.step) ? 0 : 1; i < later.step.operands.size(); ++i)
        if (overlap(writer, 0, later, i) && !(beside && same_place(writer.step, 0, later.step, i))) return true;
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
};

Segment segment_of(const Planned& planned, const Readers& readers) {
  Segment segment;
  segment.begin = planned.begin;
  segment.end = planned.end;
  int64_t rows = 1;
  for (const auto& pass : planned.passes)
    for (const Member& member : pass) {
      rows = rows_of(member);
      if (member.shape.in_lx && member.shape.row >= 0) segment.outer_rows = member.step.slices[member.shape.row];
    }
  segment.inner_rows = rows / segment.outer_rows;
  std::vector<Segment::Item> items;
  for (const auto& pass : planned.passes) {
    if (pass[0].shape.only_rows) {
      items.push_back({nullptr, row_step_of(pass[0], segment.outer_rows, segment.inner_rows)});
      continue;
    }
    std::set<size_t> dropped;
    for (size_t m = 0; m < pass.size(); ++m)
      if (pass[m].step.operands[0].in_lx() && pass[m].step.op != OpCode::reduce && !readers.read(pass, m))
        dropped.insert(pass[m].index);
    items.push_back({pass_of(pass, dropped, segment.outer_rows, segment.inner_rows), nullptr});
    if (!items.back().pass) return segment;
  }
  segment.items = std::move(items);
  return segment;
}

}  // namespace

std::shared_ptr<const Schedule> schedule_of(const Program& program) {
  std::vector<Planned> all;
  Readers readers(program);
  Group group;
  const auto close = [&](size_t end) {
    if (group.empty()) return;
    std::vector<Member> members = group.take();
    const size_t begin = members[0].index;
    for (const Member& member : members) readers.replace(member);
    all.push_back({begin, end, passes_of(std::move(members))});
  };
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (group.add(i, program.steps[i])) continue;
    close(i);
    if (!group.add(i, program.steps[i])) all.push_back({i, i + 1, {}});
  }
  close(program.steps.size());

  auto schedule = std::make_shared<Schedule>();
  for (const Planned& planned : all) {
    schedule->segments.push_back(segment_of(planned, readers));
    const Segment& segment = schedule->segments.back();
    if (segment.items.empty()) continue;
    for (size_t i = segment.begin; i < segment.end; ++i)
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
