// Loads and stores: from the elements of a view to a tile and back.
#include <algorithm>
#include <cstring>
#include <optional>

#include "card/tiles/core.h"

namespace spyre::tiles {

namespace {

using Point = std::array<int64_t, kMostRank>;

// Memory behind a view that has some of its own.
struct Memory {
  const View* view;
  std::byte* begin = nullptr;  // of the region
  int64_t bytes = 0;           // of the region
  int64_t base = 0;            // of the view within it, in bytes
  int64_t element = 1;
  const Region* region = nullptr;
};

Memory memory_of(Core& core, const Instruction& at, const View& view, bool written) {
  Memory memory{&view};
  memory.element = bytes_of(view.type);
  if (view.lx_core >= 0) {
    memory.begin = core.launch.memory.scratchpad(size_t(view.lx_core));
    memory.bytes = core.launch.program.lx_bytes;
    if (view.base < 0 || view.base >= memory.bytes / memory.element)
      refuse(at, "a view in the scratchpad begins at element " + std::to_string(view.base) + ", beyond its " +
                     std::to_string(memory.bytes) + " bytes");
    memory.base = view.base * memory.element;
    return memory;
  }
  const Region* found = core.launch.arguments.find(view.base, memory.element);
  if (!found) found = core.launch.memory.find(view.base, memory.element);
  if (!found) refuse(at, "no memory is mapped at element " + std::to_string(view.base) + ", where a view begins");
  if (written && !found->writable) refuse(at, "a store into " + found->name + ", which is not to be written");
  memory.region = found;
  memory.begin = found->data;
  memory.bytes = found->elements * found->element_bytes;
  memory.base = (view.base - found->address) * memory.element;
  return memory;
}

// One row of a tile: element x of it is at coordinates start + x * step of the view.
struct Row {
  Point start{}, step{};
  int64_t from = 0, to = 0;  // which x
};

// x in [row.from, row.to) for which low <= start + x * step < high.
void clip(Row& row, int64_t start, int64_t step, int64_t low, int64_t high) {
  constexpr int64_t kFarthest = int64_t{1} << 61;
  if (start > kFarthest || start < -kFarthest || step > kFarthest || step < -kFarthest) {
    row.to = row.from;
    return;
  }
  if (step == 0) {
    if (start < low || start >= high) row.to = row.from;
    return;
  }
  if (step > 0) {
    row.from = std::max(row.from, -floor_div(-(low - start), step));
    row.to = std::min(row.to, floor_div(high - 1 - start, step) + 1);
  } else {
    row.from = std::max(row.from, -floor_div(-(start - (high - 1)), -step));
    row.to = std::min(row.to, floor_div(start - low, -step) + 1);
  }
  row.to = std::max(row.to, row.from);
}

class Mover {
 public:
  Mover(Core& core, const Instruction& at, const Access& access, const Tile& tile, bool stores)
      : core_(core), at_(at), access_(access), tile_(tile), stores_(stores), values_(core.launch.values) {
    if (access.view->parts.empty()) {
      memories_.push_back(memory_of(core, at, *access.view, stores));
    } else {
      for (const auto& part : access.view->parts) memories_.push_back(memory_of(core, at, *part, stores));
    }
    for (size_t s = 0; s < access.subscripts.size(); ++s)
      if (access.subscripts[s].index) indices_.push_back(memory_of(core, at, *access.subscripts[s].index, false));
  }

  void run() {
    const int64_t all = tile_.elements();
    core_.work(at_, double(all));
    if (!stores_ && values_ && !whole_box())
      std::memset(tile_.buffer.data(), 0, size_t(Tile::bytes(tile_.type, tile_.shape)));
    if (all == 0) return;
    if (access_.subscripts.empty() && access_.set.rows.empty() && memories_.size() == 1 &&
        memories_[0].view->coordinates.rows.empty())
      box(memories_[0]);
    else if (values_)
      rows();
    note(all);
  }

 private:
  int rank() const { return access_.shape.rank; }

  // Whether a box load fills every element.
  bool whole_box() const {
    if (!access_.subscripts.empty() || !access_.set.rows.empty() || memories_.size() != 1) return false;
    const View& view = *memories_[0].view;
    if (!view.coordinates.rows.empty()) return false;
    for (int k = 0; k < rank(); ++k) {
      const int v = access_.order[size_t(k)];
      const int64_t begin = access_.base[size_t(v)] + access_.low[size_t(v)];
      if (begin < view.first[v] || begin + access_.shape[k] > view.first[v] + view.sizes[v]) return false;
    }
    return true;
  }

  // Whether cores may write there at all.
  bool shared(const Memory& memory) const {
    return memory.region && memory.region->writable && core_.launch.program.cores > 1;
  }

  void check(const Memory& memory, int64_t low, int64_t high) const {  // bytes, `high` of the last element
    if (low < 0 || high + memory.element > memory.bytes) {
      const std::string name = memory.region ? memory.region->name : "the scratchpad";
      refuse(at_, std::string(stores_ ? "a store" : "a load") + " reaches bytes " + std::to_string(low) + " to " +
                      std::to_string(high + memory.element) + " of " + name + ", which has " +
                      std::to_string(memory.bytes));
    }
  }

