#include "index_ops.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "access.h"

namespace spyre {

namespace {

constexpr int64_t kTile = 4096;   // decoded elements at a time
constexpr int64_t kLanes = 64;    // rows that are folded side by side
constexpr int64_t kChunk = 1024;  // indices at a time

using Axes = std::vector<size_t>;
using Refusal = std::optional<std::pair<std::string, std::string>>;

std::string text(int64_t number) { return std::to_string(number); }

bool moves(const Operand& operand, size_t axis) {
  return operand.argument >= 0 && axis < operand.strides.size() && operand.strides[axis] != 0;
}

bool index_moves(const Step& step, size_t axis) {
  return std::any_of(step.indirect.begin(), step.indirect.end(),
                     [&](const Indirect& indirect) { return moves(step.operands[indirect.operand], axis); });
}

// The table's way along its own sticks or strides when an index moves it.
Way way_of(const Indirect& indirect, const Operand& table) {
  return Way(indirect.stride, table.format, indirect.stick);
}

Way way_of(const Operand& operand, size_t axis) {
  if (!moves(operand, axis)) return Way(0, operand.format, false);
  return Way(operand.strides[axis], operand.format, operand.stick == static_cast<int>(axis));
}

// The first of the dimensions that are folded.
size_t first_folded(const Step& step) {
  const size_t rank = step.extents.size();
  switch (step.op) {
    case OpCode::scan:
    case OpCode::topk:
      return rank - 1;
    case OpCode::argreduce:
      return rank - step.reduced;
    default:
      return rank;
  }
}

// Whether points and indices that differ lead to different elements of the table: sorted by size, every step is longer
// than all shorter ones together.
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

const TileOp* folding_op(const Step& step) {
  const TileOp* op = find_tile_op(step.function, domain_of(step.operands[1].format));
  return op && op->arity == 2 && op->in == op->out && op->constants == 0 ? op : nullptr;
}

// ---- What is refused.

struct Check {
  const Step& step;
  const size_t rank = step.extents.size();

  Refusal all() const {
    switch (step.op) {
      case OpCode::iota:
        return iota();
      case OpCode::gather:
        return gather();
      case OpCode::scatter:
        return scatter();
      case OpCode::scan:
        return scan();
      case OpCode::argreduce:
        return argreduce();
      default:
        return topk();
    }
  }

  static std::string operand(size_t index) { return "operand " + text(static_cast<int64_t>(index)); }
  const char* format(size_t index) const { return name(step.operands[index].format); }
  Domain domain(size_t index) const { return domain_of(step.operands[index].format); }

  Refusal count(size_t wanted) const {
    if (step.operands.size() == wanted) return {};
    return {
        {"operands", std::string(name(step.op)) + " takes " + text(wanted) + ", has " + text(step.operands.size())}};
  }
  Refusal constants(size_t wanted, const char* which) const {
    if (step.constants.size() == wanted) return {};
    return {{"constants", std::string("needs ") + which + ", has " + text(step.constants.size())}};
  }
  Refusal function(const char* first, const char* second) const {
    if (step.function == first || step.function == second) return {};
    return {{"function", "is " + std::string(first) + " or " + second + ", not '" + step.function + "'"}};
  }
  Refusal same_format() const {
    if (step.operands[0].format == step.operands[1].format) return {};
    return {
        {"operands", std::string(name(step.op)) + " keeps the format, these are " + format(0) + " and " + format(1)}};
  }
  Refusal memory(size_t index) const {
    if (step.operands[index].argument >= 0) return {};
    return {{operand(index), "is a constant, where " + std::string(name(step.op)) + " needs memory"}};
  }
  // The operand has elements of its own for every point of these dimensions.
  Refusal moving(size_t index, size_t begin, size_t end) const {
    for (size_t axis = begin; axis < end; ++axis)
      if (step.extents[axis] > 1 && !moves(step.operands[index], axis))
        return {{operand(index), "does not move along dimension " + text(axis)}};
    return {};
  }
  Refusal resting(size_t index, size_t begin, size_t end, const char* why) const {
    for (size_t axis = begin; axis < end; ++axis)
      if (moves(step.operands[index], axis))
        return {{operand(index), "moves along dimension " + text(axis) + ", " + why}};
    return {};
  }
  Refusal folds() const {
    if (!folding_op(step))
      return {{"function", "the card has no tile operation '" + step.function + "' that folds two values of " +
                               format(1) + " into one"}};
    if (domain(0) != domain(1)) return {{operand(0), step.function + " does not give " + format(0)}};
    return {};
  }
  // Positions below `count` can be written.
  Refusal positions(int64_t count) const {
    if (domain(0) != Domain::integer) return {{operand(0), std::string("positions are integers, not ") + format(0)}};
    const int64_t bits =
        step.operands[0].format == DataFormat::SENUINT32 ? 9 : 8 * element_bytes(step.operands[0].format);
    if (count - 1 < int64_t{1} << (bits - 1)) return {};
    return {{operand(0), std::string(format(0)) + " does not hold positions up to " + text(count - 1)}};
  }

