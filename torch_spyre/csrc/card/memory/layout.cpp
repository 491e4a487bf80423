#include "card/memory/layout.h"

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

constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr size_t kMostPieces = 1 << 22;  // nests that a view becomes on the card

// Sizes and strides whose elements can be counted. A tensor without elements may have any sizes.
void check_host(const Dims& size, const Dims& strides) {
  if (size.size() != strides.size())
    throw InvalidLayout("host_size " + text(size) + " and host_strides " + text(strides) + " differ in rank");
  __int128 elements = 1, reach = 1;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] < 0) throw InvalidLayout("host_size " + text(size) + " has a negative dimension");
    if (size[i] == 0) return;
    elements = std::min<__int128>(elements * size[i], kMostElements + 1);
    reach += __int128{size[i] - 1} * (strides[i] < 0 ? -__int128{strides[i]} : __int128{strides[i]});
  }
  if (elements > kMostElements || reach > kMostElements)
    throw InvalidLayout("host_size " + text(size) + " with host_strides " + text(strides) +
                        " is larger than any card's memory");
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether sticks hold one value each: another dimension has the host stride of the lanes.
bool is_single(const Layout& layout) {
  const int64_t lane = layout.stride_map.back();
  for (size_t i = 0; i + 1 < layout.device_size.size(); ++i)
    if (lane > 0 && layout.device_size[i] > 1 && layout.stride_map[i] == lane) return true;
  return false;
}

}  // namespace

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
  check_host(size, strides);
  const auto rank = static_cast<int64_t>(size.size());
  const bool is_given = !order.empty();
  if (!is_given) {
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
    if (is_given && size[last] > 1) layout.stride_map.back() = strides[last] * stick;
  }
  if (order.size() > 1) add_whole(order[0]);
  layout.device_size.push_back(stick);
  layout.stride_map.push_back(sparse || size[last] == 1 ? -1 : strides[last]);
  return layout;
}

Layout canonical(const Layout& layout) {
  Layout same = layout;
  const size_t rank = layout.device_size.size();
  for (size_t i = 0; i < rank; ++i)
    if (layout.device_size[i] == 1 || (i + 1 == rank && is_single(layout))) same.stride_map[i] = -1;
  return same;
}

int64_t default_layout_bytes(const int64_t* size, size_t rank, DataFormat format) {
  const int64_t stick = elements_per_stick(format);
  if (rank == 0) return kStickBytes;
  constexpr __int128 kMost = __int128{1} << 56;  // more than can be allocated
  __int128 sticks = ceil_div(size[rank - 1], stick);
  for (size_t i = 0; i + 1 < rank; ++i) sticks = std::min(sticks * size[i], kMost);
  return static_cast<int64_t>(sticks) * kStickBytes;
}

