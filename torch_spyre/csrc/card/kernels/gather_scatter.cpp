// gather and scatter.
#include <cstring>

#include "card/kernels/core_part.h"

namespace spyre::indexed {

namespace {

constexpr int64_t kChunk = 1024;  // indices at a time
constexpr size_t kAhead = 8;      // updates

// Where `run` points along a dimension lead in the table, `from` on: by these dimensions, and by the indices.
void places(const CorePart& part, size_t table, const Axes& axes, size_t along, int64_t from, int64_t run,
            int64_t* to) {
  const Step& step = part.step;
  const OperandWalk& side = part.operands[table];
  const int64_t base = side.at(part.point, without(axes, along));
  for (int64_t i = 0; i < run; ++i) to[i] = base + side.strides[along].at(from + i);
  int64_t values[kChunk];
  for (const Indirect& indirect : step.indirect) {
    const OperandWalk& indices = part.operands[indirect.operand];
    const AxisStride &stride = indices.strides[along], leads = stride_along(indirect, step.operands[table]);
    const int64_t row = indices.at(part.point, without(part.axes(0, part.none), along));
    even_runs(from, run, kChunk, {&stride}, [&](int64_t at, int64_t count) {
      indices.access.decode(values + (at - from), row + stride.at(at), count, stride.step());
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
// the dimensions along which no index moves, in runs that are even for both operands. Points that may lead to one
// element (they differ in `ordered` dimensions only) are taken in row-major order.
void move(CorePart& part, size_t table, size_t other, const Axes& ordered) {
  const OperandWalk &tables = part.operands[table], &others = part.operands[other];
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
  const AxisStride &table_stride = tables.strides[along], &other_stride = others.strides[along];
  const int64_t element = element_bytes(tables.access.format);
  alignas(8) std::byte constant[8];
  if (!others.access.address) {
    Operand memory = part.step.operands[other];
    memory.argument = memory.offset = 0;
    Tile value;
    others.access.decode(value.bytes, 0, 1, 0);
    OperandAccess(memory, constant).encode(value.bytes, 0, 1, element);
  }
  std::byte* const other_base = others.access.address ? others.access.address : constant;

  int64_t table_at[kChunk], other_at[kChunk];
  part.walk(outer, [&] {
    const int64_t row = others.at(part.point, outer);
    even_runs(part.begin[chunked], part.count[chunked], kChunk, {}, [&](int64_t first, int64_t chunk) {
      end_if_stopped();
      places(part, table, indexed, chunked, first, chunk, table_at);
      for (int64_t i = 0; i < chunk; ++i) other_at[i] = row + others.strides[chunked].at(first + i);
      part.walk(inner, [&] {
        std::byte* const table_row = tables.access.address + tables.at(part.point, inner);
        std::byte* const other_row = other_base + others.at(part.point, inner);
        even_runs(part.begin[along], part.count[along], part.count[along], {&table_stride, &other_stride},
                  [&](int64_t from, int64_t run) {
                    std::byte *in_table = table_row + table_stride.at(from),
                              *in_other = other_row + other_stride.at(from);
                    const bool dense = table_stride.dense() && other_stride.dense();
                    const int64_t passes = dense ? 1 : run, width = dense ? run * element : element;
                    for (int64_t pass = 0; pass < passes; ++pass) {
                      if (table == 0)
                        copy_each(in_table, table_at, in_other, other_at, chunk, width);
                      else
                        copy_each(in_other, other_at, in_table, table_at, chunk, width);
                      in_table += table_stride.step();
                      in_other += other_stride.step();
                    }
                  });
      });
    });
  });
}

// Folds values onto the elements of the table that they are for: sorted by address, in row-major order within one.
void accumulate(CorePart& part, const Axes& ordered) {
  const TileOp& op = *folding_op(part.step);
  const OperandWalk &table = part.operands[0], &values = part.operands[1];
  const auto is_ordered = [&](size_t axis) { return std::find(ordered.begin(), ordered.end(), axis) != ordered.end(); };
  const Axes free =
      part.axes(0, part.none, [&](size_t axis) { return !is_ordered(axis) && !index_moves(part.step, axis); });
  const Axes indexed =
      part.axes(0, part.none, [&](size_t axis) { return !is_ordered(axis) && index_moves(part.step, axis); });
  const Axes led =
      part.axes(0, part.none, [&](size_t axis) { return is_ordered(axis) || index_moves(part.step, axis); });
  const size_t along = part.longest(free, {0, 1}), last = ordered.empty() ? part.none : ordered.back();
  const Axes inner = without(free, along), outer = without(ordered, last);
  const AxisStride &table_stride = table.strides[along], &value_stride = values.strides[along];

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
        for (int64_t i = 0; i < chunk; ++i)
          updates.push_back({chunk_places[i], row + values.strides[last].at(first + i)});
      });
    });
    if (!std::is_sorted(updates.begin(), updates.end(), by_place))
      std::stable_sort(updates.begin(), updates.end(), by_place);
    part.walk(inner, [&] {
      const int64_t table_row = table.at(part.point, inner), value_row = values.at(part.point, inner);
      even_runs(part.begin[along], part.count[along], kTile, {&table_stride, &value_stride},
                [&](int64_t from, int64_t run) {
                  for (size_t i = 0; i < updates.size();) {
                    end_if_stopped();
                    const int64_t place = updates[i].place, at = table_row + place + table_stride.at(from);
                    if (i + kAhead <
                        updates.size()) {  // a table is larger than caches, and the calls below wait for each element
                      const std::byte* const soon = table.access.address + at - place + updates[i + kAhead].place;
                      for (int64_t line = 0; line < kStickBytes; line += 64) __builtin_prefetch(soon + line);
                    }
                    table.access.decode(running.bytes, at, run, table_stride.step());
                    for (; i < updates.size() && updates[i].place == place; ++i) {
                      values.access.decode(fresh.bytes, value_row + updates[i].value + value_stride.at(from), run,
                                           value_stride.step());
                      op.run(running.bytes, both, run, nullptr);
                    }
                    fits &= table.access.encode(running.bytes, at, run, table_stride.step());
                  }
                });
    });
  });
  part.check_fits(fits);
}

}  // namespace

void gather(CorePart& part) { move(part, 1, 0, {}); }

void scatter(CorePart& part) {
  const bool differ = places_differ(part.step);
  const Axes ordered = part.axes(0, part.none, [&](size_t axis) {
    return part.count[axis] > 1 && (!differ || !moves(part.step.operands[0], axis));
  });
  part.step.function == "copy" ? move(part, 0, 1, ordered) : accumulate(part, ordered);
}

}  // namespace spyre::indexed
