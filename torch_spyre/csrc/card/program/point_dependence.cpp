#include "card/program/point_dependence.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

#include "card/program/core_split.h"

namespace spyre {

namespace {

constexpr int64_t kMostTries = 1 << 14;

int64_t floor_div(__int128 a, int64_t b) {
  const __int128 quotient = a / b;
  return static_cast<int64_t>(quotient - (a % b != 0 && (a < 0) != (b < 0)));
}

class Search {
 public:
  Search(std::vector<Term> terms, Tries* shared) : terms_(std::move(terms)), shared_(shared) {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.factor > b.factor; });
    rest_.resize(terms_.size() + 1);
    for (size_t i = terms_.size(); i-- > 0;) {
      const Term& term = terms_[i];
      rest_[i] = {rest_[i + 1].low + static_cast<__int128>(term.factor) * term.low,
                  rest_[i + 1].high + static_cast<__int128>(term.factor) * term.high,
                  std::gcd(rest_[i + 1].divisor, term.factor)};
    }
  }
  bool find(size_t at, __int128 low, __int128 high) {
    if (++tries_ > kMostTries || (shared_ && --shared_->left < 0)) {
      if (shared_) shared_->exceeded = true;
      return true;
    }
    const Rest& rest = rest_[at];
    if (rest.low > high || rest.high < low) return false;
    if (at == terms_.size()) return true;  // the empty sum, 0, is in the range
    if (static_cast<__int128>(floor_div(high, rest.divisor)) * rest.divisor < low) return false;
    const Term& term = terms_[at];
    const Rest& behind = rest_[at + 1];
    // Only values that the terms behind this one can complete to a sum in the range are tried.
    const int64_t from = std::max(term.low, -floor_div(-(low - behind.high), term.factor));
    const int64_t to = std::min(term.high, floor_div(high - behind.low, term.factor));
    for (int64_t x = from; x <= to; ++x) {
      const __int128 value = static_cast<__int128>(term.factor) * x;
      if (find(at + 1, low - value, high - value)) return true;
    }
    return false;
  }

 private:
  struct Rest {
    __int128 low = 0, high = 0;
    int64_t divisor = 0;
  };
  std::vector<Term> terms_;  // by falling factor, all above 0
  std::vector<Rest> rest_;   // the range of the sum of the terms from here on
  int64_t tries_ = 0;
  Tries* shared_;
};

// The addresses of an operand along one dimension: their number and the distance between two.
struct Progression {
  int64_t count, stride;
  bool operator==(const Progression&) const = default;
};

int64_t lanes_of(const Operand& operand) { return operand.stick < 0 ? 1 : elements_per_stick(operand.format); }

// Counts whole sticks if the operand has sticks along the dimension.
Progression places_along(const Operand& operand, size_t dimension, int64_t points) {
  const bool along = operand.stick == static_cast<int>(dimension);
  const int64_t count = along ? (points + lanes_of(operand) - 1) / lanes_of(operand) : points;
  return {count, count > 1 ? operand.strides[dimension] : 0};
}

// The contiguous bytes at one address.
int64_t width_of(const Operand& operand, const Dims& points) {
  const int64_t lanes = operand.stick < 0 ? 1 : std::min(points[operand.stick], lanes_of(operand));
  return lanes * element_bytes(operand.format);
}

// The dimensions of the result: a scan also writes along the one that it folds.
size_t written_dimensions(const Step& step) {
  return step.op == OpCode::scan ? step.extents.size() : step.extents.size() - folded_dimensions(step);
}

// Whether points have the same addresses in both operands if the strides are the same.
bool same_placement(const Operand& a, const Operand& b) {
  return a.stick == b.stick && element_bytes(a.format) == element_bytes(b.format);
}

// Whether points overlap that differ in at least one of the dimensions whose `differences` are given.
bool differing_points_overlap(const std::vector<Term>& others, std::vector<Term> differences, int64_t low, int64_t high,
                              Tries* shared) {
  for (size_t pivot = 0; pivot < differences.size(); ++pivot) {
    if (differences[pivot].high < 1) continue;
    for (const bool negative : {false, true}) {
      std::vector<Term> terms = others;
      for (size_t i = 0; i < differences.size(); ++i) {
        Term term = differences[i];
        if (i == pivot && negative) term.high = -1;
        if (i == pivot && !negative) term.low = 1;
        terms.push_back(term);
      }
      if (can_sum(std::move(terms), low, high, shared)) return true;
    }
  }
  return false;
}

