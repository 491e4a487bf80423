#include <cstring>

#include "card/kernels/matmul.h"
#include "card/tiles/body.h"

namespace spyre::tiles {

namespace {

// Which loop each dimension of an operand is.
std::vector<int> loops_of(const Instruction& at, const std::vector<Expression>& map) {
  std::vector<int> loops;
  for (const Expression& each : map) {
    if (each.terms.size() != 1 || each.terms[0].op != Expression::Op::dimension)
      refuse(at, "a product takes maps of plain dimensions");
    loops.push_back(int(each.terms[0].value));
  }
  return loops;
}

// The elements of an operand in the order of the given loops; `loops` says which loop each of its dimensions is.
// Nothing is copied where they lie so already.
Tile ordered(Core& core, const Instruction& at, const Tile& from, const std::vector<int>& loops,
             const std::vector<int>& wanted) {
  bool same = true;
  Shape shape;
  std::array<int64_t, kMostRank> strides{};
  const auto own = from.shape.strides();
  size_t next = 0;
  for (int loop : wanted)
    for (size_t d = 0; d < loops.size(); ++d)
      if (loops[d] == loop) {
        same &= d == next++;
        strides[size_t(shape.rank)] = own[d];
        shape.push(from.shape[int(d)]);
      }
  if (same) return from;
  Tile to = core.new_tile(at, from.type, shape);
  const int64_t element = held_bytes(from.type), all = to.elements();
  const int last = shape.rank - 1;
  std::array<int64_t, kMostRank> point{};
  for (int64_t done = 0; done < all; done += shape[last]) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset += point[size_t(d)] * strides[size_t(d)];
    const std::byte* source = from.at(offset);
    std::byte* target = to.at(done);
    for (int64_t i = 0; i < shape[last]; ++i)
      std::memcpy(target + i * element, source + i * strides[size_t(last)] * element, size_t(element));
    for (int d = last - 1; d >= 0 && ++point[size_t(d)] == shape[d]; --d) point[size_t(d)] = 0;
  }
  return to;
}

// One row by a matrix whose columns are apart: sums of many rows of B at a time keep the order of k.
void multiply(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transposed) {
  constexpr int64_t kStick = kStickBytes / int64_t{sizeof(float)};
  const auto matrix = [](const float* base, int64_t row) {
    return StickMatrix{reinterpret_cast<std::byte*>(const_cast<float*>(base)), DataFormat::IEEE_FP32, row, kStick};
  };
  matmul(matrix(c, n), matrix(a, k), matrix(b, transposed ? k : n),
         {.m = m, .n = n, .k = k, .transposed_b = transposed, .accumulate = true});
}

}  // namespace

void run_contract(Core& core, const Instruction& at) {
  const Tile &a = core.tile(at, at.in[0]), &b = core.tile(at, at.in[1]), &c = core.tile(at, at.in[2]);
  const std::vector<int> of_a = loops_of(at, at.maps[0]), of_b = loops_of(at, at.maps[1]),
                         of_c = loops_of(at, at.maps[2]);
  std::array<int64_t, kMostRank * 2> extents{};
  extents.fill(-1);
  const auto take = [&](const Tile& tile, const std::vector<int>& loops) {
    if (tile.shape.rank != int(loops.size())) refuse(at, "an operand of a product has another number of dimensions");
    for (size_t d = 0; d < loops.size(); ++d) {
      if (loops[d] < 0 || loops[d] >= int(extents.size())) refuse(at, "a product has too many loops");
      int64_t& extent = extents[size_t(loops[d])];
      if (extent >= 0 && extent != tile.shape[int(d)])
        refuse(at, "the shapes " + text_of(a.shape) + ", " + text_of(b.shape) + " and " + text_of(c.shape) +
                       " do not make a product");
      extent = tile.shape[int(d)];
    }
  };
  take(a, of_a);
  take(b, of_b);
  take(c, of_c);
  const auto has = [](const std::vector<int>& loops, int loop) {
    return std::find(loops.begin(), loops.end(), loop) != loops.end();
  };
  std::vector<int> batch, rows, columns, depth;
  int64_t batches = 1, m = 1, n = 1, k = 1;
  for (int loop = 0; loop < int(extents.size()); ++loop) {
    const int64_t extent = extents[size_t(loop)];
    if (extent < 0) continue;
    const bool in_a = has(of_a, loop), in_b = has(of_b, loop), in_c = has(of_c, loop);
    if (in_a && in_b && in_c) {
      batch.push_back(loop);
      batches *= extent;
    } else if (in_a && in_c) {
      rows.push_back(loop);
      m *= extent;
    } else if (in_b && in_c) {
      columns.push_back(loop);
      n *= extent;
    } else if (in_a && in_b) {
      depth.push_back(loop);
      k *= extent;
    } else {
      refuse(at, "a loop of a product is in one operand alone");
    }
  }
  const double products = double(batches) * double(m) * double(n) * double(k);
  core.work(at, products / 16);
  Use& use = core.uses[size_t(at.id)];
  use.multiplications += products;
  use.rows = double(m);
  use.columns = double(n);
  use.depth = double(k);
  ++use.times;
  const auto joined = [](std::initializer_list<const std::vector<int>*> lists) {
    std::vector<int> all;
    for (const auto* list : lists) all.insert(all.end(), list->begin(), list->end());
    return all;
  };
  Tile out = core.new_tile(at, c.type, c.shape);
  if (!core.launch.values) return core.put(at.out[0], std::move(out));
  if (!is_real(c.type)) refuse(at, "products of integers are not among what this card multiplies in tiles");
  // B may stay as rows of columns or columns of rows, whichever it is.
  bool transposed = !of_b.empty() && !depth.empty() && of_b.back() == depth.back();
  const Tile ready_a = ordered(core, at, a, of_a, joined({&batch, &rows, &depth}));
  const Tile ready_b =
      ordered(core, at, b, of_b, transposed ? joined({&batch, &columns, &depth}) : joined({&batch, &depth, &columns}));
  const std::vector<int> natural = joined({&batch, &rows, &columns});
  const Tile start = ordered(core, at, c, of_c, natural);
  const bool direct = natural == of_c;
  Tile sums = direct ? out : core.new_tile(at, c.type, start.shape);
  std::memcpy(sums.buffer.data(), start.buffer.data(), size_t(sums.elements()) * sizeof(float));
  if (k > 0)
    for (int64_t i = 0; i < batches && m > 0 && n > 0; ++i)
      multiply(sums.reals() + i * m * n, ready_a.reals() + i * m * k, ready_b.reals() + i * k * n, m, n, k, transposed);
  round_to(c.type, sums.reals(), sums.elements());
  if (!direct) {
    // Back into the order of C: the inverse of what `ordered` did.
    const auto strides = c.shape.strides();
    std::array<int64_t, kMostRank> moved{}, point{};
    for (size_t i = 0; i < natural.size(); ++i)
      for (size_t d = 0; d < of_c.size(); ++d)
        if (of_c[d] == natural[i]) moved[i] = strides[d];
    for (int64_t e = 0; e < sums.elements(); ++e) {
      int64_t offset = 0;
      for (int d = 0; d < sums.shape.rank; ++d) offset += point[size_t(d)] * moved[size_t(d)];
      out.reals()[offset] = sums.reals()[e];
      for (int d = sums.shape.rank - 1; d >= 0 && ++point[size_t(d)] == sums.shape[d]; --d) point[size_t(d)] = 0;
    }
  }
  core.put(at.out[0], std::move(out));
}

}  // namespace spyre::tiles