  void move(const Memory& memory, int64_t offset, int64_t step, int64_t element, int64_t count) const {
    std::byte* address = memory.begin + offset;
    if (stores_)
      encode(memory.view->type, address, tile_.at(element), count, step);
    else
      decode(memory.view->type, tile_.at(element), address, count, step);
  }

  void box(const Memory& memory) {
    const View& view = *memory.view;
    // From the outermost dimension of the tile to the innermost: points, and distances in the tile and in memory.
    struct Dimension {
      int64_t count, in_tile, in_memory;
    };
    std::array<Dimension, kMostRank> dimensions{};
    int used = 0;
    const auto strides = tile_.shape.strides();
    int64_t element = 0, offset = memory.base, low = 0, high = 0;
    for (int k = 0; k < rank(); ++k) {
      const int v = access_.order[size_t(k)];
      const int64_t begin = access_.base[size_t(v)] + access_.low[size_t(v)] - view.first[v];
      const int64_t skipped = std::max<int64_t>(-begin, 0);
      const int64_t count = std::min(access_.shape[k], view.sizes[v] - begin) - skipped;
      if (count <= 0) return;
      const Dimension own{count, strides[size_t(k)], view.strides[v] * memory.element};
      element += skipped * own.in_tile;
      offset += (begin + skipped) * own.in_memory;
      (own.in_memory < 0 ? low : high) += (count - 1) * own.in_memory;
      if (count == 1) continue;
      if (used && dimensions[size_t(used - 1)].in_tile == own.in_tile * count &&
          dimensions[size_t(used - 1)].in_memory == own.in_memory * count) {
        dimensions[size_t(used - 1)] = {dimensions[size_t(used - 1)].count * count, own.in_tile, own.in_memory};
      } else {
        dimensions[size_t(used++)] = own;
      }
    }
    check(memory, offset + low, offset + high);
    box_ = {offset + low, offset + high + memory.element};
    run_ = used == 0 || dimensions[size_t(used - 1)].in_memory != memory.element
               ? memory.element
               : dimensions[size_t(used - 1)].count * memory.element;
    if (!values_) return;
    if (shared(memory)) {
      Touched touched{&at_, memory.region, offset, memory.element, {}, stores_, core_.meetings};
      for (int d = 0; d < used; ++d)
        touched.dimensions.emplace_back(dimensions[size_t(d)].count, dimensions[size_t(d)].in_memory);
      core_.touched.push_back(std::move(touched));
    }
    const bool along = used && dimensions[size_t(used - 1)].in_tile == 1;
    const Dimension last = along ? dimensions[size_t(used - 1)] : Dimension{1, 1, memory.element};
    each(dimensions.data(), used - along, element, offset,
         [&](int64_t e, int64_t o) { move(memory, o, last.in_memory, e, last.count); });
  }

  template <class Dimension, class Visit>
  static void each(const Dimension* dimensions, int count, int64_t element, int64_t offset, const Visit& visit) {
    if (count == 0) return visit(element, offset);
    for (int64_t i = 0; i < dimensions[0].count; ++i)
      each(dimensions + 1, count - 1, element + i * dimensions[0].in_tile, offset + i * dimensions[0].in_memory, visit);
  }

  // Row by row, as the set, the parts and the indices say.
  void rows() {
    const int last = rank() - 1;
    const int64_t length = rank() ? access_.shape[last] : 1, count = tile_.elements() / length;
    Point point{};  // in the dimensions of the set
    for (int d = 0; d < rank(); ++d) point[size_t(d)] = access_.low[size_t(d)];
    const int inner = rank() ? access_.order[size_t(last)] : 0;
    const bool by_rows = access_.subscripts.empty() ? linear() : runs_along(inner);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t element = r * length;
      if (by_rows && rank()) {
        point[size_t(inner)] = access_.low[size_t(inner)];
        row(point, inner, element, length);
      } else {
        for (int64_t x = 0; x < length; ++x) {
          if (rank()) point[size_t(inner)] = access_.low[size_t(inner)] + x;
          if (access_.set.rows.empty() || access_.set.contains(point.data())) row(point, -1, element + x, 1);
        }
      }
      for (int k = last - 1; k >= 0; --k) {
        const size_t d = size_t(access_.order[size_t(k)]);
        if (++point[d] < access_.low[d] + access_.shape[k]) break;
        point[d] = access_.low[d];
      }
    }
  }

  bool linear() const {
    return std::all_of(access_.set.rows.begin(), access_.set.rows.end(),
                       [](const BoundExpression& e) { return e.linear(); }) &&
           simple_parts();
  }
  bool simple_parts() const {
    return std::all_of(memories_.begin(), memories_.end(),
                       [](const Memory& m) { return m.view->coordinates.rows.empty(); });
  }
  bool runs_along(int inner) const {
    if (!linear()) return false;
    for (const Access::Subscript& each : access_.subscripts)
      for (const BoundExpression& e : each.at)
        if (each.index ? e.uses(inner) : !e.linear() && e.uses(inner)) return false;
    return true;
  }

