// gather and scatter.
#include <cstring>

#include "card/kernels/index_range.h"

namespace spyre::indexed {

// Sorted by size, every step is longer than all shorter ones together.
bool places_differ(const Step& step) {
  const Operand& table = step.operands[0];
  std::vector<std::pair<int64_t, int64_t>> levels;  // a step, and as far as its steps go
  const auto add = [&](int64_t stride, int64_t count) {
    if (count > 1) levels.emplace_back(std::abs(stride), std::abs(stride) * (count - 1));
  };
  const auto add_way = [&](const Way& way, int64_t extent) {
    if (!way.stick) return add(way.stride, extent);
    add(way.element, std::min(way.stick, extent));
    add(way.stride, (extent + way.stick - 1) / way.stick);
  };
  for (size_t axis = 0; axis < step.extents.size(); ++axis)
    if (moves(table, axis)) add_way(way_of(table, axis), step.extents[axis]);
  for (const Indirect& indirect : step.indirect) add_way(way_of(indirect, table), indirect.extent);
  std::sort(levels.begin(), levels.end());
  int64_t shorter = 0;
  for (const auto& [stride, reach] : levels) {
    if (stride <= shorter) return false;
    shorter += reach;
  }
  return true;
}

namespace {

constexpr int64_t kChunk = 1024;  // indices at a time
constexpr size_t kAhead = 8;      // updates

// Where `run` points along a dimension lead in the table, `from` on: by these dimensions, and by the indices.
void places(const Part& part, size_t table, const Axes& axes, size_t along, int64_t from, int64_t run, int64_t* to) {
  const Step& step = part.step;
  const Side& side = part.sides[table];
  const int64_t base = side.at(part.point, without(axes, along));
  for (int64_t i = 0; i < run; ++i) to[i] = base + side.ways[along].at(from + i);
  int64_t values[kChunk];
  for (const Indirect& indirect : step.indirect) {
    const Side& indices = part.sides[indirect.operand];
    const Way &way = indices.ways[along], leads = way_of(indirect, step.operands[table]);
    const int64_t row = indices.at(part.point, without(part.axes(0, part.none), along));
    even_runs(from, run, kChunk, {&way}, [&](int64_t at, int64_t count) {
      indices.access.decode(values + (at - from), row + way.at(at), count, way.step());
    });
    for (int64_t i = 0; i < run; ++i) {
      const int64_t index = values[i];
      if (index < -indirect.extent || index >= indirect.extent)
        throw IndexRange("index " + text(index) + " is out of bounds for a dimension of " + text(indirect.extent) +
                         " (" + name(step.op) + (step.source.empty() ? "" : ", " + step.source) + ")");
      to[i] += leads.at(index < 0 ? index + indirect.extent : index);
    }
  }
}

template <int64_t bytes>
void copy_some(std::byte* to, const int64_t* to_at, const std::byte* from, const int64_t* from_at, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + to_at[i], from + from_at[i], bytes);
}

// Copies `width` bytes for each of the places, in order.
void copy_each(std::byte* to, const int64_t* to_at, const std::byte* from, const int64_t* from_at, int64_t count,
               int64_t width) {
  switch (width) {
    case 1:
      return copy_some<1>(to, to_at, from, from_at, count);
    case 2:
      return copy_some<2>(to, to_at, from, from_at, count);
    case 4:
      return copy_some<4>(to, to_at, from, from_at, count);
    case kStickBytes:
      return copy_some<kStickBytes>(to, to_at, from, from_at, count);
    default:
      for (int64_t i = 0; i < count; ++i) std::memcpy(to + to_at[i], from + from_at[i], width);
  }
}

// Moves bytes between a table and the operand that has an element for every point. An index is read once: inside are
// the dimensions along which no index moves, in pieces that go on evenly on both sides. Points that may lead to one
// element (they differ in `ordered` dimensions only) are taken in row-major order.
void move(Part& part, size_t table, size_t other, const Axes& ordered) {
  const Side &tables = part.sides[table], &others = part.sides[other];
  const auto is_ordered = [&](size_t axis) { return std::find(ordered.begin(), ordered.end(), axis) != ordered.end(); };
  const auto is_indexed = [&](size_t axis) { return index_moves(part.step, axis) || is_ordered(axis); };
  const Axes indexed = part.axes(0, part.none, is_indexed);
  const Axes free = part.axes(0, part.none, [&](size_t axis) { return !is_indexed(axis); });
  const size_t chunked = part.longest(
      part.axes(0, part.none,
                [&](size_t axis) { return is_indexed(axis) && (!is_ordered(axis) || axis == ordered.back()); }),
      {other});
  const size_t along = part.longest(free, {table, other});
  const Axes outer = without(indexed, chunked), inner = without(free, along);
  const Way &table_way = tables.ways[along], &other_way = others.ways[along];
  const int64_t element = element_bytes(tables.access.format);
  alignas(8) std::byte constant[8];
  if (!others.access.address) {
    Operand memory = part.step.operands[other];
    memory.argument = memory.offset = 0;
    Tile value;
    others.access.decode(value.bytes, 0, 1, 0);
    Access(memory, constant).encode(value.bytes, 0, 1, element);
  }
  std::byte* const other_base = others.access.address ? others.access.address : constant;

  int64_t table_at[kChunk], other_at[kChunk];
  part.walk(outer, [&] {
    const int64_t row = others.at(part.point, outer);
    even_runs(part.begin[chunked], part.count[chunked], kChunk, {}, [&](int64_t first, int64_t chunk) {
      end_if_stopped();
      places(part, table, indexed, chunked, first, chunk, table_at);
      for (int64_t i = 0; i < chunk; ++i) other_at[i] = row + others.ways[chunked].at(first + i);
      part.walk(inner, [&] {
        std::byte* const table_row = tables.access.address + tables.at(part.point, inner);
        std::byte* const other_row = other_base + others.at(part.point, inner);
        even_runs(part.begin[along], part.count[along], part.count[along], {&table_way, &other_way},
                  [&](int64_t from, int64_t run) {
                    std::byte *in_table = table_row + table_way.at(from), *in_other = other_row + other_way.at(from);
                    const bool dense = table_way.dense() && other_way.dense();
                    const int64_t passes = dense ? 1 : run, width = dense ? run * element : element;
                    for (int64_t pass = 0; pass < passes; ++pass) {
                      if (table == 0)
                        copy_each(in_table, table_at, in_other, other_at, chunk, width);
                      else
                        copy_each(in_other, other_at, in_table, table_at, chunk, width);
                      in_table += table_way.step();
                      in_other += other_way.step();
                    }
                  });
      });
    });
  });
}

// Folds the values that meet in an element of the table onto it: sorted by place, in row-major order within one.
void accumulate(Part& part, const Axes& ordered) {
  const TileOp& op = *folding_op(part.step);
  const Side &table = part.sides[0], &values = part.sides[1];
  const auto is_ordered = [&](size_t axis) { return std::find(ordered.begin(), ordered.end(), axis) != ordered.end(); };
  const Axes free =
      part.axes(0, part.none, [&](size_t axis) { return !is_ordered(axis) && !index_moves(part.step, axis); });
  const Axes indexed =
      part.axes(0, part.none, [&](size_t axis) { return !is_ordered(axis) && index_moves(part.step, axis); });
  const Axes led =
      part.axes(0, part.none, [&](size_t axis) { return is_ordered(axis) || index_moves(part.step, axis); });
  const size_t along = part.longest(free, {0, 1}), last = ordered.empty() ? part.none : ordered.back();
  const Axes inner = without(free, along), outer = without(ordered, last);
  const Way &table_way = table.ways[along], &value_way = values.ways[along];

  thread_local Tile running, fresh;
  const void* both[] = {running.bytes, fresh.bytes};
  struct Update {
    int64_t place, value;
  };
  std::vector<Update> updates;
  const auto by_place = [](const Update& a, const Update& b) { return a.place < b.place; };
  int64_t chunk_places[kChunk];
  bool fits = true;
  part.walk(indexed, [&] {
    updates.clear();
    part.walk(outer, [&] {
      const int64_t row = values.at(part.point, without(led, last));
      even_runs(part.begin[last], part.count[last], kChunk, {}, [&](int64_t first, int64_t chunk) {
        end_if_stopped();
        places(part, 0, led, last, first, chunk, chunk_places);
        for (int64_t i = 0; i < chunk; ++i) updates.push_back({chunk_places[i], row + values.ways[last].at(first + i)});
      });
    });
    if (!std::is_sorted(updates.begin(), updates.end(), by_place))
      std::stable_sort(updates.begin(), updates.end(), by_place);
    part.walk(inner, [&] {
      const int64_t table_row = table.at(part.point, inner), value_row = values.at(part.point, inner);
      even_runs(part.begin[along], part.count[along], kTile, {&table_way, &value_way}, [&](int64_t from, int64_t run) {
        for (size_t i = 0; i < updates.size();) {
          end_if_stopped();
          const int64_t place = updates[i].place, at = table_row + place + table_way.at(from);
          if (i + kAhead <
              updates.size()) {  // a table is larger than caches, and the calls below wait for each element
            const std::byte* const soon = table.access.address + at - place + updates[i + kAhead].place;
            for (int64_t line = 0; line < kStickBytes; line += 64) __builtin_prefetch(soon + line);
          }
          table.access.decode(running.bytes, at, run, table_way.step());
          for (; i < updates.size() && updates[i].place == place; ++i) {
            values.access.decode(fresh.bytes, value_row + updates[i].value + value_way.at(from), run, value_way.step());
            op.run(running.bytes, both, run, nullptr);
          }
          fits &= table.access.encode(running.bytes, at, run, table_way.step());
        }
      });
    });
  });
  part.check_fits(fits);
}

}  // namespace

void gather(Part& part) { move(part, 1, 0, {}); }

void scatter(Part& part) {
  const bool differ = places_differ(part.step);
  const Axes ordered = part.axes(0, part.none, [&](size_t axis) {
    return part.count[axis] > 1 && (!differ || !moves(part.step.operands[0], axis));
  });
  part.step.function == "copy" ? move(part, 0, 1, ordered) : accumulate(part, ordered);
}

}  // namespace spyre::indexed
