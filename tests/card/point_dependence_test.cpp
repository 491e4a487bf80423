// Dependence between points of a step, against a search through all of them.
#include "card/program/point_dependence.h"

#include <map>
#include <random>
#include <set>

#include "card/program/core_split.h"
#include "testing.h"

using namespace spyre;

namespace {

// Every point of a step's first dimensions, in row-major order.
template <typename Body>
void for_points(const Dims& extents, const Body& body) {
  Dims point(extents.size(), 0);
  for (bool more = true; more;) {
    body(point);
    more = false;
    for (size_t i = point.size(); i-- > 0 && !more;) {
      more = ++point[i] < extents[i];
      if (!more) point[i] = 0;
    }
  }
}

int64_t byte_of(const Operand& operand, const Dims& point) {
  int64_t at = operand.offset;
  const int64_t stick = elements_per_stick(operand.format);
  for (size_t i = 0; i < point.size(); ++i)
    at += operand.stick == static_cast<int>(i)
              ? point[i] / stick * operand.strides[i] + point[i] % stick * element_bytes(operand.format)
              : point[i] * operand.strides[i];
  return at;
}

struct Found {
  bool twice = false, read = false;
};

Found search(const Step& step) {
  Found found;
  std::map<int64_t, Dims> writer;
  for_points(step.extents, [&](const Dims& point) {
    const int64_t at = byte_of(step.operands[0], point);
    found.twice |= !writer.try_emplace(at, point).second;
  });
  for_points(step.extents, [&](const Dims& point) {
    const auto at = writer.find(byte_of(step.operands[1], point));
    found.read |= at != writer.end() && at->second != point;
  });
  return found;
}

}  // namespace

TEST("dependence: sums are found exactly") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Term> terms;
    for (int i = static_cast<int>(random() % 4); i >= 0; --i) {
      const int64_t low = static_cast<int64_t>(random() % 7) - 3;
      terms.push_back({static_cast<int64_t>(random() % 41) - 20, low, low + static_cast<int64_t>(random() % 5)});
    }
    const int64_t low = static_cast<int64_t>(random() % 100) - 50, high = low + static_cast<int64_t>(random() % 3);
    std::set<int64_t> sums{0};
    for (const Term& term : terms) {
      std::set<int64_t> next;
      for (const int64_t sum : sums)
        for (int64_t x = term.low; x <= term.high; ++x) next.insert(sum + x * term.factor);
      sums = std::move(next);
    }
    const auto least = sums.lower_bound(low);
    CHECK(can_sum(terms, low, high) == (least != sums.end() && *least <= high));
  }
}

TEST("dependence: points that write together, or read what another writes, are found") {
  std::mt19937 random(2);
  const auto one_of = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  int twice = 0, read = 0, none = 0;
  for (int round = 0; round < 4000; ++round) {
    Step step;
    step.op = OpCode::copy;
    step.operands.resize(2);
    const bool sticks = random() % 2;
    for (int rank = 1 + static_cast<int>(random() % 3); rank > 0; --rank) {
      step.extents.push_back(1 + static_cast<int64_t>(random() % 5));
      step.slices.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(step.extents.back())));
      for (Operand& operand : step.operands)
        operand.strides.push_back(sticks ? one_of({128, 256, 384, 640, 1280}) : one_of({2, 4, 10, 64, 128, 256, 320}));
      if (random() % 2) step.operands[1].strides.back() = step.operands[0].strides.back();
    }
    if (sticks) {
      const size_t along = random() % step.extents.size();
      step.extents[along] = one_of({3, 64, 100, 200});
      for (Operand& operand : step.operands) operand.stick = static_cast<int>(along);
    }
    step.operands[1].offset = one_of({0, 0, 128, 1280, 1 << 16});
    const Found found = search(step);
    CHECK(writes_twice(step) == found.twice);
    twice += found.twice;
    if (found.twice) continue;
    // Where the two do not move alike, a point that meets itself counts too.
    if (found.read) CHECK(reads_written(step, 1));
    if (step.operands[0].strides == step.operands[1].strides) CHECK(reads_written(step, 1) == found.read);
    read += found.read;
    none += !found.read;
  }
  CHECK(twice > 100 && read > 100 && none > 100);
}

TEST("dependence: a search that would take too long says yes, and what no sum can be is seen at once") {
  std::vector<Term> odd, even;
  for (int64_t i = 0; i < 40; ++i) odd.push_back({1000003 + 2 * i * i, -(1 << 20), 1 << 20});
  for (int64_t i = 0; i < 40; ++i) even.push_back({1000002 + 2 * i * i, -(1 << 20), 1 << 20});
  CHECK(can_sum(odd, 1, 1));
  CHECK(!can_sum(even, 1, 1));  // all are even
}
