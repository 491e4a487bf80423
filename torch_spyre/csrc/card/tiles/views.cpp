// Views of memory and access tiles: what they say, before anything is read.
#include <algorithm>

#include "card/tiles/core.h"

namespace spyre::tiles {

namespace {

constexpr int64_t kFarthest = int64_t{1} << 40;  // elements; sums of products of these stay within 64 bits when checked

void run_memory_view(Core& core, const Instruction& at) {
  auto view = std::make_shared<View>();
  view->type = at.type;
  view->base = core.integer(at, at.in[0]);
  size_t next = 1;
  const auto number = [&](int64_t given) {
    if (given != kDynamic) return given;
    if (next >= at.in.size()) refuse(at, "a dynamic size or stride has no value");
    return core.integer(at, at.in[next++]);
  };
  const int rank = int(at.numbers[0]);
  std::vector<int64_t> symbols;
  for (int d = 0; d < rank; ++d) {
    const int64_t n = number(at.numbers[size_t(1 + d)]);
    if (n < 0 || n > kFarthest)
      refuse(at, "a view of " + std::to_string(n) + " elements along dimension " + std::to_string(d));
    if (at.numbers[size_t(1 + d)] == kDynamic) symbols.push_back(n);
    view->sizes.push(n);
    view->first.push(0);
  }
  for (int d = 0; d < rank; ++d) {
    const int64_t stride = number(at.numbers[size_t(1 + rank + d)]);
    if (stride < -kFarthest || stride > kFarthest) refuse(at, "a stride of " + std::to_string(stride));
    const int64_t n = view->sizes[d];
    if (n > 1 && stride != 0 && n > (kFarthest << 4) / std::abs(stride))
      refuse(at, "a view of " + std::to_string(n) + " elements " + std::to_string(stride) + " apart");
    view->strides.push(stride);
  }
  const int64_t space = at.numbers[size_t(1 + 2 * rank)];
  view->lx_core = space == -2 ? int(core.id) : int(space);
  if (view->lx_core >= core.launch.program.cores)
    refuse(at, "there is no core " + std::to_string(view->lx_core) + ": the grid has " +
                   std::to_string(core.launch.program.cores));
  if (!at.sets.empty()) {
    if (at.sets[0].dimensions != rank) refuse(at, "the coordinate set has another number of dimensions than the view");
    BoundSet set = bind(at.sets[0], symbols);
    const auto bounds = set.bounds();
    for (int d = 0; d < rank; ++d) {
      const auto& interval = bounds[size_t(d)];
      for (const int64_t end : {interval.low.value_or(0), interval.high.value_or(0)})
        if (end > kFarthest || end < -kFarthest) refuse(at, "the coordinate set reaches too far");
      if (interval.low) view->first[d] = *interval.low;
      if (interval.high) view->sizes[d] = std::clamp<int64_t>(*interval.high - view->first[d] + 1, 0, view->sizes[d]);
    }
    if (!set.box()) view->coordinates = std::move(set);
  }
  Value& to = core.slots[size_t(at.out[0])];
  to.kind = Value::Kind::view;
  to.view = std::move(view);
}

bool overlap(const View& a, const View& b) {
  for (int d = 0; d < a.sizes.rank; ++d)
    if (a.first[d] + a.sizes[d] <= b.first[d] || b.first[d] + b.sizes[d] <= a.first[d]) return false;
  return a.coordinates.rows.empty() && b.coordinates.rows.empty();
}

void run_distributed_view(Core& core, const Instruction& at) {
  auto view = std::make_shared<View>();
  for (int slot : at.in) {
    const View& part = core.view(at, slot);
    if (!part.parts.empty()) refuse(at, "a part of a distributed view is a distributed view itself");
    if (!view->parts.empty() && (part.sizes.rank != view->sizes.rank || part.type != view->type))
      refuse(at, "the parts differ in type or in their number of dimensions");
    for (const auto& other : view->parts)
      if (overlap(part, *other)) refuse(at, "two parts have the same coordinates");
    if (view->parts.empty()) {
      view->type = part.type;
      view->sizes = part.sizes;
      view->first = part.first;
      view->strides.rank = part.sizes.rank;
    }
    for (int d = 0; d < part.sizes.rank; ++d) {
      const int64_t end = std::max(view->first[d] + view->sizes[d], part.first[d] + part.sizes[d]);
      view->first[d] = std::min(view->first[d], part.first[d]);
      view->sizes[d] = end - view->first[d];
    }
    view->parts.push_back(core.slots[size_t(slot)].view);
  }
  Value& to = core.slots[size_t(at.out[0])];
  to.kind = Value::Kind::view;
  to.view = std::move(view);
}

std::vector<int64_t> integers(const Core& core, const Instruction& at, size_t first, size_t count) {
  if (first + count > at.in.size()) refuse(at, "lacks an operand");
  std::vector<int64_t> values;
  for (size_t i = 0; i < count; ++i) values.push_back(core.integer(at, at.in[first + i]));
  return values;
}

// The box that the set and the type together say; numbers: the order, then the shape of the type.
void set_box(const Instruction& at, Access& access, const BoundSet& set) {
  const auto bounds = set.bounds();
  const size_t rank = bounds.size();
  if (at.numbers.size() != 2 * rank) refuse(at, "the order or the type has another number of dimensions than the set");
  Shape extents;
  for (size_t d = 0; d < rank; ++d) {
    const auto& interval = bounds[d];
    access.low[d] = interval.low.value_or(0);
    for (const int64_t end : {access.low[d], interval.high.value_or(0)})
      if (end > kFarthest || end < -kFarthest) refuse(at, "the set reaches too far");
    const int64_t n = interval.high ? *interval.high - access.low[d] + 1 : -1;
    extents.push(interval.high ? std::max<int64_t>(n, 0) : -1);
    access.order[d] = int(at.numbers[d]);
    if (access.order[d] < 0 || access.order[d] >= int(rank)) refuse(at, "the order is not a permutation");
  }
  // A type in the order of the set's dimensions has no other order than theirs.
  bool ordered = true, plain = true;
  for (size_t k = 0; k < rank; ++k) {
    const int64_t wanted = at.numbers[rank + k], by_order = extents[access.order[k]], by_set = extents[int(k)];
    ordered &= wanted < 0 || by_order < 0 || wanted == by_order;
    plain &= wanted < 0 || by_set < 0 || wanted == by_set;
  }
  if (!ordered && plain)
    for (size_t k = 0; k < rank; ++k) access.order[k] = int(k);
  for (size_t k = 0; k < rank; ++k) {
    const int64_t wanted = at.numbers[rank + k], n = extents[access.order[k]];
    if (wanted >= 0 && n >= 0 && wanted != n)
      refuse(at, "the set has " + std::to_string(n) + " points along dimension " + std::to_string(access.order[k]) +
                     ", the type says " + std::to_string(wanted));
    if (wanted < 0 && n < 0) refuse(at, "the set does not end along dimension " + std::to_string(access.order[k]));
    access.shape.push(n >= 0 ? n : wanted);
  }
  if (!set.box()) access.set = set;
}

void run_access(Core& core, const Instruction& at) {
  auto access = std::make_shared<Access>();
  const View& view = core.view(at, at.in[0]);
  access->view = core.slots[size_t(at.in[0])].view;
  const size_t rank = size_t(view.sizes.rank), indices = size_t(at.values.empty() ? 0 : at.values[0]);
  if (at.maps.empty() || at.maps[0].size() != rank)
    refuse(at, "the base has another number of coordinates than the view");
  const std::vector<int64_t> given = integers(core, at, 1, indices),
                             symbols = integers(core, at, 1 + indices, at.in.size() - 1 - indices);
  for (size_t d = 0; d < rank; ++d) access->base[d] = BoundExpression(at.maps[0][d], int(indices), {})(given.data());
  for (size_t d = 0; d < rank; ++d)
    if (access->base[d] > kFarthest || access->base[d] < -kFarthest)
      refuse(at, "a tile at coordinate " + std::to_string(access->base[d]));
  if (at.sets[0].dimensions != int(rank)) refuse(at, "the set has another number of dimensions than the view");
  set_box(at, *access, bind(at.sets[0], symbols));
  Value& to = core.slots[size_t(at.out[0])];
  to.kind = Value::Kind::access;
  to.access = std::move(access);
}

// in: the view, index views, scalars that subscripts name; dimensions of the expressions: the variables, then the
// scalars.
void run_indirect_access(Core& core, const Instruction& at) {
  auto access = std::make_shared<Access>();
  const View& view = core.view(at, at.in[0]);
  access->view = core.slots[size_t(at.in[0])].view;
  if (int(at.index_views.size()) != view.sizes.rank)
    refuse(at, "another number of subscripts than the view has dimensions");
  const size_t views = size_t(at.values[0]), scalars = size_t(at.values[1]);
  const std::vector<int64_t> given = integers(core, at, 1 + views, scalars),
                             symbols = integers(core, at, 1 + views + scalars, at.in.size() - 1 - views - scalars);
  set_box(at, *access, bind(at.sets[0], symbols));
  for (size_t s = 0; s < at.index_views.size(); ++s) {
    Access::Subscript subscript;
    for (const Expression& each : at.maps[s]) subscript.at.emplace_back(each, at.sets[0].dimensions, given);
    if (at.index_views[s] >= 0) {
      const View& index = core.view(at, at.in[size_t(at.index_views[s])]);
      if (is_real(index.type)) refuse(at, "indices are integers");
      if (index.sizes.rank != int(subscript.at.size()))
        refuse(at, "an index view has another number of dimensions than its subscripts");
      if (!index.parts.empty()) refuse(at, "an index view is distributed");
      subscript.index = core.slots[size_t(at.in[size_t(at.index_views[s])])].view;
    } else if (subscript.at.size() != 1) {
      refuse(at, "a subscript is one expression");
    }
    access->subscripts.push_back(std::move(subscript));
  }
  Value& to = core.slots[size_t(at.out[0])];
  to.kind = Value::Kind::access;
  to.access = std::move(access);
}

}  // namespace

void run_view(Core& core, const Instruction& at) {
  switch (at.code) {
    case Code::view:
      return run_memory_view(core, at);
    case Code::distributed_view:
      return run_distributed_view(core, at);
    case Code::access:
      return run_access(core, at);
    default:
      return run_indirect_access(core, at);
  }
}

}  // namespace spyre::tiles
