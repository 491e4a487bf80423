#include "card/tiles/body.h"

#include <algorithm>
#include <cstring>

#include "card/kernels/scratch.h"
#include "card/numeric/tile_ops.h"

namespace spyre::tiles {

namespace {

constexpr int64_t kChunk = 1024;  // elements that a body takes at a time
constexpr int kMostLoops = 16;

void run_unsigned(const MicroOp& op, const int64_t* a, const int64_t* b, void* out, int64_t n) {
  const int bits = int(8 * bytes_of(op.from));
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t x = uint64_t(a[i]) & mask, y = uint64_t(b[i]) & mask;
    auto* integers = static_cast<int64_t*>(out);
    auto* reals = static_cast<float*>(out);
    switch (op.unsigned_op) {
      case 0:
        integers[i] = int64_t(y ? x / y : 0);
        break;
      case 1:
        integers[i] = int64_t(y ? x % y : 0);
        break;
      case 2:
        integers[i] = int64_t(y < uint64_t(bits) ? x >> y : 0);
        break;
      case 3:
        integers[i] = int64_t(std::max(x, y));
        break;
      case 4:
        integers[i] = int64_t(std::min(x, y));
        break;
      case 5:
        reals[i] = x < y;
        break;
      case 6:
        reals[i] = x <= y;
        break;
      default:
        integers[i] = int64_t(x);
    }
  }
}

// The registers of a body, for up to kChunk elements.
class Registers {
 public:
  Registers(Core& core, const Instruction& at, int64_t chunk) : core_(core), at_(at), body_(at.body), chunk_(chunk) {
    thread_local std::vector<std::unique_ptr<Scratch>> scratch;
    thread_local size_t depth = 0;
    if (scratch.size() <= depth) scratch.push_back(std::make_unique<Scratch>());
    const int64_t each = chunk * int64_t{sizeof(int64_t)};
    std::byte* memory = scratch[depth]->bytes(each * body_.registers);
    own_.resize(size_t(body_.registers));
    now_.resize(size_t(body_.registers));
    for (size_t i = 0; i < own_.size(); ++i) now_[i] = own_[i] = memory + int64_t(i) * each;
    for (const Body::Constant& constant : body_.constants)
      if (is_real(body_.types[size_t(constant.at)]))
        std::fill_n(reinterpret_cast<float*>(own_[size_t(constant.at)]), chunk, float(constant.real));
      else
        std::fill_n(reinterpret_cast<int64_t*>(own_[size_t(constant.at)]), chunk, constant.integer);
  }

  std::byte* own(int i) const { return own_[size_t(i)]; }
  std::byte* now(int i) const { return now_[size_t(i)]; }
  void point(int i, std::byte* to) { now_[size_t(i)] = to; }
  void splat(int i, const std::byte* value, int64_t n) {
    now_[size_t(i)] = own_[size_t(i)];
    if (is_real(body_.types[size_t(i)]))
      std::fill_n(reinterpret_cast<float*>(own_[size_t(i)]), n, *reinterpret_cast<const float*>(value));
    else
      std::fill_n(reinterpret_cast<int64_t*>(own_[size_t(i)]), n, *reinterpret_cast<const int64_t*>(value));
  }
  // Elements `step` elements apart.
  void fetch(int i, const std::byte* from, int64_t step, int64_t n) {
    if (step == 0) return splat(i, from, n);
    if (step == 1) return point(i, const_cast<std::byte*>(from));
    now_[size_t(i)] = own_[size_t(i)];
    if (is_real(body_.types[size_t(i)]))
      gather(reinterpret_cast<float*>(own_[size_t(i)]), reinterpret_cast<const float*>(from), step, n);
    else
      gather(reinterpret_cast<int64_t*>(own_[size_t(i)]), reinterpret_cast<const int64_t*>(from), step, n);
  }
  void count(int i, int64_t first, int64_t step, int64_t n) {
    auto* to = reinterpret_cast<int64_t*>(own_[size_t(i)]);
    for (int64_t k = 0; k < n; ++k) to[k] = first + k * step;
  }

