#include "layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>

namespace spyre {

namespace {

std::string text(const Dims& dims) {
  std::ostringstream out;
  out << '[';
  for (size_t i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  out << ']';
  return out.str();
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t product(const Dims& size) {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
}

Dims contiguous_strides(const Dims& size) {
  Dims strides(size.size());
  int64_t step = 1;
  for (size_t i = size.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(size[i], 1);
  }
  return strides;
}

int64_t Layout::device_elements() const { return product(device_size); }

int64_t Layout::device_bytes() const {
  int64_t sticks = 1;
  for (size_t i = 0; i + 1 < device_size.size(); ++i) sticks *= device_size[i];
  return sticks * kStickBytes;
}

std::string Layout::str() const {
  // The space before '=' is part of the text that users compare with.
  return "SpyreTensorLayout(device_size=" + text(device_size) + ", stride_map =" + text(stride_map) +
         ", device_dtype=DataFormats." + name(format) + ")";
}

Layout default_layout(const Dims& size, const Dims& strides, DataFormat format, Dims order) {
  const int64_t stick = elements_per_stick(format);
  if (stick == 0) throw InvalidLayout(std::string("the card does not store format ") + name(format));
  if (size.size() != strides.size())
    throw InvalidLayout("host_size " + text(size) + " and host_strides " + text(strides) + " differ in rank");
  const auto rank = static_cast<int64_t>(size.size());
  if (order.empty()) {
    order.resize(rank);
    std::iota(order.begin(), order.end(), 0);
  }
  const bool sparse = !order.empty() && order.back() == -1;
  Dims seen(order.begin(), order.end() - (sparse ? 1 : 0));
  std::sort(seen.begin(), seen.end());
  bool complete = static_cast<int64_t>(seen.size()) == rank;
  for (int64_t i = 0; complete && i < rank; ++i) complete = seen[i] == i;
  if (!complete)
    throw InvalidLayout("dim_order " + text(order) + " must name each of the " + std::to_string(rank) +
                        " host dimensions once; only a last -1 (sparse) may be added");

  Layout layout;
  layout.format = format;
  auto add = [&](int64_t extent, int64_t stride) {
    layout.device_size.push_back(extent);
    layout.stride_map.push_back(extent == 1 ? -1 : stride);
  };
  auto add_whole = [&](int64_t dim) { add(size[dim], strides[dim]); };
  if (order.empty()) {
    layout.device_size = {1, stick};
    layout.stride_map = {-1, -1};
    return layout;
  }
  const int64_t last = order.back();
  for (size_t i = 1; i + 1 < order.size(); ++i) add_whole(order[i]);
  if (sparse) {
    add(1, -1);
  } else {
    add(ceil_div(size[last], stick), strides[last] * stick);
  }
  if (order.size() > 1) add_whole(order[0]);
  layout.device_size.push_back(stick);
  layout.stride_map.push_back(sparse || size[last] == 1 ? -1 : strides[last]);
  return layout;
}

int64_t default_layout_bytes(const int64_t* size, size_t rank, DataFormat format) {
  const int64_t stick = elements_per_stick(format);
  if (rank == 0) return kStickBytes;
  int64_t sticks = ceil_div(size[rank - 1], stick);
  for (size_t i = 0; i + 1 < rank; ++i) sticks *= size[i];
  return sticks * kStickBytes;
}

Places places(const Layout& layout) {
  Places result;
  int64_t step = 1;
  for (size_t i = layout.device_size.size(); i-- > 0;) {
    const int64_t extent = layout.device_size[i], unit = layout.stride_map[i];
    if (extent > 1 && unit > 0) result.levels.push_back({unit, extent, step});
    if (extent > 1 && unit == 0) result.replicas.push_back({0, extent, step});
    step *= extent;
  }
  std::sort(result.levels.begin(), result.levels.end(),
            [](const Level& a, const Level& b) { return a.unit > b.unit; });
  for (size_t i = 1; i < result.levels.size(); ++i)
    if (result.levels[i].unit == result.levels[i - 1].unit)
      throw InvalidLayout("two device dimensions step by the same host stride " +
                          std::to_string(result.levels[i].unit) + " in " + layout.str());
  return result;
}

namespace {

struct Lowering {
  struct Item {
    int64_t count, rest, device, other;  // rest: host stride not yet placed
  };
  struct State {
    std::vector<Item> items;
    int64_t rest, device, other;
  };

  const Places& places;
  const int side;
  std::vector<Nest>& out;

  [[noreturn]] static void no_place(const std::string& why) {
    throw InvalidLayout("an element of the tensor has no place in its layout: " + why);
  }

  void emit(const State& state) {
    if (state.rest != 0) no_place("host offset " + std::to_string(state.rest) + " lies between device coordinates");
    Nest nest;
    nest.offset[side] = state.device;
    nest.offset[1 - side] = state.other;
    for (const Item& item : state.items) {
      if (item.count == 1) continue;
      if (item.rest != 0) no_place("host stride " + std::to_string(item.rest) + " lies between device coordinates");
      Loop loop{item.count, {0, 0}};
      loop.stride[side] = item.device;
      loop.stride[1 - side] = item.other;
      nest.loops.push_back(loop);
    }
    out.push_back(std::move(nest));
  }

  // Splits loop `which` into [0, at) and [at, count).
  void cut(size_t level, State state, size_t which, int64_t at) {
    State tail = state;
    Item& item = tail.items[which];
    tail.rest += at * item.rest;
    tail.device += at * item.device;
    tail.other += at * item.other;
    item.count -= at;
    state.items[which].count = at;
    place(level, std::move(state));
    place(level, std::move(tail));
  }

  void place(size_t index, State state) {
    if (index == places.levels.size()) return emit(state);
    const Level& level = places.levels[index];
    const int64_t unit = level.unit, begin = state.rest % unit;
    int64_t reach = begin;
    size_t widest = 0;
    int64_t widest_reach = -1;
    for (size_t i = 0; i < state.items.size(); ++i) {
      const Item& item = state.items[i];
      const int64_t own = (item.count - 1) * (item.rest % unit);
      reach += own;
      if (own > widest_reach) widest = i, widest_reach = own;
    }
    if (reach < unit) {  // no coordinate carries into the next: affine at this level
      int64_t top = state.rest / unit;
      state.device += top * level.device_stride;
      state.rest = begin;
      for (Item& item : state.items) {
        const int64_t step = item.rest / unit;
        top += (item.count - 1) * step;
        item.device += step * level.device_stride;
        item.rest %= unit;
      }
      if (top >= level.extent)
        no_place("coordinate " + std::to_string(top) + " of a device dimension of " + std::to_string(level.extent));
      return place(index + 1, std::move(state));
    }
    const Item item = state.items[widest];
    const int64_t step = item.rest % unit, period = unit / std::gcd(step, unit);
    if (item.count > period) {
      if (item.count % period) return cut(index, std::move(state), widest, item.count / period * period);
      // Steps of a whole period move whole units, so the outer half no longer takes part in a carry.
      state.items[widest].count = period;
      state.items.insert(state.items.begin() + widest,
                         Item{item.count / period, item.rest * period, item.device * period, item.other * period});
      return place(index, std::move(state));
    }
    const int64_t room = unit - begin, others = reach - begin - widest_reach;
    int64_t at = ceil_div(room - others, step);
    if (at < 1 || at >= item.count) at = ceil_div(room, step);
    if (at < 1 || at >= item.count) at = item.count / 2;
    cut(index, std::move(state), widest, at);
  }
};

}  // namespace

std::vector<Nest> lower(const Places& places, int side, const Nest& nest) {
  std::vector<Nest> out;
  Lowering::State state{{}, nest.offset[side], 0, nest.offset[1 - side]};
  for (const Loop& loop : nest.loops) {
    if (loop.count == 0) return out;
    if (loop.count > 1) state.items.push_back({loop.count, loop.stride[side], 0, loop.stride[1 - side]});
  }
  Lowering{places, side, out}.place(0, std::move(state));
  return out;
}

void sort_by_stride(Nest& nest, int side) {
  std::stable_sort(nest.loops.begin(), nest.loops.end(),
                   [side](const Loop& a, const Loop& b) { return a.stride[side] > b.stride[side]; });
}

void check_layout(const Layout& layout, const Dims& size, const Dims& strides) {
  const int64_t stick = elements_per_stick(layout.format);
  if (stick == 0) throw InvalidLayout("the card does not store format " + std::string(name(layout.format)));
  if (layout.device_size.empty() || layout.device_size.size() != layout.stride_map.size())
    throw InvalidLayout("device_size and stride_map need the same rank of at least 1: " + layout.str());
  if (layout.device_size.back() != stick)
    throw InvalidLayout("the last device dimension is one stick of " + std::to_string(stick) + " elements: " +
                        layout.str());
  for (size_t i = 0; i < layout.device_size.size(); ++i)
    if (layout.device_size[i] < 0 || layout.stride_map[i] < -1)
      throw InvalidLayout("sizes must not be negative and strides not below -1: " + layout.str());
  if (product(size) == 0) return;
  Nest nest;
  for (size_t i = 0; i < size.size(); ++i) nest.loops.push_back({size[i], {strides[i], 0}});
  try {
    lower(places(layout), 0, nest);
  } catch (const InvalidLayout& error) {
    throw InvalidLayout("layout does not match a tensor of size " + text(size) + ", strides " + text(strides) + ": " +
                        error.what() + "; " + layout.str());
  }
}

}  // namespace spyre
