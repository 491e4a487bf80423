#include "card/tiles/futures.h"

namespace spyre::tiles {

namespace {

constexpr int64_t kMostGroups = 4096;

}  // namespace

std::vector<std::vector<int64_t>> groups_of(const Core& core, const Instruction& at, int group_dimensions) {
  const std::vector<int64_t>& grid = core.launch.program.grid;
  const IntegerSet& set = at.sets[0];
  std::vector<int64_t> place;
  for (int64_t rest = core.id; const int64_t n : grid) {
    place.push_back(rest % n);
    rest /= n;
  }
  std::vector<int64_t> flat{core.id};
  const int own = set.dimensions + set.symbols - group_dimensions;
  // Groups may be dimensions in front, or symbols; a set without them is that of one group.
  int groups = group_dimensions;
  const std::vector<int64_t>* coordinates = nullptr;
  if (own == int(place.size()))
    coordinates = &place;
  else if (own == 1)
    coordinates = &flat;
  else if (set.dimensions == int(place.size()) || set.dimensions == 1) {
    coordinates = set.dimensions == 1 ? &flat : &place;
    groups = 0;
  } else
    refuse(at, "the set of cores has " + std::to_string(set.dimensions + set.symbols) + " dimensions, for groups of " +
                   std::to_string(group_dimensions) + " and a grid of " + std::to_string(place.size()));
  std::vector<std::vector<int64_t>> result;
  if (groups == 0) {
    if (bind(set, {}).contains(coordinates->data())) result.emplace_back(size_t(group_dimensions), 0);
    return result;
  }
  // A group per core at most, in each dimension.
  int64_t all = 1;
  const int64_t most = core.launch.program.cores;
  for (int g = 0; g < groups; ++g)
    if (__builtin_mul_overflow(all, most, &all) || all > kMostGroups) refuse(at, "there are more than 4096 groups");
  std::vector<int64_t> group(static_cast<size_t>(groups));
  for (int64_t i = 0; i < all; ++i) {
    for (int64_t rest = i, g = 0; g < groups; ++g, rest /= most) group[size_t(g)] = rest % most;
    std::vector<int64_t> point;
    bool inside;
    if (set.symbols >= groups) {
      inside = bind(set, group).contains(coordinates->data());
    } else {
      point = group;
      point.insert(point.end(), coordinates->begin(), coordinates->end());
      inside = bind(set, {}).contains(point.data());
    }
    if (inside) result.push_back(group);
  }
  return result;
}

}  // namespace spyre::tiles
