#include "card/tiles/races.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace spyre::tiles {

namespace {

struct Touch {
  const Touched* what;
  int64_t core, low, high;  // bytes, `high` behind the last
};

[[noreturn]] void refuse_race(const Touch& first, const Touch& second) {
  const Touch &later = first.core > second.core ? first : second, &other = first.core > second.core ? second : first;
  throw UndefinedBehavior(later.what->at->where + ": core " + std::to_string(later.core) +
                          (later.what->written ? " writes" : " reads") + " what core " + std::to_string(other.core) +
                          (other.what->written ? " writes" : " reads") + " at " + other.what->at->where +
                          ", and nothing orders them: " + later.what->region->name);
}

// Calls visit(first byte, bytes) for the contiguous runs of what was touched.
template <class Visit>
void each_run(const Touched& what, size_t dimension, int64_t offset, const Visit& visit) {
  if (dimension == what.dimensions.size()) return visit(offset, what.element);
  const auto [count, stride] = what.dimensions[dimension];
  if (dimension + 1 == what.dimensions.size() && stride == what.element) return visit(offset, count * stride);
  for (int64_t i = 0; i < count; ++i) each_run(what, dimension + 1, offset + i * stride, visit);
}

// Whose is each byte: only where boxes of several cores may share some.
void check_bytes(const std::vector<Touch>& touches, int64_t low, int64_t high) {
  std::vector<const Touch*> writer(size_t(high - low));
  for (bool written : {true, false})
    for (const Touch& touch : touches) {
      if (touch.what->written != written) continue;
      each_run(*touch.what, 0, touch.what->offset, [&](int64_t at, int64_t bytes) {
        for (int64_t i = at - low; i < at - low + bytes; ++i) {
          const Touch*& owner = writer[size_t(i)];
          if (owner && owner->core != touch.core) refuse_race(*owner, touch);
          if (written) owner = &touch;
        }
      });
    }
}

void check_region(std::vector<Touch>& touches) {
  std::sort(touches.begin(), touches.end(),
            [](const Touch& a, const Touch& b) { return std::tie(a.low, a.core) < std::tie(b.low, b.core); });
  // Runs of boxes that overlap one after the other; most have one core each.
  for (size_t begin = 0, end; begin < touches.size(); begin = end) {
    int64_t high = touches[begin].high;
    bool several = false, writes = touches[begin].what->written;
    for (end = begin + 1; end < touches.size() && touches[end].low < high; ++end) {
      high = std::max(high, touches[end].high);
      several |= touches[end].core != touches[begin].core;
      writes |= touches[end].what->written;
    }
    if (several && writes)
      check_bytes({touches.begin() + int64_t(begin), touches.begin() + int64_t(end)}, touches[begin].low, high);
  }
}

}  // namespace

void check_races(const std::vector<Core>& cores) {
  std::map<std::pair<const Region*, int64_t>, std::vector<Touch>> places;  // and between which meetings
  std::map<const Region*, bool> written;
  for (const Core& core : cores)
    for (const Touched& each : core.touched) written[each.region] |= each.written;
  for (const Core& core : cores)
    for (const Touched& each : core.touched) {
      if (!written[each.region]) continue;
      int64_t low = each.offset, high = each.offset;
      for (const auto& [count, stride] : each.dimensions) (stride < 0 ? low : high) += (count - 1) * stride;
      places[{each.region, each.meetings}].push_back({&each, core.id, low, high + each.element});
    }
  for (auto& [place, touches] : places) check_region(touches);
}

}  // namespace spyre::tiles