Places places(const Layout& layout) {
  Places result;
  if (layout.device_elements() == 0) return result;  // strides of an empty tensor mean nothing
  if (is_single(layout)) return places(canonical(layout));
  int64_t step = 1;
  for (size_t i = layout.device_size.size(); i-- > 0;) {
    const int64_t extent = layout.device_size[i], unit = layout.stride_map[i];
    if (extent > 1 && unit > 0) result.levels.push_back({unit, extent, step});
    if (extent > 1 && unit == 0) result.replicas.push_back({0, extent, step});
    step *= extent;
  }
  std::sort(result.levels.begin(), result.levels.end(), [](const Level& a, const Level& b) { return a.unit > b.unit; });
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
    size_t level;  // of the layout, the next to be placed
    std::vector<Item> items;
    int64_t rest, device, other;
  };

  const Places& places;
  const int side;
  std::vector<Nest> out{};
  std::vector<State> todo{};  // a stack, not recursion: odd views of large tensors become many nests

  std::vector<Nest> run(State first) {
    todo.push_back(std::move(first));
    while (!todo.empty()) {
      if (out.size() + todo.size() > kMostPieces)
        throw InvalidLayout("the view falls into more than " + std::to_string(kMostPieces) + " pieces on the card");
      State state = std::move(todo.back());
      todo.pop_back();
      while (state.level < places.levels.size() && place(state)) ++state.level;
      if (state.level == places.levels.size()) emit(state);
    }
    return std::move(out);
  }

  [[noreturn]] static void no_place(const std::string& why) {
    throw InvalidLayout("an element of the tensor has no place in its layout: " + why);
  }

  void emit(const State& state) {
    if (state.rest != 0) no_place("host offset " + std::to_string(state.rest) + " lies between device coordinates");
    Nest nest;
    nest.offset[side] = state.device;
    nest.offset[1 - side] = state.other;
    nest.loops.reserve(state.items.size());
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

  // Splits loop `which` into [0, at) and [at, count), to be placed in this order.
  void cut(State& state, size_t which, int64_t at) {
    State head = state;
    head.items[which].count = at;
    Item& item = state.items[which];
    state.rest += at * item.rest;
    state.device += at * item.device;
    state.other += at * item.other;
    item.count -= at;
    todo.push_back(std::move(state));
    todo.push_back(std::move(head));
  }

  // Whether the state could be placed on its level. If not, it was split, and its parts are in `todo`.
  bool place(State& state) {
    const Level& level = places.levels[state.level];
    const int64_t unit = level.unit, begin = state.rest % unit;
    int64_t reach = begin, widest_reach = -1;
    size_t widest = 0;
    for (size_t i = 0; i < state.items.size(); ++i) {
      const Item& item = state.items[i];
      const int64_t own = (item.count - 1) * (item.rest % unit);
      reach += own;
      if (own > widest_reach) widest = i, widest_reach = own;
    }
    if (reach < unit) {
      place_affine(state, level);
      return true;
    }
    take_apart(state, widest, unit, unit - begin, reach - begin - widest_reach);
    return false;
  }

  // No coordinate carries into the next: every loop steps along this device dimension evenly.
  static void place_affine(State& state, const Level& level) {
    int64_t last = state.rest / level.unit;
    state.device += last * level.device_stride;
    state.rest %= level.unit;
    for (Item& item : state.items) {
      const int64_t step = item.rest / level.unit;
      last += (item.count - 1) * step;
      item.device += step * level.device_stride;
      item.rest %= level.unit;
    }
    if (last >= level.extent)
      no_place("coordinate " + std::to_string(last) + " of a device dimension of " + std::to_string(level.extent));
  }

  // Loop `which` carries: `room` is what is left of the current unit, `others` how far the other loops reach.
  void take_apart(State& state, size_t which, int64_t unit, int64_t room, int64_t others) {
    const Item item = state.items[which];
    const int64_t step = item.rest % unit, period = unit / std::gcd(step, unit);
    const int64_t to_next_unit = ceil_div(room, step);
    if (item.count > period) {
      // Starting at the head of a unit, so that whole periods carry nowhere if the step divides the unit.
      if (unit - room >= step && to_next_unit < item.count) return cut(state, which, to_next_unit);
      if (item.count % period) return cut(state, which, item.count / period * period);
      // Steps of a whole period move whole units: the outer loop has no part in a carry any more.
      state.items[which].count = period;
      state.items.insert(state.items.begin() + static_cast<std::ptrdiff_t>(which),
                         Item{item.count / period, item.rest * period, item.device * period, item.other * period});
      todo.push_back(std::move(state));
      return;
    }
    int64_t at = ceil_div(room - others, step);  // up to here nothing carries
    if (at < 1 || at >= item.count) at = to_next_unit;
    if (at < 1 || at >= item.count) at = item.count / 2;
    cut(state, which, at);
  }
};

}  // namespace

std::vector<Nest> lower(const Places& places, int side, const Nest& given) {
  const Nest nest = simplified(given, side);
  Lowering::State state{0, {}, nest.offset[side], 0, nest.offset[1 - side]};
  for (const Loop& loop : nest.loops) {
    if (loop.count == 0) return {};
    state.items.push_back({loop.count, loop.stride[side], 0, loop.stride[1 - side]});
  }
  return Lowering{places, side}.run(std::move(state));
}

void check_layout(const Layout& layout, const Dims& size, const Dims& strides) {
  const int64_t stick = elements_per_stick(layout.format);
  if (stick == 0) throw InvalidLayout("the card does not store format " + std::string(name(layout.format)));
  if (layout.device_size.empty() || layout.device_size.size() != layout.stride_map.size())
    throw InvalidLayout("device_size and stride_map need the same rank of at least 1: " + layout.str());
  if (layout.device_size.back() != stick)
    throw InvalidLayout("the last device dimension is one stick of " + std::to_string(stick) +
                        " elements: " + layout.str());
  __int128 elements = 1;
  for (size_t i = 0; i < layout.device_size.size(); ++i) {
    if (layout.device_size[i] < 0 || layout.stride_map[i] < -1)
      throw InvalidLayout("sizes must not be negative and strides not below -1: " + layout.str());
    elements *= std::max<int64_t>(layout.device_size[i], 1);
    if (elements > kMostElements) throw InvalidLayout("larger than any card's memory: " + layout.str());
  }
  check_host(size, strides);
  if (std::find(size.begin(), size.end(), 0) != size.end()) return;
  if (!size.empty() && layout.device_elements() == 0)
    throw InvalidLayout("no place for the elements of a tensor of size " + text(size) + ": " + layout.str());
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