  static Refusal first_of(std::initializer_list<Refusal> refusals) {
    for (const Refusal& refusal : refusals)
      if (refusal) return refusal;
    return {};
  }

  Refusal iota() const {
    if (Refusal wrong = first_of({count(1), constants(1 + rank, "a first value and one step per extent")}))
      return wrong;
    if (domain(0) == Domain::integer) {
      double most = 0;
      for (size_t i = 0; i <= rank; ++i) {
        const double constant = step.constants[i];
        if (std::trunc(constant) != constant || std::isinf(constant))
          return {{"constants", std::to_string(constant) + " is no integer, as " + format(0) + " needs"}};
        most += std::abs(constant) * static_cast<double>(i ? step.extents[i - 1] : 1);
      }
      if (most > 0x1p53) return {{"constants", "lead to integers above 2^53, which are not exact"}};
    }
    return moving(0, 0, rank);
  }

  // The table is operand 1 of gather and operand 0 of scatter.
  Refusal indices(size_t table) const {
    if (step.operands.size() < 3)
      return {{"operands", std::string(name(step.op)) + " takes at least 3, has " + text(step.operands.size())}};
    for (size_t i = 2; i < step.operands.size(); ++i) {
      if (domain(i) != Domain::integer) return {{operand(i), std::string("indices are integers, not ") + format(i)}};
      if (std::none_of(step.indirect.begin(), step.indirect.end(),
                       [i](const Indirect& indirect) { return indirect.operand == static_cast<int>(i); }))
        return {{"indirect", "does not say where operand " + text(i) + " leads"}};
    }
    constexpr int64_t kAddresses = int64_t{1} << 40;
    bool sticks = step.operands[table].stick >= 0;
    for (size_t i = 0; i < step.indirect.size(); ++i) {
      const Indirect& indirect = step.indirect[i];
      const std::string which = "entry " + text(i) + " ";
      if (indirect.operand < 2 || indirect.operand >= static_cast<int>(step.operands.size()))
        return {{"indirect", which + "names operand " + text(indirect.operand) + ", which is no index"}};
      if (indirect.extent < 1) return {{"indirect", which + "has an extent of " + text(indirect.extent)}};
      if (indirect.stride % element_bytes(step.operands[table].format))
        return {{"indirect", which + "has a stride that is not a multiple of the element's " +
                                 text(element_bytes(step.operands[table].format)) + " bytes"}};
      const __int128 way = __int128{indirect.extent} * indirect.stride;
      if (indirect.extent > kAddresses || way > kAddresses || way < -kAddresses)
        return {{"indirect", which + "has extent and stride beyond the card's address space"}};
      if (indirect.stick && sticks)
        return {{"indirect", which + "leads along the sticks of operand " + text(table) + ", as another does already"}};
      sticks |= indirect.stick;
    }
    return memory(table);
  }

  Refusal gather() const {
    if (Refusal wrong = indices(1)) return wrong;
    return first_of({same_format(), moving(0, 0, rank)});
  }

  Refusal scatter() const {
    if (Refusal wrong = indices(0)) return wrong;
    if (Refusal wrong = step.function == "copy" ? same_format() : folds()) return wrong;
    const bool differ = places_differ(step);
    for (size_t axis = 0; axis < rank; ++axis)
      if (step.slices[axis] > 1 && !(differ && moves(step.operands[0], axis)))
        return {{"slices", "dimension " + text(axis) + " is divided, and two cores could write one element"}};
    return {};
  }

  Refusal scan() const {
    if (Refusal wrong = count(2)) return wrong;
    if (rank < 1) return {{"extents", "needs the dimension to scan"}};
    return first_of({folds(), constants(1, "the value to start from"), moving(0, 0, rank)});
  }