  void run(int64_t n) {
    for (const MicroOp& op : body_.ops) run(op, n);
  }

 private:
  template <class T>
  static void gather(T* to, const T* from, int64_t step, int64_t n) {
    for (int64_t k = 0; k < n; ++k) to[k] = from[k * step];
  }

  void run(const MicroOp& op, int64_t n) {
    const void* in[3] = {};
    for (size_t k = 0; k < op.in.size() && k < 3; ++k) in[k] = now_[size_t(op.in[k])];
    std::byte* out = now_[size_t(op.out)];
    switch (op.kind) {
      case MicroOp::Kind::tile_op:
        op.op->run(out, in, size_t(n), op.constants.data());
        if (!op.exact) round_to(op.type, out, n);
        return;
      case MicroOp::Kind::cast:
        if (out != in[0]) std::memmove(out, in[0], size_t(n * held_bytes(op.type)));
        return round_to(op.type, out, n);
      case MicroOp::Kind::bitcast:
        return bitcast(op.type, out, op.from, in[0], n);
      case MicroOp::Kind::unsigned_op:
        run_unsigned(op, static_cast<const int64_t*>(in[0]), static_cast<const int64_t*>(in[1]), out, n);
        if (op.unsigned_op < 5) round_to(op.type, out, n);
        return;
      case MicroOp::Kind::extract:
        return extract(op, out, n);
    }
  }

  void extract(const MicroOp& op, std::byte* out, int64_t n) {
    const Tile& table = core_.tile(at_, body_.tables[size_t(op.table)]);
    const auto strides = table.shape.strides();
    if (int(op.in.size()) != table.shape.rank) refuse(at_, "extract has another number of indices than its tile");
    for (int64_t i = 0; i < n; ++i) {
      int64_t element = 0;
      for (int d = 0; d < table.shape.rank; ++d) {
        const int64_t index = reinterpret_cast<const int64_t*>(now_[size_t(op.in[size_t(d)])])[i];
        if (index < 0 || index >= table.shape[d])
          refuse(at_, "index " + std::to_string(index) + " is outside of a tile of the shape " + text_of(table.shape));
        element += index * strides[size_t(d)];
      }
      std::memcpy(out + i * held_bytes(op.type), table.at(element), size_t(held_bytes(op.type)));
    }
  }

  Core& core_;
  const Instruction& at_;
  const Body& body_;
  int64_t chunk_;
  std::vector<std::byte*> own_, now_;
};

void note(Core& core, const Instruction& at, double sticks, double operands) {
  Use& use = core.uses[size_t(at.id)];
  use.vector_sticks += sticks * (at.body.plain + at.body.special);
  use.special_sticks += sticks * at.body.special;
  use.operand_sticks += sticks * operands;
  ++use.times;
}

void put_scalar(Core& core, int slot, ElementType type, const std::byte* value) {
  if (is_real(type))
    core.put(slot, *reinterpret_cast<const float*>(value));
  else
    core.put(slot, *reinterpret_cast<const int64_t*>(value));
}

const std::byte* scalar_of(const Instruction& at, const Value& value, ElementType type) {
  const bool real = is_real(type);
  if (value.kind != (real ? Value::Kind::real : Value::Kind::integer)) refuse(at, "an operand has the wrong type");
  return reinterpret_cast<const std::byte*>(real ? static_cast<const void*>(&value.real) : &value.integer);
}

// An operand of an iteration space: where it is and how far each loop moves it, in elements.
struct Walked {
  std::byte* data = nullptr;
  int64_t element = 0;  // bytes
  std::array<int64_t, kMostLoops> strides{};
};

struct Space {
  int loops = 0;
  std::array<int64_t, kMostLoops> extents{};
  std::array<bool, kMostLoops> reduced{};
  std::vector<Walked> operands;  // inputs, then outputs
  std::vector<Body::Position> positions;
  std::array<int, kMostLoops> original{};  // which loop of the instruction

