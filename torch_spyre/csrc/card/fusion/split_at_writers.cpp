#include "card/fusion/split_at_writers.h"

#include <algorithm>
#include <set>

#include "card/fusion/threaded_ops.h"

namespace spyre {

namespace {

constexpr size_t kMostPieces = 4;
constexpr int kUnknown = -1, kAll = -2;

struct Lanes {
  int64_t begin, end;
  bool operator==(const Lanes&) const = default;
};

bool can_be_cut(const Member& member) {
  const int lanes = member.shape.lanes;
  return lanes >= 0 && member.shape.row != lanes && member.step.op != OpCode::reduce && member.step.slices[lanes] == 1;
}

// Which lanes of what a step reads another one has written.
std::optional<Lanes> part_written(const Member& writer, const Member& reader, size_t operand) {
  const auto sticks = sticks_between(reader, operand, writer, 0);
  if (!sticks || *sticks < 0) return {};
  const int64_t begin = *sticks * elements_per_stick(reader.step.operands[operand].format);
  const Lanes lanes{begin, begin + lanes_of(writer)};
  return lanes.end <= lanes_of(reader) ? std::optional(lanes) : std::nullopt;
}

bool exclude_each_other(const Member& a, const Member& b) {
  for (size_t i = 0; i < a.step.operands.size(); ++i)
    for (size_t j = 0; j < b.step.operands.size(); ++j)
      if (!(i && j) && overlap(a, i, b, j)) return true;
  return false;
}

Member piece_of(const Member& member, const Lanes& lanes) {
  Step step = member.step;
  const int along = member.shape.lanes;
  for (Operand& operand : step.operands)
    if (!operand.is_constant() && operand.stick == along)
      operand.offset += lanes.begin / elements_per_stick(operand.format) * operand.strides[along];
  step.extents[along] = lanes.end - lanes.begin;
  return member_of(member.index, step, member.shape);
}

// Members that can all be cut.
class Cutter {
 public:
  explicit Cutter(const std::vector<Member>& members) : members_(members) {}

  std::vector<Member> pieces() {
    if (!find_cuts() || !assign()) return members_;
    std::vector<Member> all;
    std::vector<size_t> origin;
    for (size_t k = 0; k < cuts_.size(); ++k)
      for (size_t m = 0; m < members_.size(); ++m)
        if (piece_[m] == kAll || piece_[m] == static_cast<int>(k)) {
          all.push_back(piece_[m] == kAll ? piece_of(members_[m], cuts_[k]) : members_[m]);
          origin.push_back(m);
        }
    for (size_t a = 0; a < all.size(); ++a)
      for (size_t b = a + 1; b < all.size(); ++b)
        if (origin[a] > origin[b] && exclude_each_other(all[a], all[b])) return members_;
    return all;
  }

 private:
  bool find_cuts() {
    std::set<int64_t> at;
    for (size_t reader = 0; reader < members_.size(); ++reader)
      for (size_t writer = 0; writer < reader; ++writer)
        for (size_t i = 1; i < members_[reader].step.operands.size(); ++i) {
          if (!overlap(members_[writer], 0, members_[reader], i)) continue;
          const auto part = part_written(members_[writer], members_[reader], i);
          if (!part || *part == Lanes{0, lanes_of(members_[reader])}) continue;
          if (whole_ && whole_ != lanes_of(members_[reader])) return false;
          whole_ = lanes_of(members_[reader]);
          at.insert(part->begin);
          at.insert(part->end);
        }
    if (at.empty()) return false;
    at.insert(0);
    at.insert(whole_);
    if (at.size() > kMostPieces + 1) return false;
    for (auto next = at.begin(); *next != whole_; ++next) {
      if (*next % kRow) return false;
      cuts_.push_back({*next, *std::next(next)});
    }
    return true;
  }

  // Members over all lanes are cut; others belong where what they write is read.
  bool assign() {
    piece_.assign(members_.size(), kUnknown);
    for (size_t m = members_.size(); m-- > 0;) {
      if (lanes_of(members_[m]) == whole_)
        piece_[m] = kAll;
      else if ((piece_[m] = piece_of_readers(m)) == kUnknown)
        return false;
    }
    return true;
  }
  int piece_of_readers(size_t writer) const {
    int found = kUnknown;
    for (size_t reader = writer + 1; reader < members_.size(); ++reader)
      for (size_t i = 1; i < members_[reader].step.operands.size(); ++i) {
        if (!overlap(members_[writer], 0, members_[reader], i)) continue;
        const int piece = piece_read(writer, reader, i);
        if (piece == kUnknown || (found != kUnknown && found != piece)) return kUnknown;
        found = piece;
      }
    return found;
  }
  int piece_read(size_t writer, size_t reader, size_t operand) const {
    if (piece_[reader] != kAll)
      return same_place(members_[writer].step, 0, members_[reader].step, operand) ? piece_[reader] : kUnknown;
    const auto part = part_written(members_[writer], members_[reader], operand);
    for (size_t k = 0; part && k < cuts_.size(); ++k)
      if (cuts_[k] == *part) return static_cast<int>(k);
    return kUnknown;
  }

  const std::vector<Member>& members_;
  int64_t whole_ = 0;
  std::vector<Lanes> cuts_;
  std::vector<int> piece_;  // of each member
};

}  // namespace

std::vector<Member> in_pieces(const std::vector<Member>& members) {
  std::vector<Member> all, run;
  const auto end_run = [&] {
    const std::vector<Member> pieces = Cutter(run).pieces();
    all.insert(all.end(), pieces.begin(), pieces.end());
    run.clear();
  };
  for (const Member& member : members) {
    if (can_be_cut(member)) {
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
