#include "card/fusion/split_at_writers.h"

#include <algorithm>
#include <set>

#include "card/fusion/threaded_ops.h"

namespace spyre {

namespace {

constexpr size_t kMostParts = 4;
constexpr int kUnknown = -1, kAll = -2;

struct Lanes {
  int64_t begin, end;
  bool operator==(const Lanes&) const = default;
};

bool can_split(const GroupStep& member) {
  const int lanes = member.shape.lanes;
  return lanes >= 0 && member.shape.row != lanes && member.step.op != OpCode::reduce && member.step.slices[lanes] == 1;
}

// The lanes of what one step reads that another one has written.
std::optional<Lanes> lanes_written(const GroupStep& writer, const GroupStep& reader, size_t operand) {
  const auto sticks = sticks_between(reader, operand, writer, 0);
  if (!sticks || *sticks < 0) return {};
  const int64_t begin = *sticks * elements_per_stick(reader.step.operands[operand].format);
  const Lanes lanes{begin, begin + lanes_of(writer)};
  return lanes.end <= lanes_of(reader) ? std::optional(lanes) : std::nullopt;
}

bool conflict(const GroupStep& a, const GroupStep& b) {
  for (size_t i = 0; i < a.step.operands.size(); ++i)
    for (size_t j = 0; j < b.step.operands.size(); ++j)
      if (!(i && j) && overlap(a, i, b, j)) return true;
  return false;
}

GroupStep part_of(const GroupStep& member, const Lanes& lanes) {
  Step step = member.step;
  const int along = member.shape.lanes;
  for (Operand& operand : step.operands)
    if (!operand.is_constant() && operand.stick == along)
      operand.offset += lanes.begin / elements_per_stick(operand.format) * operand.strides[along];
  step.extents[along] = lanes.end - lanes.begin;
  return group_step_of(member.index, step, member.shape);
}

// Splits members that all can be.
class Splitter {
 public:
  explicit Splitter(const std::vector<GroupStep>& members) : members_(members) {}

  std::vector<GroupStep> split() {
    if (!find_parts() || !assign()) return members_;
    std::vector<GroupStep> all;
    std::vector<size_t> origin;
    for (size_t k = 0; k < parts_.size(); ++k)
      for (size_t m = 0; m < members_.size(); ++m)
        if (part_[m] == kAll || part_[m] == static_cast<int>(k)) {
          all.push_back(part_[m] == kAll ? part_of(members_[m], parts_[k]) : members_[m]);
          origin.push_back(m);
        }
    for (size_t a = 0; a < all.size(); ++a)
      for (size_t b = a + 1; b < all.size(); ++b)
        if (origin[a] > origin[b] && conflict(all[a], all[b])) return members_;
    return all;
  }

 private:
  bool find_parts() {
    std::set<int64_t> at;
    for (size_t reader = 0; reader < members_.size(); ++reader)
      for (size_t writer = 0; writer < reader; ++writer)
        for (size_t i = 1; i < members_[reader].step.operands.size(); ++i) {
          if (!overlap(members_[writer], 0, members_[reader], i)) continue;
          const auto part = lanes_written(members_[writer], members_[reader], i);
          if (!part || *part == Lanes{0, lanes_of(members_[reader])}) continue;
          if (whole_ && whole_ != lanes_of(members_[reader])) return false;
          whole_ = lanes_of(members_[reader]);
          at.insert(part->begin);
          at.insert(part->end);
        }
    if (at.empty()) return false;
    at.insert(0);
    at.insert(whole_);
    if (at.size() > kMostParts + 1) return false;
    for (auto next = at.begin(); *next != whole_; ++next) {
      if (*next % kRow) return false;
      parts_.push_back({*next, *std::next(next)});
    }
    return true;
  }

  // Members over all lanes are split; the others belong to the part that reads what they write.
  bool assign() {
    part_.assign(members_.size(), kUnknown);
    for (size_t m = members_.size(); m-- > 0;) {
      part_[m] = lanes_of(members_[m]) == whole_ ? kAll : part_of_readers(m);
      if (part_[m] == kUnknown) return false;
    }
    return true;
  }
  int part_of_readers(size_t writer) const {
    int found = kUnknown;
    for (size_t reader = writer + 1; reader < members_.size(); ++reader)
      for (size_t i = 1; i < members_[reader].step.operands.size(); ++i) {
        if (!overlap(members_[writer], 0, members_[reader], i)) continue;
        const int part = part_read(writer, reader, i);
        if (part == kUnknown || (found != kUnknown && found != part)) return kUnknown;
        found = part;
      }
    return found;
  }
  int part_read(size_t writer, size_t reader, size_t operand) const {
    if (part_[reader] != kAll)
      return same_place(members_[writer].step, 0, members_[reader].step, operand) ? part_[reader] : kUnknown;
    const auto part = lanes_written(members_[writer], members_[reader], operand);
    for (size_t k = 0; part && k < parts_.size(); ++k)
      if (parts_[k] == *part) return static_cast<int>(k);
    return kUnknown;
  }

  const std::vector<GroupStep>& members_;
  int64_t whole_ = 0;
  std::vector<Lanes> parts_;
  std::vector<int> part_;  // of each member, or kAll
};

}  // namespace

std::vector<GroupStep> split_at_writers(const std::vector<GroupStep>& members) {
  std::vector<GroupStep> all, run;
  const auto end_run = [&] {
    const std::vector<GroupStep> split = Splitter(run).split();
    all.insert(all.end(), split.begin(), split.end());
    run.clear();
  };
  for (const GroupStep& member : members) {
    if (can_split(member)) {
      run.push_back(member);
      continue;
    }
    end_run();
    all.push_back(member);
  }
  end_run();
  return all;
}

}  // namespace spyre