  Refusal argreduce() const {
    if (Refusal wrong = first_of({count(2), function("argmax", "argmin")})) return wrong;
    if (step.reduced < 1 || step.reduced > static_cast<int>(rank))
      return {{"reduced", text(step.reduced) + " of " + text(rank) + " dimensions"}};
    const size_t folded = first_folded(step);
    const Dims last(step.extents.begin() + static_cast<ptrdiff_t>(folded), step.extents.end());
    return first_of({positions(product(last)), resting(0, folded, rank, "which is folded"), moving(0, 0, folded)});
  }

  Refusal topk() const {
    if (Refusal wrong = first_of({count(2), function("topkvalue", "topkindex")})) return wrong;
    if (rank < 2) return {{"extents", "needs k and n"}};
    const int64_t k = step.extents[rank - 2], n = step.extents[rank - 1];
    if (k > n) return {{"extents", "the first " + text(k) + " of " + text(n) + " elements"}};
    if (n > int64_t{1} << 31) return {{"extents", "more than 2^31 elements to order"}};
    if (Refusal wrong = constants(1, "1 for the largest or 0 for the smallest")) return wrong;
    if (step.constants[0] != 0 && step.constants[0] != 1)
      return {{"constants", "1 takes the largest, 0 the smallest; this is " + std::to_string(step.constants[0])}};
    return first_of({memory(1), step.function == "topkvalue" ? same_format() : positions(n),
                     resting(0, rank - 1, rank, "which is folded"),
                     resting(1, rank - 2, rank - 1, "which counts ranks"), moving(0, 0, rank - 1)});
  }
};

// ---- One core's part of a step.

// One operand; behind the dimensions of the step there is one more, of one point, for where none is wanted.
struct Side {
  Access access;
  std::vector<Way> ways;

  Side(const Step& step, size_t index, std::byte* base) : access(step.operands[index], base) {
    for (size_t axis = 0; axis <= step.extents.size(); ++axis) ways.push_back(way_of(step.operands[index], axis));
  }
  int64_t at(const Dims& point, const Axes& axes) const {
    int64_t sum = 0;
    for (size_t axis : axes) sum += ways[axis].at(point[axis]);
    return sum;
  }
};

struct Part {
  const Step& step;
  const size_t none = step.extents.size();
  Dims begin, count;
  std::vector<Side> sides;
  Dims point;

  Part(const Step& step, int core, const std::vector<std::byte*>& bases)
      : step(step), begin(none + 1, 0), count(none + 1, 1) {
    for (size_t axis = none; axis-- > 0;) {
      const int64_t slices = step.slices[axis], extent = step.extents[axis], slice = core % slices;
      core /= static_cast<int>(slices);
      const int64_t points = axis >= first_folded(step) ? extent : (extent + slices - 1) / slices;
      begin[axis] = slice * points;
      count[axis] = std::clamp<int64_t>(extent - begin[axis], 0, points);
    }
    point = begin;
    for (size_t i = 0; i < step.operands.size(); ++i) sides.emplace_back(step, i, bases[i]);
  }

  bool empty() const { return product(count) == 0; }

  template <typename Wanted>
  Axes axes(size_t first, size_t end, const Wanted& wanted) const {
    Axes found;
    for (size_t axis = first; axis < end; ++axis)
      if (wanted(axis)) found.push_back(axis);
    return found;
  }
  Axes axes(size_t first, size_t end) const {
    return axes(first, end, [](size_t) { return true; });
  }

  // The dimension along which these operands are best taken in runs.
  size_t longest(const Axes& axes, std::initializer_list<size_t> operands) const {
    size_t best = none;
    int64_t most = 1;
    for (size_t axis : axes) {
      int64_t score = count[axis];
      for (size_t operand : operands)
        if (score > 1 && sides[operand].ways[axis].dense()) score *= 8;
      if (score > most) best = axis, most = score;
    }
    return best;
  }

  // Sets `point` to every point of these dimensions, in row-major order, and back to the first.
  template <typename Body>
  void walk(const Axes& axes, const Body& body) {
    for (size_t moved = 1; moved;) {
      body();
      for (moved = axes.size(); moved; --moved) {
        const size_t axis = axes[moved - 1];
        if (++point[axis] < begin[axis] + count[axis]) break;
        point[axis] = begin[axis];
      }
    }
  }

