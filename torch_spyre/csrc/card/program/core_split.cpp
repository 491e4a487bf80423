#include "card/program/core_split.h"

#include <algorithm>

#include "card/program/limits.h"
#include "card/program/paged_step.h"

namespace spyre {

namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t sticks(int64_t elements, DataFormat format) {
  return round_up(elements, elements_per_stick(format)) / elements_per_stick(format);
}

bool in_sticks_along(const Operand& operand, size_t dimension) { return operand.stick == static_cast<int>(dimension); }

// In elements: to the next point of a dimension, or to the next stick along it.
int64_t stride_of(const Operand& operand, size_t dimension) {
  const int64_t cores = operand.across_cores() ? operand.core_strides[dimension] : 0;
  return (operand.strides[dimension] + cores * operand.core_bytes) / element_bytes(operand.format);
}

// How far point `at` of a dimension is from its point 0, in elements.
int64_t distance(const Operand& operand, size_t dimension, int64_t at) {
  if (operand.is_constant()) return 0;
  const int64_t stride = stride_of(operand, dimension);
  if (!in_sticks_along(operand, dimension)) return at * stride;
  const int64_t stick = elements_per_stick(operand.format);
  return at / stick * stride + at % stick;
}

// What a core takes of one dimension.
struct CoreRange {
  int64_t begin, count;
  int64_t origin;  // where the core's own part of an operand in LX begins
};

// The scratchpad of a core within the memory that holds all of them, in elements; across cores the points say which.
int64_t scratchpad(const Operand& operand, int core) {
  return operand.in_lx() && !operand.across_cores() ? core * operand.core_bytes / element_bytes(operand.format) : 0;
}

std::vector<CoreRange> ranges_of(const Step& step, int core) {
  const size_t rank = step.extents.size(), kept = rank - folded_dimensions(step);
  const Dims points = points_per_core(step);
  std::vector<CoreRange> ranges(rank);
  for (size_t i = rank; i-- > 0;) {
    const int64_t slice = core % step.slices[i];
    core /= static_cast<int>(step.slices[i]);
    if (i >= kept)
      ranges[i] = {0, slice == 0 ? step.extents[i] : 0, 0};
    else
      ranges[i] = {slice * points[i], std::clamp<int64_t>(step.extents[i] - slice * points[i], 0, points[i]),
                   slice * points[i]};
  }
  return ranges;
}

int64_t distance_of(const Operand& operand, size_t dimension, CoreRange range) {
  const bool own = operand.in_lx() && !operand.across_cores();
  return distance(operand, dimension, own ? range.begin - range.origin : range.begin);
}

using Sides = std::vector<const Operand*>;

Sides sides_of(const Step& step) {
  Sides sides;
  for (size_t i = 0; i < std::min(step.operands.size(), kSides); ++i) sides.push_back(&step.operands[i]);
  return sides;
}

// Points of one dimension, as runs that are affine for every operand: whole sticks of the widest kind, then the rest in
// sticks of the next, and single elements last.
std::vector<Nest> runs(const Sides& sides, size_t dimension, CoreRange range) {
  std::vector<int64_t> units;
  for (const Operand* side : sides)
    if (in_sticks_along(*side, dimension)) units.push_back(elements_per_stick(side->format));
  std::sort(units.begin(), units.end(), std::greater<>());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  units.push_back(1);

  std::vector<Nest> all;
  for (size_t widest = 0; widest < units.size(); ++widest) {
    const int64_t count = range.count / units[widest];
    if (count == 0) continue;
    Nest run;
    for (size_t i = widest; i < units.size(); ++i) {
      Loop loop{i == widest ? count : units[i - 1] / units[i], {}};
      for (size_t side = 0; side < sides.size(); ++side)
        loop.stride[side] = distance(*sides[side], dimension, units[i]);
      run.loops.push_back(loop);
    }
    for (size_t side = 0; side < sides.size(); ++side) run.offset[side] = distance_of(*sides[side], dimension, range);
    all.push_back(std::move(run));
    range.begin += count * units[widest];
    range.count -= count * units[widest];
  }
  return all;
}

enum class Offsets { with, without };

std::vector<Nest> nests_of(const Step& step, const Sides& sides, int core, size_t from, size_t to, Offsets offsets) {
  std::vector<Nest> all(1);
  if (offsets == Offsets::with)
    for (size_t side = 0; side < sides.size(); ++side)
      all[0].offset[side] = sides[side]->offset / element_bytes(sides[side]->format) + scratchpad(*sides[side], core);
  const std::vector<CoreRange> ranges = ranges_of(step, core);
  for (size_t i = from; i < to; ++i) {
    std::vector<Nest> longer;
    for (const Nest& run : runs(sides, i, ranges[i]))
      for (Nest nest : all) {
        nest.loops.insert(nest.loops.end(), run.loops.begin(), run.loops.end());
        for (size_t side = 0; side < sides.size(); ++side) nest.offset[side] += run.offset[side];
        longer.push_back(std::move(nest));
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace

size_t folded_dimensions(const Step& step) {
  switch (step.op) {
    case OpCode::reduce:
    case OpCode::argreduce:
      return static_cast<size_t>(step.reduced);
    case OpCode::matmul:
    case OpCode::scan:
    case OpCode::topk:
      return 1;
    case OpCode::attention:
      return 2;
    case OpCode::paged_attention:
      return paged::kRank - paged::kRequest;
    default:
      return 0;
  }
}

int indexed_operand(const Step& step) { return step.op == OpCode::gather ? 1 : step.op == OpCode::scatter ? 0 : -1; }

std::span<const Indirect> indices_of(const Step& step, size_t operand) {
  if (step.op == OpCode::paged_attention) {
    if (operand != paged::kKey && operand != paged::kValue) return {};
    const size_t which = operand == paged::kKey ? 0 : 1;
    return which < step.indirect.size() ? std::span(step.indirect).subspan(which, 1) : std::span<const Indirect>();
  }
  if (static_cast<int>(operand) != indexed_operand(step)) return {};
  return step.indirect;
}

bool updates_written(const Step& step) { return step.op == OpCode::scatter && step.function != "copy"; }

Dims points_per_core(const Step& step) {
  Dims points(step.extents.size());
  for (size_t i = 0; i < points.size(); ++i) {
    points[i] = (step.extents[i] + step.slices[i] - 1) / step.slices[i];
    if (step.slices[i] == 1) continue;
    for (const Operand& operand : step.operands)
      if (in_sticks_along(operand, i)) points[i] = round_up(points[i], elements_per_stick(operand.format));
    points[i] = std::min(points[i], step.extents[i]);
  }
  return points;
}

Dims points_in_lx(const Step& step, size_t operand) {
  return step.operands[operand].across_cores() ? step.extents : points_per_core(step);
}

std::pair<int64_t, int64_t> reach(const Step& step, size_t index, const Dims& points) {
  const Operand& operand = step.operands[index];
  int64_t low = operand.offset, high = operand.offset;
  bool in_sticks = operand.stick >= 0;
  const auto go = [&](int64_t count, int64_t stride, bool along) {
    const int64_t way = ((along ? sticks(count, operand.format) : count) - 1) * stride;
    (way < 0 ? low : high) += way;
    in_sticks |= along;
  };
  for (size_t i = 0; i < points.size(); ++i) go(points[i], operand.strides[i], in_sticks_along(operand, i));
  for (const Indirect& indirect : indices_of(step, index)) go(indirect.extent, indirect.stride, indirect.stick);
  return {low, high + (in_sticks ? kStickBytes : element_bytes(operand.format))};
}

int64_t bytes_behind(const Step& step, size_t index, const Dims& points) {
  const Operand& operand = step.operands[index];
  if (operand.is_constant()) return 0;
  __int128 bytes = element_bytes(operand.format);
  for (size_t i = 0; i < points.size(); ++i) {
    if (in_sticks_along(operand, i))
      bytes *= round_up(points[i], elements_per_stick(operand.format));
    else if (operand.strides[i] != 0 || static_cast<int>(index) == indexed_operand(step))
      bytes *= points[i];
    bytes = std::min<__int128>(bytes, limits::kBytes);
  }
  return static_cast<int64_t>(bytes);
}

int64_t lx_bytes_of(const Program& program) {
  int64_t most = 0;
  for (const Step& step : program.steps)
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (step.operands[i].in_lx()) most = std::max(most, reach(step, i, points_in_lx(step, i)).second);
  return most;
}

int64_t tile_bytes(const Step& step) {
  int64_t bytes = 0;
  for (size_t i = 0; i < step.operands.size() && !step.tile.empty(); ++i)
    if (!step.operands[i].in_lx()) bytes = std::min(bytes + 2 * bytes_behind(step, i, step.tile), limits::kBytes);
  return bytes;
}

Nest core_nest(const Step& step, int core) {
  const std::vector<CoreRange> ranges = ranges_of(step, core);
  const Sides sides = sides_of(step);
  Nest nest;
  nest.loops.resize(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) nest.loops[i].count = ranges[i].count;
  for (size_t side = 0; side < sides.size(); ++side) {
    const Operand& operand = *sides[side];
    if (operand.is_constant()) continue;
    nest.offset[side] = operand.offset / element_bytes(operand.format) + scratchpad(operand, core);
    for (size_t i = 0; i < ranges.size(); ++i) {
      nest.loops[i].stride[side] = stride_of(operand, i);
      nest.offset[side] += distance_of(operand, i, ranges[i]);
    }
  }
  return nest;
}

std::vector<Nest> kept_nests(const Step& step, int core) {
  return nests_of(step, sides_of(step), core, 0, step.extents.size() - folded_dimensions(step), Offsets::with);
}

std::vector<Nest> folded_nests(const Step& step, int core) {
  const size_t rank = step.extents.size();
  return nests_of(step, sides_of(step), core, rank - folded_dimensions(step), rank, Offsets::without);
}

std::vector<Nest> affine_nests(const Step& step, int core) {
  return nests_of(step, sides_of(step), core, 0, step.extents.size(), Offsets::with);
}

namespace {

int64_t index_at(const std::byte* base, DataFormat format, int64_t at) {
  switch (format) {
    case DataFormat::SENINT8:
      return reinterpret_cast<const int8_t*>(base)[at];
    case DataFormat::SENINT16:
      return reinterpret_cast<const int16_t*>(base)[at];
    default:
      return reinterpret_cast<const int32_t*>(base)[at];
  }
}

void touch_by_index(const Step& step, int core, size_t operand, const std::vector<std::byte*>& bases,
                    const std::function<void(const Nest&)>& body) {
  const Operand& table = step.operands[operand];
  const std::vector<CoreRange> ranges = ranges_of(step, core);
  Dims point;
  for (const CoreRange& along : ranges) {
    if (along.count == 0) return;
    point.push_back(along.begin);
  }
  const auto place = [&](const Operand& at) {
    int64_t sum = at.offset / element_bytes(at.format) + scratchpad(at, core);
    for (size_t i = 0; i < point.size(); ++i) sum += distance_of(at, i, {point[i], 0, ranges[i].origin});
    return sum;
  };
  const auto lead = [&] {
    Nest element;
    element.offset[0] = place(table);
    for (const Indirect& indirect : step.indirect) {
      const Operand& indices = step.operands[indirect.operand];
      int64_t index = indices.is_constant() ? static_cast<int64_t>(indices.value)
                                            : index_at(bases[indirect.operand], indices.format, place(indices));
      if (index < 0) index += indirect.extent;
      if (index < 0 || index >= indirect.extent) return;
      element.offset[0] += distance({0, 0, {indirect.stride}, table.format, indirect.stick ? 0 : -1}, 0, index);
    }
    body(element);
  };
  for (bool more = true; more;) {
    lead();
    more = false;
    for (size_t i = point.size(); i-- > 0 && !more;) {
      more = ++point[i] < ranges[i].begin + ranges[i].count;
      if (!more) point[i] = ranges[i].begin;
    }
  }
}

// What the rows of a core's heads read in the pages that the table names, and the entries that name them.
void touch_pages(const Step& step, int core, size_t operand, const std::vector<std::byte*>& bases,
                 const std::function<void(const Nest&)>& body) {
  using namespace paged;
  const Operand &touched = step.operands[operand], &table = step.operands[kTable];
  const CoreRange heads = ranges_of(step, core)[kHead];
  const int64_t page = step.extents[kSlot], element = element_bytes(touched.format);
  if (heads.count == 0) return;
  for (const Request& request : requests_of(step)) {
    const auto [first, unused] = keys_of(step, request, request.begin);
    const auto [lowest, last] = keys_of(step, request, request.end - 1);
    for (int64_t i = std::min(first, lowest) / page; i * page < last; ++i) {
      const int64_t at = table.offset / element_bytes(table.format) + distance(table, kRequest, request.index) +
                         distance(table, kPage, i);
      if (operand == kTable) {
        Nest entry;
        entry.offset[0] = at;
        body(entry);
        continue;
      }
      const Indirect& leads = indices_of(step, operand)[0];
      const int64_t which = index_at(bases[kTable], table.format, at);
      if (which < 0 || which >= leads.extent) return;
      Step part = step;  // the keys of one page that the request has, of the core's heads
      part.slices.assign(kRank, 1);
      part.extents[kHead] = heads.count;
      part.extents[kSlot] = std::min(page, last - i * page);
      for (const size_t axis : {kGroup, kToken, kRequest, kPage}) part.extents[axis] = 1;
      for (Nest& nest : nests_of(part, {&touched}, 0, 0, kRank, Offsets::with)) {
        nest.offset[0] += distance(touched, kHead, heads.begin) + which * leads.stride / element;
        std::erase_if(nest.loops, [](const Loop& loop) { return loop.stride[0] == 0; });
        body(nest);
      }
    }
  }
}

}  // namespace

void for_each_touched(const Step& step, int core, size_t operand, const std::vector<std::byte*>& bases,
                      const std::function<void(const Nest&)>& body) {
  if (step.operands[operand].is_constant()) return;
  if (static_cast<int>(operand) == indexed_operand(step)) return touch_by_index(step, core, operand, bases, body);
  const bool by_page = operand == paged::kKey || operand == paged::kValue || operand == paged::kTable;
  if (step.op == OpCode::paged_attention && by_page) return touch_pages(step, core, operand, bases, body);
  for (Nest& nest : nests_of(step, {&step.operands[operand]}, core, 0, step.extents.size(), Offsets::with)) {
    std::erase_if(nest.loops, [](const Loop& loop) { return loop.stride[0] == 0; });
    body(nest);
  }
}

}  // namespace spyre