  void drop(int loop) {
    for (int l = loop; l + 1 < loops; ++l) {
      extents[size_t(l)] = extents[size_t(l + 1)];
      reduced[size_t(l)] = reduced[size_t(l + 1)];
      original[size_t(l)] = original[size_t(l + 1)];
      for (Walked& each : operands) each.strides[size_t(l)] = each.strides[size_t(l + 1)];
    }
    --loops;
  }
  // Moves a loop to the end.
  void innermost(int loop) {
    const size_t l = size_t(loop), n = size_t(loops);
    std::rotate(extents.begin() + l, extents.begin() + l + 1, extents.begin() + n);
    std::rotate(reduced.begin() + l, reduced.begin() + l + 1, reduced.begin() + n);
    std::rotate(original.begin() + l, original.begin() + l + 1, original.begin() + n);
    for (Walked& each : operands)
      std::rotate(each.strides.begin() + l, each.strides.begin() + l + 1, each.strides.begin() + n);
  }
  bool counts(int loop) const {
    return std::any_of(positions.begin(), positions.end(),
                       [&](const Body::Position& p) { return p.loop == original[size_t(loop)]; });
  }
  // Neighbouring loops that all operands walk as one become one.
  void merge() {
    for (int l = loops - 2; l >= 0; --l) {
      const size_t outer = size_t(l), inner = outer + 1;
      if (reduced[outer] != reduced[inner] || counts(l) || counts(l + 1)) continue;
      const bool fits = std::all_of(operands.begin(), operands.end(), [&](const Walked& each) {
        return each.strides[outer] == each.strides[inner] * extents[inner];
      });
      if (!fits) continue;
      extents[inner] *= extents[outer];
      drop(l);
    }
  }
};

// Calls visit(offsets of the operands in elements, point) for each point of the first `loops` loops.
template <class Visit>
void each_point(const Space& space, int first, int loops, int64_t* offsets, int64_t* point, const Visit& visit) {
  if (first == loops) return visit();
  const size_t operands = space.operands.size();
  for (int64_t i = 0; i < space.extents[size_t(first)]; ++i) {
    point[first] = i;
    each_point(space, first + 1, loops, offsets, point, visit);
    for (size_t k = 0; k < operands; ++k) offsets[k] += space.operands[k].strides[size_t(first)];
  }
  for (size_t k = 0; k < operands; ++k)
    offsets[k] -= space.operands[k].strides[size_t(first)] * space.extents[size_t(first)];
}

void set_positions(Registers& registers, const Space& space, const int64_t* point, int64_t first, int64_t n) {
  for (const Body::Position& position : space.positions) {
    int64_t begin = 0, step = 0;
    for (int l = 0; l < space.loops; ++l)
      if (space.original[size_t(l)] == position.loop) {
        step = l == space.loops - 1;
        begin = step ? first : point[l];
      }
    registers.count(position.at, begin, step, n);
  }
}

// Folds n values with an operation: halves onto halves, in an order that the number of values alone decides.
void fold_values(const TileOp& op, ElementType type, std::byte* values, int64_t n) {
  const int64_t bytes = held_bytes(type);
  while (n > 1) {
    const int64_t kept = (n + 1) / 2;
    const void* in[] = {values, values + kept * bytes};
    op.run(values, in, size_t(n - kept), nullptr);
    round_to(type, values, n - kept);
    n = kept;
  }
}

struct GenericRun {
  Core& core;
  const Instruction& at;
  Space& space;
  size_t inputs, outputs;
  Registers& registers;