Term difference(const Progression& along) { return {along.stride, 1 - along.count, along.count - 1}; }

}  // namespace

bool can_sum(std::vector<Term> terms, int64_t low, int64_t high, Tries* shared) {
  // Terms with the same factor are merged; a negative factor becomes a positive one with negated bounds.
  std::map<int64_t, Term> merged;
  for (Term term : terms) {
    if (term.low > term.high) return false;
    if (term.factor == 0) continue;
    if (term.factor < 0) term = {-term.factor, -term.high, -term.low};
    const auto [found, fresh] = merged.try_emplace(term.factor, term);
    if (fresh) continue;
    found->second.low += term.low;
    found->second.high += term.high;
  }
  terms.clear();
  for (const auto& [factor, term] : merged) terms.push_back(term);
  return low <= high && Search(std::move(terms), shared).find(0, low, high);
}

bool writes_twice(const Step& step, Tries* shared) {
  const Operand& written = step.operands[0];
  const Dims points = written.in_lx() ? points_per_core(step) : step.extents;
  std::vector<Term> differences;
  for (size_t i = 0; i < written_dimensions(step); ++i) {
    const Progression along = places_along(written, i, points[i]);
    if (along.count > 1 && along.stride == 0) return true;
    differences.push_back(difference(along));
  }
  const int64_t width = width_of(written, points);
  return differing_points_overlap({}, std::move(differences), 1 - width, width - 1, shared);
}

bool reads_written(const Step& step, size_t index, bool same_memory, Tries* shared) {
  const Operand &written = step.operands[0], &read = step.operands[index];
  if (read.is_constant() || (read.argument != written.argument && !same_memory)) return false;
  if (read.across_cores())
    return false;  // scratchpad() checks that a copy does not write where it reads from other cores
  const Dims points = written.in_lx() ? points_per_core(step) : step.extents;
  // These ops read all of an input for a part of the result, in an order of their own.
  const bool to_table = indexed_operand(step) == 0, from_table = !indices_of(step, index).empty();
  const bool anywhere = step.op == OpCode::matmul || step.op == OpCode::attention ||
                        step.op == OpCode::paged_attention || step.op == OpCode::topk || to_table || from_table;
  const size_t kept = written_dimensions(step);
  std::vector<Term> others, differences;
  bool anyhow = anywhere || !same_placement(written, read);
  const auto add = [&](const Progression& to, const Progression& from) {
    others.push_back({to.stride, 0, to.count - 1});
    others.push_back({-from.stride, 0, from.count - 1});
  };
  for (size_t i = 0; i < points.size(); ++i) {
    const Progression to = places_along(written, i, points[i]), from = places_along(read, i, points[i]);
    if (i < kept && !anyhow && to == from)
      differences.push_back(difference(to));
    else if (i < kept)
      anyhow = true, add(to, from);
    else
      add(to, from);
  }
  bool along_index = false;
  const size_t table = to_table ? 0 : index;
  for (const Indirect& indirect : indices_of(step, table)) {
    const int64_t lanes = indirect.stick ? elements_per_stick(step.operands[table].format) : 1;
    const Progression ways{(indirect.extent + lanes - 1) / lanes, indirect.stride}, none{1, 0};
    add(to_table ? ways : none, from_table ? ways : none);
    along_index |= indirect.stick;
  }
  const auto width = [&](const Operand& operand, bool table) {
    return table && along_index ? int64_t{kStickBytes} : width_of(operand, points);
  };
  const int64_t distance = read.offset - written.offset;
  const int64_t low = distance + 1 - width(written, to_table);
  const int64_t high = distance + width(read, from_table) - 1;
  if (!anyhow) return differing_points_overlap(others, std::move(differences), low, high, shared);
  others.insert(others.end(), differences.begin(), differences.end());
  return can_sum(std::move(others), low, high, shared);
}

}  // namespace spyre
