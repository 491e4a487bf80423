// Instructions that move elements between tiles without computing anything.
#include <cstring>

#include "card/tiles/core.h"

namespace spyre::tiles {

namespace {

// The shape in `numbers` from `first` on, -1 for the next size among `in` from `next` on.
Shape shape_in(Core& core, const Instruction& at, size_t first, size_t next) {
  Shape shape;
  for (size_t i = first; i < at.numbers.size(); ++i) {
    int64_t n = at.numbers[i];
    if (n < 0) {
      if (next >= at.in.size()) refuse(at, "a dynamic size has no value");
      n = core.integer(at, at.in[next++]);
    }
    shape.push(n);
  }
  return shape;
}

void fill(Tile& tile, const Instruction& at, const Value& value) {
  if (is_real(tile.type)) {
    if (value.kind != Value::Kind::real) refuse(at, "a tile of reals needs a real");
    std::fill_n(tile.reals(), tile.elements(), value.real);
  } else {
    if (value.kind != Value::Kind::integer) refuse(at, "a tile of integers needs an integer");
    std::fill_n(tile.integers(), tile.elements(), value.integer);
  }
}

void run_splat(Core& core, const Instruction& at) {
  Tile tile = core.new_tile(at, at.type, shape_in(core, at, 0, 1));
  core.work(at, double(tile.elements()));
  if (core.launch.values) fill(tile, at, core.slots[size_t(at.in[0])]);
  core.put(at.out[0], std::move(tile));
}

void run_constant(Core& core, const Instruction& at) {
  Tile tile = core.new_tile(at, at.type, shape_in(core, at, 0, at.in.size()));
  const int64_t all = tile.elements();
  core.work(at, double(all));
  const auto given = int64_t(is_real(at.type) ? at.reals.size() : at.values.size());
  if (given != 1 && given != all)
    refuse(at, "a constant has " + std::to_string(given) + " values for a tile of the shape " + text_of(tile.shape));
  for (int64_t i = 0; i < all; ++i)
    if (is_real(at.type))
      tile.reals()[i] = float(at.reals[size_t(given == 1 ? 0 : i)]);
    else
      tile.integers()[i] = at.values[size_t(given == 1 ? 0 : i)];
  core.put(at.out[0], std::move(tile));
}

void run_from_elements(Core& core, const Instruction& at) {
  Tile tile = core.new_tile(at, at.type, shape_in(core, at, 0, at.in.size()));
  if (tile.elements() != int64_t(at.in.size())) refuse(at, "another number of elements than its type says");
  for (size_t i = 0; i < at.in.size(); ++i) {
    const Value& value = core.slots[size_t(at.in[i])];
    if (value.kind != (is_real(at.type) ? Value::Kind::real : Value::Kind::integer))
      refuse(at, "an element has the wrong type");
    if (is_real(at.type))
      tile.reals()[i] = value.real;
    else
      tile.integers()[i] = value.integer;
  }
  core.put(at.out[0], std::move(tile));
}

void run_same_elements(Core& core, const Instruction& at) {
  Tile tile = core.tile(at, at.in[0]);
  Shape shape;
  int unknown = -1;
  int64_t known = 1;
  for (int64_t n : at.numbers) {
    if (n < 0 && unknown >= 0) {
      shape = shape_in(core, at, 0, 1);
      unknown = -2;
      break;
    }
    if (n < 0) unknown = shape.rank;
    if (n >= 0) known *= n;
    shape.push(n);
  }
  if (unknown >= 0) shape[unknown] = known ? tile.elements() / known : 0;
  core.new_tile(at, tile.type, Shape());
  if (shape.elements() != tile.elements())
    refuse(at, "a tile of the shape " + text_of(tile.shape) + " cannot become " + text_of(shape));
  tile.shape = shape;
  core.put(at.out[0], std::move(tile));
}

void run_extract(Core& core, const Instruction& at) {
  const Tile& tile = core.tile(at, at.in[0]);
  if (int(at.in.size()) - 1 != tile.shape.rank)
    refuse(at, "extract has another number of indices than its tile has dimensions");
  const auto strides = tile.shape.strides();
  int64_t element = 0;
  for (int d = 0; d < tile.shape.rank; ++d) {
    const int64_t index = core.integer(at, at.in[size_t(d) + 1]);
    if (index < 0 || index >= tile.shape[d])
      refuse(at, "index " + std::to_string(index) + " is outside of a tile of the shape " + text_of(tile.shape));
    element += index * strides[size_t(d)];
  }
  if (is_real(tile.type))
    core.put(at.out[0], core.launch.values ? tile.reals()[element] : 0.0f);
  else
    core.put(at.out[0], core.launch.values ? tile.integers()[element] : int64_t{0});
}

// A box inside of a tile.
struct Slice {
  int64_t begin = 0;
  Shape sizes, kept;
  std::array<int64_t, kMostRank> strides{};
};

Slice slice_of(Core& core, const Instruction& at, const Tile& of, size_t next) {
  const int rank = int(at.numbers[0]);
  if (rank != of.shape.rank) refuse(at, "a slice has another number of dimensions than its tile");
  const auto number = [&](int64_t given) {
    if (given != kDynamic) return given;
    if (next >= at.in.size()) refuse(at, "a slice lacks an operand");
    return core.integer(at, at.in[next++]);
  };
  Slice slice;
  std::array<int64_t, kMostRank> offsets{};
  for (int d = 0; d < rank; ++d) offsets[size_t(d)] = number(at.numbers[size_t(1 + d)]);
  for (int d = 0; d < rank; ++d) slice.sizes.push(number(at.numbers[size_t(1 + rank + d)]));
  const auto own = of.shape.strides();
  for (int d = 0; d < rank; ++d) {
    const int64_t step = number(at.numbers[size_t(1 + 2 * rank + d)]), n = slice.sizes[d], from = offsets[size_t(d)];
    const int64_t limit = int64_t{1} << 31;
    const bool sane = n >= 0 && from >= 0 && n < limit && from < limit && step > -limit && step < limit;
    const int64_t last = sane ? from + (n - 1) * step : -1;
    if (!sane || (n > 0 && (from >= of.shape[d] || last < 0 || last >= of.shape[d])))
      refuse(at, "a slice of " + std::to_string(n) + " from " + std::to_string(from) +
                     " on is outside of a tile of the shape " + text_of(of.shape));
    slice.begin += from * own[size_t(d)];
    slice.strides[size_t(d)] = step * own[size_t(d)];
  }
  for (size_t i = size_t(1 + 3 * rank); i < at.numbers.size(); ++i) {
    if (at.numbers[i] < 0 || at.numbers[i] >= rank) refuse(at, "a slice keeps a dimension that there is not");
    slice.kept.push(slice.sizes[int(at.numbers[i])]);
  }
  return slice;
}

// Calls visit(element within the sliced tile, element of the slice, run) for each contiguous run of the slice.
template <class Visit>
void each_run(const Slice& slice, const Visit& visit) {
  const Shape& sizes = slice.sizes;
  const int64_t all = sizes.elements();
  const int last = sizes.rank - 1;
  const int64_t run = last >= 0 && slice.strides[size_t(last)] == 1 ? sizes[last] : 1;
  std::array<int64_t, kMostRank> point{};
  for (int64_t done = 0; done < all; done += run) {
    int64_t offset = slice.begin;
    for (int d = 0; d <= last; ++d) offset += point[size_t(d)] * slice.strides[size_t(d)];
    visit(offset, done, run);
    int d = last;
    if (run > 1 || (last >= 0 && sizes[last] == 1)) --d;
    for (; d >= 0 && ++point[size_t(d)] == sizes[d]; --d) point[size_t(d)] = 0;
  }
}

void run_extract_slice(Core& core, const Instruction& at) {
  const Tile& from = core.tile(at, at.in[0]);
  const Slice slice = slice_of(core, at, from, 1);
  Tile to = core.new_tile(at, from.type, slice.kept);
  if (to.elements() != slice.sizes.elements()) refuse(at, "a slice drops a dimension that is not 1");
  core.work(at, double(to.elements()));
  const int64_t element = held_bytes(from.type);
  if (core.launch.values)
    each_run(slice,
             [&](int64_t in, int64_t out, int64_t n) { std::memcpy(to.at(out), from.at(in), size_t(n * element)); });
  core.put(at.out[0], std::move(to));
}

void run_insert_slice(Core& core, const Instruction& at) {
  const Tile &from = core.tile(at, at.in[0]), &into = core.tile(at, at.in[1]);
  const Slice slice = slice_of(core, at, into, 2);
  if (slice.sizes.elements() != from.elements() || is_real(from.type) != is_real(into.type))
    refuse(at, "a tile of the shape " + text_of(from.shape) + " does not fill a slice of the shape " +
                   text_of(slice.sizes));
  const int64_t element = held_bytes(into.type);
  core.work(at, double(from.elements()));
  Tile to;
  Value& given = core.slots[size_t(at.in[1])];
  const bool last_use = std::find(at.free.begin(), at.free.end(), at.in[1]) != at.free.end() && at.in[0] != at.in[1];
  if (last_use && !given.tile.buffer.shared()) {
    to = std::move(given.tile);
  } else {
    to = core.new_tile(at, into.type, into.shape);
    if (core.launch.values)
      std::memcpy(to.buffer.data(), into.buffer.data(), size_t(Tile::bytes(into.type, into.shape)));
  }
  const Tile& source = core.slots[size_t(at.in[0])].tile;
  if (core.launch.values)
    each_run(slice,
             [&](int64_t out, int64_t in, int64_t n) { std::memcpy(to.at(out), source.at(in), size_t(n * element)); });
  core.put(at.out[0], std::move(to));
}

}  // namespace

void run_reshape(Core& core, const Instruction& at) {
  switch (at.code) {
    case Code::splat:
      return run_splat(core, at);
    case Code::constant:
      return run_constant(core, at);
    case Code::from_elements:
      return run_from_elements(core, at);
    case Code::reshape:
      return run_same_elements(core, at);
    case Code::extract:
      return run_extract(core, at);
    case Code::extract_slice:
      return run_extract_slice(core, at);
    default:
      return run_insert_slice(core, at);
  }
}

}  // namespace spyre::tiles