  void fetch(const int64_t* offsets, const int64_t* point, int64_t first, int64_t n, size_t count) {
    const size_t last = size_t(space.loops - 1);
    for (size_t k = 0; k < count; ++k) {
      const Walked& each = space.operands[k];
      const int64_t step = space.loops ? each.strides[last] : 0;
      registers.fetch(int(k), each.data + (offsets[k] + first * step) * each.element, step, n);
    }
    set_positions(registers, space, point, first, n);
  }
  void write(size_t k, const int64_t* offsets, int64_t first, int64_t n, const std::byte* from) {
    const Walked& each = space.operands[inputs + k];
    const int64_t step = space.loops ? each.strides[size_t(space.loops - 1)] : 1;
    std::byte* to = each.data + (offsets[inputs + k] + first * step) * each.element;
    if (step == 1) {
      if (to != from) std::memcpy(to, from, size_t(n * each.element));
      return;
    }
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(to + i * step * each.element, from + i * each.element, size_t(each.element));
  }

  // No loop folds: results go where they belong.
  void parallel(int64_t chunk) {
    int64_t offsets[64] = {}, point[kMostLoops] = {};
    const int outer = std::max(space.loops - 1, 0);
    const int64_t length = space.loops ? space.extents[size_t(outer)] : 1;
    each_point(space, 0, outer, offsets, point, [&] {
      for (int64_t first = 0; first < length; first += chunk) {
        const int64_t n = std::min(chunk, length - first);
        fetch(offsets, point, first, n, at.body.reads_outputs ? inputs + outputs : inputs);
        for (size_t k = 0; k < outputs; ++k) {
          const Walked& to = space.operands[inputs + k];
          const int result = at.body.results[k];
          if (result >= int(inputs + outputs) && (!space.loops || to.strides[size_t(outer)] == 1) && once(result))
            registers.point(result, to.data + (offsets[inputs + k] + first) * to.element);
        }
        registers.run(n);
        for (size_t k = 0; k < outputs; ++k) write(k, offsets, first, n, registers.now(at.body.results[k]));
      }
    });
  }
  bool once(int result) const {  // and is not a constant or a position, which stay in place
    for (const Body::Constant& constant : at.body.constants)
      if (constant.at == result) return false;
    for (const Body::Position& position : at.body.positions)
      if (position.at == result) return false;
    return std::count(at.body.results.begin(), at.body.results.end(), result) == 1;
  }

  // The innermost loop folds: values of the body are folded by halves, then onto the output.
  void fold_innermost(const TileOp& op, int64_t chunk) {
    int64_t offsets[64] = {}, point[kMostLoops] = {};
    const int outer = space.loops - 1;
    const int64_t length = space.extents[size_t(outer)];
    const Walked& to = space.operands[inputs];
    const ElementType type = at.body.types[inputs];
    each_point(space, 0, outer, offsets, point, [&] {
      for (int64_t first = 0; first < length; first += chunk) {
        const int64_t n = std::min(chunk, length - first);
        fetch(offsets, point, first, n, inputs);
        registers.run(n);
        std::byte* values = registers.now(at.body.results[0]);
        if (values != registers.own(at.body.results[0])) {  // an input itself, which must stay
          std::memcpy(registers.own(at.body.results[0]), values, size_t(n * to.element));
          values = registers.own(at.body.results[0]);
        }
        fold_values(op, type, values, n);
        std::byte* sum = to.data + offsets[inputs] * to.element;
        const void* in[] = {sum, values};
        op.run(sum, in, 1, nullptr);
        round_to(type, sum, 1);
      }
    });
  }