  // The elements of one row; `inner`: the set's dimension along it, -1 for a single element.
  void row(const Point& point, int inner, int64_t element, int64_t length) {
    Row row;
    row.to = length;
    if (inner >= 0)
      for (size_t r = 0; r < access_.set.rows.size(); ++r) {
        const BoundExpression& e = access_.set.rows[r];
        clip(row, e(point.data()), e.coefficient(inner), 0, access_.set.equal[r] ? 1 : int64_t{1} << 60);
      }
    if (access_.subscripts.empty()) {
      for (int d = 0; d < rank(); ++d) row.start[size_t(d)] = access_.base[size_t(d)] + point[size_t(d)];
      if (inner >= 0) row.step[size_t(inner)] = 1;
    } else {
      size_t next = 0;
      for (size_t s = 0; s < access_.subscripts.size(); ++s) {
        const Access::Subscript& subscript = access_.subscripts[s];
        if (subscript.index) {
          row.start[s] = index(indices_[next++], subscript, point);
        } else {
          row.start[s] = subscript.at[0](point.data());
          if (inner >= 0 && subscript.at[0].linear()) row.step[s] = subscript.at[0].coefficient(inner);
        }
      }
    }
    for (const Memory& memory : memories_) part(memory, row, element);
  }

  int64_t index(const Memory& memory, const Access::Subscript& subscript, const Point& point) const {
    const View& view = *memory.view;
    int64_t offset = memory.base;
    for (size_t d = 0; d < subscript.at.size(); ++d) {
      const int64_t c = subscript.at[d](point.data()) - view.first[int(d)];
      if (c < 0 || c >= view.sizes[int(d)]) return 0;  // reads outside of a view give 0
      offset += c * view.strides[int(d)] * memory.element;
    }
    if (offset < 0 || offset + memory.element > memory.bytes) refuse(at_, "an index is read beyond its memory");
    int64_t value = 0;
    decode(view.type, &value, memory.begin + offset, 1, memory.element);
    return value;
  }

  void part(const Memory& memory, Row row, int64_t element) {
    const View& view = *memory.view;
    for (int d = 0; d < view.sizes.rank; ++d)
      clip(row, row.start[size_t(d)], row.step[size_t(d)], view.first[d], view.first[d] + view.sizes[d]);
    if (row.from >= row.to) return;
    if (!view.coordinates.rows.empty() && !view.coordinates.contains(row.start.data())) return;
    int64_t offset = memory.base, step = 0;
    for (int d = 0; d < view.sizes.rank; ++d) {
      offset += (row.start[size_t(d)] - view.first[d]) * view.strides[d] * memory.element;
      step += row.step[size_t(d)] * view.strides[d] * memory.element;
    }
    const int64_t first = offset + row.from * step, last = offset + (row.to - 1) * step;
    check(memory, std::min(first, last), std::max(first, last));
    if (shared(memory))
      core_.touched.push_back(
          {&at_, memory.region, first, memory.element, {{row.to - row.from, step}}, stores_, core_.meetings});
    move(memory, first, row.to - row.from == 1 ? memory.element : step, element + row.from, row.to - row.from);
  }

  void note(int64_t all) {
    const Memory& memory = memories_[0];
    const bool known = box_.first >= 0;
    core_.traffic.push_back({&at_, memories_.size() > 1 ? nullptr : memory.region, known ? box_.first : 0,
                             known ? box_.second : memory.bytes, all * memory.element,
                             std::max<int64_t>(run_, memory.element), stores_});
    ++core_.uses[size_t(at_.id)].times;
  }

  Core& core_;
  const Instruction& at_;
  const Access& access_;
  const Tile& tile_;
  const bool stores_, values_;
  std::vector<Memory> memories_, indices_;
  std::pair<int64_t, int64_t> box_{-1, -1};
  int64_t run_ = 0;
};

}  // namespace

void run_load(Core& core, const Instruction& at) {
  const Access& access = core.access(at, at.in[0]);
  Tile tile = core.new_tile(at, access.view->type, access.shape);
  Mover(core, at, access, tile, false).run();
  core.put(at.out[0], std::move(tile));
}

void run_store(Core& core, const Instruction& at) {
  const Tile& given = core.tile(at, at.in[0]);
  const Access& access = core.access(at, at.in[1]);
  if (!(given.shape == access.shape) && given.elements() != access.shape.elements())
    refuse(at, "a tile of the shape " + text_of(given.shape) + " goes to an access tile of the shape " +
                   text_of(access.shape));
  if (is_real(given.type) != is_real(access.view->type)) refuse(at, "a tile of another type than the view's");
  Tile tile = given;
  tile.shape = access.shape;
  Mover(core, at, access, tile, true).run();
}

}  // namespace spyre::tiles