  void check_fits(bool fits) const {
    if (fits || !step.checked) return;
    throw ValueRange("a result of " + (step.function.empty() ? name(step.op) : step.function) + " does not fit the " +
                     text(8 * element_bytes(step.operands[0].format)) + " bits that the card keeps it in" +
                     (step.source.empty() ? "" : " (" + step.source + ")"));
  }
};

Axes without(Axes axes, size_t axis) {
  std::erase(axes, axis);
  return axes;
}

struct alignas(64) Tile {
  std::byte bytes[kTile * sizeof(int64_t)];
  float* reals() { return reinterpret_cast<float*>(bytes); }
  int64_t* integers() { return reinterpret_cast<int64_t*>(bytes); }
};

void iota(Part& part) {
  const std::vector<double>& constants = part.step.constants;
  const Side& written = part.sides[0];
  const Axes axes = part.axes(0, part.none);
  const size_t along = part.longest(axes, {0});
  const Way& way = written.ways[along];
  thread_local Tile tile;
  bool fits = true;
  // In doubles, term after term, whichever dimension the run lies along.
  const auto value = [&](int64_t at) {
    double sum = 0;
    for (size_t axis : axes) sum += static_cast<double>(axis == along ? at : part.point[axis]) * constants[1 + axis];
    return constants[0] + sum;
  };
  part.walk(without(axes, along), [&] {
    const int64_t base = written.at(part.point, without(axes, along));
    even_runs(part.begin[along], part.count[along], kTile, {&way}, [&](int64_t from, int64_t run) {
      for (int64_t i = 0; i < run; ++i)
        if (written.access.domain == Domain::real)
          tile.reals()[i] = static_cast<float>(value(from + i));
        else
          tile.integers()[i] = static_cast<int64_t>(value(from + i));
      fits &= written.access.encode(tile.bytes, base + way.at(from), run, way.step());
    });
  });
  part.check_fits(fits);
}

// ---- gather and scatter

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
          const int64_t place = updates[i].place, at = table_row + place + table_way.at(from);
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

void scatter(Part& part) {
  const bool differ = places_differ(part.step);
  const Axes ordered = part.axes(0, part.none, [&](size_t axis) {
    return part.count[axis] > 1 && (!differ || !moves(part.step.operands[0], axis));
  });
  part.step.function == "copy" ? move(part, 0, 1, ordered) : accumulate(part, ordered);
}

// ---- scan, argreduce and topk: rows are folded, several side by side

// A block of decoded elements: `lanes` rows at `positions` places, tile[position * lanes + lane].
struct Block {
  size_t lane_axis, axis;
  int64_t first_lane, lanes, first, positions;
  int64_t place;  // of the block's first position among all that are folded
};

// Applies body(block, run of elements in memory, count, step, tile index, tile stride) along the better dimension.
template <typename Body>
void block_runs(const Side& side, const Block& block, int64_t base, const Body& body) {
  const Way &across = side.ways[block.lane_axis], &way = side.ways[block.axis];
  const int64_t lanes = block.lanes * (across.dense() ? 8 : 1), positions = block.positions * (way.dense() ? 8 : 1);
  if (lanes > positions)
    for (int64_t i = 0; i < block.positions; ++i)
      even_runs(block.first_lane, block.lanes, kTile, {&across}, [&](int64_t lane, int64_t run) {
        body(base + way.at(block.first + i) + across.at(lane), run, across.step(),
             i * block.lanes + lane - block.first_lane, 1);
      });
  else
    for (int64_t lane = 0; lane < block.lanes; ++lane)
      even_runs(block.first, block.positions, kTile, {&way}, [&](int64_t at, int64_t run) {
        body(base + way.at(at) + across.at(block.first_lane + lane), run, way.step(),
             (at - block.first) * block.lanes + lane, block.lanes);
      });
}

template <typename Value>
void load(const Side& side, const Block& block, int64_t base, Value* tile) {
  block_runs(side, block, base, [&](int64_t at, int64_t run, int64_t step, int64_t index, int64_t stride) {
    if (stride == 1) return side.access.decode(tile + index, at, run, step);
    alignas(64) Value line[kTile];
    side.access.decode(line, at, run, step);
    for (int64_t i = 0; i < run; ++i) tile[index + i * stride] = line[i];
  });
}

template <typename Value>
bool store(const Side& side, const Block& block, int64_t base, const Value* tile) {
  bool fits = true;
  block_runs(side, block, base, [&](int64_t at, int64_t run, int64_t step, int64_t index, int64_t stride) {
    if (stride == 1) return void(fits &= side.access.encode(tile + index, at, run, step));
    alignas(64) Value line[kTile];
    for (int64_t i = 0; i < run; ++i) line[i] = tile[index + i * stride];
    fits &= side.access.encode(line, at, run, step);
  });
  return fits;
}

// Goes over rows of operand 1, at most `most` side by side: begin(lanes), take(block, tile) for all positions in
// row-major order, end(block). `point` stands at the block, except along its two dimensions.
template <typename Value, typename Begin, typename Take, typename End>
void fold_rows(Part& part, const Axes& kept, const Axes& folded, int64_t most, const Begin& begin, const Take& take,
               const End& end) {
  const Side& read = part.sides[1];
  const size_t lane_axis = part.longest(kept, {1}), axis = folded.back();
  const Axes rows = without(kept, lane_axis), outer = without(folded, axis);
  alignas(64) Value tile[kTile];
  part.walk(rows, [&] {
    even_runs(part.begin[lane_axis], part.count[lane_axis], most, {}, [&](int64_t first_lane, int64_t lanes) {
      Block block{lane_axis, axis, first_lane, lanes, 0, 0, 0};
      begin(lanes);
      part.walk(outer, [&] {
        even_runs(0, part.count[axis], kTile / lanes, {}, [&](int64_t first, int64_t positions) {
          block.first = first;
          block.positions = positions;
          load(read, block, read.at(part.point, rows) + read.at(part.point, outer), tile);
          take(block, tile);
          block.place += positions;
        });
      });
      end(block);
    });
  });
}

// One result for every lane of a block.
bool store_lanes(const Part& part, const Block& block, int64_t base, const int64_t* values) {
  const Side& written = part.sides[0];
  const Way& way = written.ways[block.lane_axis];
  bool fits = true;
  even_runs(block.first_lane, block.lanes, kLanes, {&way}, [&](int64_t lane, int64_t run) {
    fits &= written.access.encode(values + (lane - block.first_lane), base + way.at(lane), run, way.step());
  });
  return fits;
}

template <typename Value>
void scan(Part& part) {
  const TileOp& op = *folding_op(part.step);
  const size_t axis = part.none - 1;
  const Axes kept = part.axes(0, axis);
  const Value start = std::is_same_v<Value, float> ? static_cast<Value>(part.step.constants[0])
                                                   : static_cast<Value>(integer_of(part.step.constants[0]));
  Value running[kLanes];
  bool fits = true;
  fold_rows<Value>(
      part, kept, {axis}, kLanes, [&](int64_t lanes) { std::fill_n(running, lanes, start); },
      [&](const Block& block, Value* tile) {
        const Value* before = running;
        for (int64_t i = 0; i < block.positions; ++i) {
          Value* const row = tile + i * block.lanes;
          const void* both[] = {before, row};
          op.run(row, both, block.lanes, nullptr);
          before = row;
        }
        std::copy_n(before, block.lanes, running);
        fits &= store(part.sides[0], block, part.sides[0].at(part.point, without(kept, block.lane_axis)), tile);
      },
      [](const Block&) {});
  part.check_fits(fits);
}

template <typename Value>
void argreduce(Part& part) {
  const bool largest = part.step.function == "argmax";
  const size_t first = first_folded(part.step);
  const Axes kept = part.axes(0, first);
  Value best[kLanes];
  int64_t places[kLanes];
  fold_rows<Value>(
      part, kept, part.axes(first, part.none), kLanes, [](int64_t) {},
      [&](const Block& block, const Value* tile) {
        if (block.place == 0) {
          std::copy_n(tile, block.lanes, best);
          std::fill_n(places, block.lanes, 0);
        }
        for (int64_t i = 0; i < block.positions; ++i)
          for (int64_t lane = 0; lane < block.lanes; ++lane) {
            const Value value = tile[i * block.lanes + lane];
            const bool beyond = largest ? value > best[lane] : value < best[lane];
            const bool better = (beyond | (value != value)) & (best[lane] == best[lane]);  // NaN beats, and stays
            best[lane] = better ? value : best[lane];
            places[lane] = better ? block.place + i : places[lane];
          }
      },
      [&](const Block& block) {
        store_lanes(part, block, part.sides[0].at(part.point, without(kept, block.lane_axis)), places);
      });
}

// Numbers that order like the values: zeros alike, NaN above all.
uint32_t rank_of(float value, DataFormat) {
  const uint32_t bits = value == 0 ? 0 : std::bit_cast<uint32_t>(value);
  return value != value ? ~0u : bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
uint32_t rank_of(int64_t value, DataFormat format) {
  return static_cast<uint32_t>(value) ^ (format == DataFormat::SENUINT32 ? 0 : 1u << 31);
}

template <typename Value>
void topk(Part& part) {
  const Step& step = part.step;
  const size_t ranks = part.none - 2, axis = part.none - 1;
  const Side &written = part.sides[0], &read = part.sides[1];
  const Axes kept = part.axes(0, ranks);
  const bool values = step.function == "topkvalue";
  const uint32_t flip = step.constants[0] == 1 ? ~0u : 0;
  const int64_t n = part.count[axis], first = part.begin[ranks], count = part.count[ranks];
  const int64_t element = element_bytes(read.access.format), most = std::clamp<int64_t>((1 << 15) / n, 1, kLanes);
  // Order above, position below: comparing keys settles ties too.
  std::vector<uint64_t> keys;
  std::vector<int64_t> positions(count);

  const auto write = [&](int64_t lane_at, int64_t read_at) {
    const Way& way = written.ways[ranks];
    even_runs(first, count, count, {&way}, [&](int64_t rank, int64_t run) {
      const int64_t at = lane_at + way.at(rank);
      if (!values) return void(written.access.encode(&positions[rank - first], at, run, way.step()));
      for (int64_t i = 0; i < run; ++i)
        std::memcpy(written.access.address + at + i * way.step(),
                    read.access.address + read_at + read.ways[axis].at(positions[rank - first + i]), element);
    });
  };
  fold_rows<Value>(
      part, kept, {axis}, most, [&](int64_t lanes) { keys.resize(lanes * n); },
      [&](const Block& block, const Value* tile) {
        for (int64_t i = 0; i < block.positions; ++i)
          for (int64_t lane = 0; lane < block.lanes; ++lane)
            keys[lane * n + block.place + i] =
                uint64_t{rank_of(tile[i * block.lanes + lane], read.access.format) ^ flip} << 32 |
                static_cast<uint64_t>(block.place + i);
      },
      [&](const Block& block) {
        const Axes rows = without(kept, block.lane_axis);
        for (int64_t lane = 0; lane < block.lanes; ++lane) {
          uint64_t* const row = keys.data() + lane * n;
          const int64_t wanted = first + count;
          if (wanted < n / 8) {
            std::partial_sort(row, row + wanted, row + n);
          } else {
            if (wanted < n) std::nth_element(row, row + wanted, row + n);
            std::sort(row, row + wanted);
          }
          for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<uint32_t>(row[first + i]);
          const int64_t at = block.first_lane + lane;
          write(written.at(part.point, rows) + written.ways[block.lane_axis].at(at),
                read.at(part.point, rows) + read.ways[block.lane_axis].at(at));
        }
      });
}

}  // namespace

bool is_indexed(OpCode op) {
  switch (op) {
    case OpCode::iota:
    case OpCode::gather:
    case OpCode::scatter:
    case OpCode::scan:
    case OpCode::argreduce:
    case OpCode::topk:
      return true;
    default:
      return false;
  }
}

std::optional<std::pair<std::string, std::string>> check_indexed(const Step& step) { return Check{step}.all(); }

void run_indexed(const Step& step, int core, const std::vector<std::byte*>& bases) {
  Part part(step, core, bases);
  if (part.empty()) return;
  const bool real = domain_of(step.operands.back().format) == Domain::real;
  switch (step.op) {
    case OpCode::iota:
      return iota(part);
    case OpCode::gather:
      return move(part, 1, 0, {});
    case OpCode::scatter:
      return scatter(part);
    case OpCode::scan:
      return real ? scan<float>(part) : scan<int64_t>(part);
    case OpCode::argreduce:
      return real ? argreduce<float>(part) : argreduce<int64_t>(part);
    default:
      return real ? topk<float>(part) : topk<int64_t>(part);
  }
}

}  // namespace spyre