  // Another loop folds: the innermost one is a vector of sums.
  void fold_outer(const TileOp& op, int64_t chunk) {
    int64_t offsets[64] = {}, point[kMostLoops] = {};
    const int outer = std::max(space.loops - 1, 0);
    const int64_t length = space.loops ? space.extents[size_t(outer)] : 1;
    const Walked& to = space.operands[inputs];
    const ElementType type = at.body.types[inputs];
    each_point(space, 0, outer, offsets, point, [&] {
      for (int64_t first = 0; first < length; first += chunk) {
        const int64_t n = std::min(chunk, length - first);
        fetch(offsets, point, first, n, inputs);
        registers.run(n);
        const int64_t step = space.loops ? to.strides[size_t(outer)] : 1;
        std::byte* sums = to.data + (offsets[inputs] + first * step) * to.element;
        if (step == 1) {
          const void* in[] = {sums, registers.now(at.body.results[0])};
          op.run(sums, in, size_t(n), nullptr);
          round_to(type, sums, n);
          continue;
        }
        for (int64_t i = 0; i < n; ++i) {
          const void* in[] = {sums + i * step * to.element, registers.now(at.body.results[0]) + i * to.element};
          op.run(sums + i * step * to.element, in, 1, nullptr);
          round_to(type, sums + i * step * to.element, 1);
        }
      }
    });
  }

  // Any body over loops that fold: the outputs are its inputs each time.
  void sequential(int64_t chunk) {
    const int outer = std::max(space.loops - 1, 0);
    const bool vector = space.loops && !space.reduced[size_t(outer)];
    int64_t offsets[64] = {}, point[kMostLoops] = {};
    const int loops = vector ? outer : space.loops;
    const int64_t length = vector ? space.extents[size_t(outer)] : 1;
    each_point(space, 0, loops, offsets, point, [&] {
      for (int64_t first = 0; first < length; first += chunk) {
        const int64_t n = std::min(chunk, length - first);
        if (vector) {
          fetch(offsets, point, first, n, inputs + outputs);
        } else {
          for (size_t k = 0; k < inputs + outputs; ++k)
            registers.fetch(int(k), space.operands[k].data + offsets[k] * space.operands[k].element, 1, 1);
          for (const Body::Position& position : space.positions)
            for (int l = 0; l < space.loops; ++l)
              if (space.original[size_t(l)] == position.loop) registers.count(position.at, point[l], 0, 1);
        }
        registers.run(n);
        for (size_t k = 0; k < outputs; ++k) {
          const std::byte* from = registers.now(at.body.results[k]);
          const Walked& to = space.operands[inputs + k];
          if (vector)
            write(k, offsets, first, n, from);
          else
            std::memmove(to.data + offsets[inputs + k] * to.element, from, size_t(to.element));
        }
      }
    });
  }
};

}  // namespace

void run_compute(Core& core, const Instruction& at) {
  const Body& body = at.body;
  const Tile* shaped = nullptr;
  for (int slot : at.in)
    if (const Value& value = core.slots[size_t(slot)]; value.kind == Value::Kind::tile) {
      if (shaped && !(shaped->shape == value.tile.shape))
        refuse(at, "operands have the shapes " + text_of(shaped->shape) + " and " + text_of(value.tile.shape));
      shaped = &value.tile;
    }
  if (!shaped) {
    Registers registers(core, at, 1);
    for (size_t k = 0; k < at.in.size(); ++k)
      std::memcpy(registers.own(int(k)), scalar_of(at, core.slots[size_t(at.in[k])], body.types[k]),
                  size_t(held_bytes(body.types[k])));
    registers.run(1);
    core.work(at, 1);
    put_scalar(core, at.out[0], body.types[size_t(body.results[0])], registers.now(body.results[0]));
    return;
  }
  const int64_t all = shaped->elements();
  core.work(at, double(all));
  note(core, at, core.sticks(*shaped), double(at.in.size()));
  Tile out = core.new_tile(at, body.types[size_t(body.results[0])], shaped->shape);
  if (core.launch.values) {
    const int64_t chunk = std::min(kChunk, std::max<int64_t>(all, 1));
    Registers registers(core, at, chunk);
    for (int64_t first = 0; first < all; first += chunk) {
      const int64_t n = std::min(chunk, all - first);
      for (size_t k = 0; k < at.in.size(); ++k) {
        const Value& value = core.slots[size_t(at.in[k])];
        if (value.kind == Value::Kind::tile) {
          if (is_real(value.tile.type) != is_real(body.types[k])) refuse(at, "an operand has the wrong type");
          registers.point(int(k), value.tile.at(first));
        } else if (first == 0) {
          registers.splat(int(k), scalar_of(at, value, body.types[k]), n);
        }
      }
      registers.point(body.results[0],
                      body.results[0] < int(at.in.size()) ? registers.now(body.results[0]) : out.at(first));
      registers.run(n);
      if (registers.now(body.results[0]) != out.at(first))
        std::memcpy(out.at(first), registers.now(body.results[0]), size_t(n * held_bytes(out.type)));
    }
  }
  core.put(at.out[0], std::move(out));
}

// The outputs come in as the last operands; what an output's map lacks are the loops that fold.
void run_generic(Core& core, const Instruction& at) {
  const size_t outputs = at.out.size(), inputs = at.in.size() - outputs;
  const int loops = int(at.reduced.size());
  if (loops > kMostLoops || at.in.size() > 64) refuse(at, "more loops or operands than a program may have");
  Space space;
  space.loops = loops;
  space.positions = at.body.positions;
  for (int l = 0; l < loops; ++l) {
    space.extents[size_t(l)] = -1;
    space.reduced[size_t(l)] = at.reduced[size_t(l)];
    space.original[size_t(l)] = l;
  }
  std::vector<Tile> results;
  std::vector<std::vector<BoundExpression>> maps;
  for (size_t k = 0; k < at.in.size(); ++k) {
    const Value& value = core.slots[size_t(at.in[k])];
    maps.emplace_back();
    for (const Expression& each : at.maps[k]) {
      maps.back().emplace_back(each, loops, std::span<const int64_t>());
      if (!maps.back().back().linear()) refuse(at, "an indexing map is not linear");
    }
    if (value.kind != Value::Kind::tile) continue;
    if (value.tile.shape.rank != int(maps[k].size()))
      refuse(at, "an indexing map has another number of results than its operand has dimensions");
    for (int d = 0; d < value.tile.shape.rank; ++d)
      for (int l = 0; l < loops; ++l) {
        const BoundExpression& e = maps[k][size_t(d)];
        bool alone = e.constant() == 0 && e.coefficient(l) == 1;
        for (int m = 0; m < loops; ++m) alone &= m == l || e.coefficient(m) == 0;
        int64_t& extent = space.extents[size_t(l)];
        if (!alone) continue;
        if (extent >= 0 && extent != value.tile.shape[d])
          refuse(at, "loop d" + std::to_string(l) + " has " + std::to_string(extent) +
                         " iterations by one operand and " + std::to_string(value.tile.shape[d]) + " by another");
        extent = value.tile.shape[d];
      }
  }
  double points = 1;
  for (int l = 0; l < loops; ++l) {
    if (space.extents[size_t(l)] < 0)
      refuse(at, "no operand says how many iterations loop d" + std::to_string(l) + " has");
    points *= double(space.extents[size_t(l)]);
  }
  core.work(at, points);
  const auto walked = [&](const Tile& tile, const std::vector<BoundExpression>& map) {
    Walked each;
    each.element = held_bytes(tile.type);
    const auto strides = tile.shape.strides();
    int64_t offset = 0;
    for (int d = 0; d < tile.shape.rank; ++d) {
      const BoundExpression& e = map[size_t(d)];
      int64_t low = e.constant(), high = e.constant();
      for (int l = 0; l < loops; ++l) {
        const int64_t c = e.coefficient(l), reach = c * std::max<int64_t>(space.extents[size_t(l)] - 1, 0);
        (c < 0 ? low : high) += reach;
        each.strides[size_t(l)] += c * strides[size_t(d)];
      }
      if (points > 0 && (low < 0 || high >= tile.shape[d]))
        refuse(at, "an indexing map leads outside of an operand of the shape " + text_of(tile.shape));
      offset += e.constant() * strides[size_t(d)];
    }
    each.data = tile.buffer.data() + offset * each.element;
    return each;
  };
  bool folds = false;
  for (int l = 0; l < loops; ++l) folds |= space.reduced[size_t(l)];
  double widest = 0, operands = 0;
  for (size_t k = 0; k < inputs; ++k) {
    const Value& value = core.slots[size_t(at.in[k])];
    if (value.kind != Value::Kind::tile) {
      Walked each;
      each.element = held_bytes(at.body.types[k]);
      each.data = const_cast<std::byte*>(scalar_of(at, value, at.body.types[k]));
      space.operands.push_back(each);
      continue;
    }
    if (is_real(value.tile.type) != is_real(at.body.types[k])) refuse(at, "an operand has the wrong type");
    space.operands.push_back(walked(value.tile, maps[k]));
    ++operands;
    widest = std::max(widest, double(bytes_of(value.tile.type)));
  }
  for (size_t k = inputs; k < at.in.size(); ++k) {
    const Tile& given = core.tile(at, at.in[k]);
    if (is_real(given.type) != is_real(at.body.types[k])) refuse(at, "an operand has the wrong type");
    Tile out = core.new_tile(at, given.type, given.shape);
    if (core.launch.values && at.body.reads_outputs)
      std::memcpy(out.buffer.data(), given.buffer.data(), size_t(Tile::bytes(given.type, given.shape)));
    widest = std::max(widest, double(bytes_of(given.type)));
    space.operands.push_back(walked(out, maps[k]));
    results.push_back(std::move(out));
  }
  const double sticks = points * widest / double(core.launch.program.stick_bytes);
  note(core, at, sticks, operands);
  if (folds && !at.combine.empty()) core.uses[size_t(at.id)].fold_sticks += sticks;

  if (core.launch.values && points > 0) {
    for (int l = space.loops - 1; l >= 0; --l)
      if (space.extents[size_t(l)] == 1 && !space.counts(l)) space.drop(l);
    // The innermost loop is the one along which the first input is contiguous; folding loops are otherwise inside.
    if (folds) {
      int along = -1;
      for (int l = 0; l < space.loops; ++l)
        if (inputs && space.operands[0].strides[size_t(l)] == 1) along = l;
      for (int n = 0, l = 0; n < space.loops; ++n)
        if (space.reduced[size_t(l)] && l != along) {
          if (along > l) --along;
          space.innermost(l);
        } else {
          ++l;
        }
      if (at.combine.empty() || along < 0) {  // the vector is a loop that does not fold
        along = -1;
        for (int l = 0; l < space.loops; ++l)
          if (!space.reduced[size_t(l)]) along = l;
      }
      if (along >= 0) space.innermost(along);
    }
    space.merge();
    const int64_t chunk =
        std::min<int64_t>(kChunk, std::max<int64_t>(space.loops ? space.extents[size_t(space.loops - 1)] : 1, 1));
    Registers registers(core, at, chunk);
    GenericRun run{core, at, space, inputs, outputs, registers};
    if (!folds) {
      run.parallel(chunk);
    } else if (at.combine.empty()) {
      run.sequential(chunk);
    } else {
      const TileOp* op = find_tile_op(at.combine, is_real(at.body.types[inputs]) ? Domain::real : Domain::integer);
      if (!op) refuse(at, "there is no operation " + at.combine);
      if (space.loops && space.reduced[size_t(space.loops - 1)])
        run.fold_innermost(*op, chunk);
      else
        run.fold_outer(*op, chunk);
    }
  }
  for (size_t k = 0; k < outputs; ++k) core.put(at.out[k], std::move(results[k]));
}

}  // namespace spyre::tiles
