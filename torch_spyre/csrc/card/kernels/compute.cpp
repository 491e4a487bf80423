#include "card/kernels/compute.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "card/engine/engine.h"
#include "card/error.h"
#include "card/kernels/operand_access.h"
#include "card/memory/loop_nest.h"
#include "card/program/core_split.h"
#include "card/program/step_ops.h"

namespace spyre {

namespace {

constexpr int64_t kTile = 1024;  // elements: four fp32 operands take half of an L1 cache of 32 KiB
constexpr int64_t kLanes = 64;   // running results of a fold along the stick

void* element_at(void* elements, Domain domain, int64_t index) {
  const size_t width = domain == Domain::real ? sizeof(float) : sizeof(int64_t);
  return static_cast<std::byte*>(elements) + index * static_cast<int64_t>(width);
}

struct Tile {
  alignas(64) std::byte bytes[kTile * sizeof(int64_t)];
  void* at(Domain domain, int64_t element) { return element_at(bytes, domain, element); }
  void fill(Domain domain, int64_t count, double value) {
    if (domain == Domain::real)
      std::fill_n(reinterpret_cast<float*>(bytes), count, static_cast<float>(value));
    else
      std::fill_n(reinterpret_cast<int64_t*>(bytes), count, static_cast<int64_t>(value));
  }
};

// One operand of a step. Nests count in elements, from where the argument begins.
struct Elements {
  OperandAccess access;

  Elements(const Operand& operand, std::byte* base) : access(operand.format, base) {}
  void decode_rows(void* to, int64_t at, int64_t rows, int64_t row_stride, int64_t count, int64_t stride) const {
    const int64_t bytes = access.element;
    access.decode_rows(to, at * bytes, rows, row_stride * bytes, count, stride * bytes);
  }
  bool encode_rows(const void* from, int64_t at, int64_t rows, int64_t row_stride, int64_t count,
                   int64_t stride) const {
    const int64_t bytes = access.element;
    return access.encode_rows(from, at * bytes, rows, row_stride * bytes, count, stride * bytes);
  }
  bool encode(const void* from, int64_t at, int64_t count, int64_t stride) const {
    return access.encode(from, at * access.element, count, stride * access.element);
  }
};

std::vector<Elements> operands_of(const Step& step, const std::vector<std::byte*>& bases) {
  std::vector<Elements> all;
  all.reserve(step.operands.size());
  for (size_t i = 0; i < step.operands.size(); ++i) all.emplace_back(step.operands[i], bases[i]);
  return all;
}

// Drops loops that run once, orders by the written side's stride, and joins neighbours where every side allows it.
void simplify(std::vector<Loop>& loops, size_t sides) {
  std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
  std::stable_sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.stride[0] > b.stride[0]; });
  for (size_t i = 0; i + 1 < loops.size();) {
    bool joins = true;
    for (size_t side = 0; side < sides; ++side)
      joins &= loops[i].stride[side] == loops[i + 1].count * loops[i + 1].stride[side];
    if (!joins) {
      ++i;
      continue;
    }
    loops[i + 1].count *= loops[i].count;
    loops.erase(loops.begin() + static_cast<ptrdiff_t>(i));
    i = i ? i - 1 : 0;
  }
}

// An element of each side of a nest.
struct Place {
  int64_t at[kSides];
  Place operator+(const int64_t (&offset)[kSides]) const {
    Place moved = *this;
    for (size_t side = 0; side < kSides; ++side) moved.at[side] += offset[side];
    return moved;
  }
  Place step(const Loop& loop, int64_t times) const {
    Place moved = *this;
    for (size_t side = 0; side < kSides; ++side) moved.at[side] += times * loop.stride[side];
    return moved;
  }
};

template <typename Body>
void walk(const std::vector<Loop>& loops, size_t depth, const Place& place, const Body& body) {
  if (depth == loops.size()) return body(place);
  for (int64_t i = 0; i < loops[depth].count; ++i) walk(loops, depth + 1, place.step(loops[depth], i), body);
}

Place start_of(const Nest& nest) {
  Place place;
  std::copy(std::begin(nest.offset), std::end(nest.offset), place.at);
  return place;
}

constexpr Loop kOnce{1, {}};

Loop take_last(std::vector<Loop>& loops) {
  if (loops.empty()) return kOnce;
  const Loop last = loops.back();
  loops.pop_back();
  return last;
}

// Takes the innermost loop with at least `batch` iterations, or the one with most.
Loop take_filling(std::vector<Loop>& loops, int64_t batch) {
  const auto found = std::max_element(loops.rbegin(), loops.rend(), [batch](const Loop& a, const Loop& b) {
    return std::min(a.count, batch) < std::min(b.count, batch);
  });
  if (found == loops.rend()) return kOnce;
  const Loop filling = *found;
  loops.erase(std::prev(found.base()));
  return filling;
}

// Takes the loop with the smallest stride on a side, but for 0.
Loop take_closest(std::vector<Loop>& loops, size_t side) {
  const auto far = [side](const Loop& loop) {
    return loop.stride[side] ? std::abs(loop.stride[side]) : std::numeric_limits<int64_t>::max();
  };
  const auto found =
      std::min_element(loops.begin(), loops.end(), [&](const Loop& a, const Loop& b) { return far(a) < far(b); });
  if (found == loops.end()) return kOnce;
  const Loop closest = *found;
  loops.erase(found);
  return closest;
}

std::string origin(const Step& step) { return step.source.empty() ? "" : " (" + step.source + ")"; }

[[noreturn]] void does_not_fit(const Step& step) {
  throw ValueRange("a result of " + (step.function.empty() ? name(step.op) : step.function) + " does not fit the " +
                   std::to_string(8 * element_bytes(step.operands[0].format)) + " bits that the card keeps it in" +
                   origin(step));
}

bool has_zero(const Tile& tile, int64_t count) {
  const auto* values = reinterpret_cast<const int64_t*>(tile.bytes);
  return std::find(values, values + count, 0) != values + count;
}

}  // namespace

void run_elementwise(const Step& step, int core, const std::vector<std::byte*>& bases) {
  const TileOp& op = *tile_op_of(step);
  const std::vector<Elements> operands = operands_of(step, bases);
  thread_local Tile tiles[kSides];
  const void* inputs[kSides];
  for (size_t i = 1; i < operands.size(); ++i) {
    inputs[i - 1] = tiles[i].bytes;
    if (!bases[i]) tiles[i].fill(operands[i].access.domain, kTile, step.operands[i].value);
  }
  bool fits = true;
  for (Nest& nest : affine_nests(step, core)) {
    std::vector<Loop>& loops = nest.loops;
    simplify(loops, operands.size());
    const Loop run = take_last(loops);  // along the written sticks
    const int64_t length = std::min(run.count, kTile), batch = std::max<int64_t>(1, kTile / length);
    const Loop rows = take_filling(loops, batch);  // several runs share a tile
    const auto tile = [&](const Place& place, int64_t row_count, int64_t count) {
      end_if_stopped();
      for (size_t i = 1; i < operands.size(); ++i)
        if (bases[i])
          operands[i].decode_rows(tiles[i].bytes, place.at[i], row_count, rows.stride[i], count, run.stride[i]);
      if (op.divides && has_zero(tiles[2], row_count * count))
        throw DivisionByZero("ZeroDivisionError: " + step.function + " of integers by 0" + origin(step));
      op.run(tiles[0].bytes, inputs, row_count * count, step.constants.data());
      fits &= operands[0].encode_rows(tiles[0].bytes, place.at[0], row_count, rows.stride[0], count, run.stride[0]);
    };
    walk(loops, 0, start_of(nest), [&](const Place& place) {
      for (int64_t row = 0; row < rows.count; row += batch)
        for (int64_t at = 0; at < run.count; at += length)
          tile(place.step(rows, row).step(run, at), std::min(batch, rows.count - row),
               std::min(length, run.count - at));
    });
  }
  if (!fits && step.checked) does_not_fit(step);
}

namespace {

// Running results of a reduce, of lanes or of rows of lanes. `start` begins with so many; `begin_rows` has the first
// elements of rows of `width` lanes each; `add` takes a value each for lanes from `at` on, and `step` says that all
// have theirs; `fold_lanes` makes the lanes of a row its result; `results` gives them in fp32, or int64.

// In the domain of the step.
class PlainResults {
 public:
  static constexpr int64_t kMostLanes = kLanes;
  explicit PlainResults(const Step& step) : step_(step) {}
  void start(int64_t count) { running_.fill(op_.in, count, step_.constants[0]); }
  void begin_rows(const void*, int64_t, int64_t, int64_t) {}
  void add(int64_t at, const void* values, int64_t count) {
    void* sums = running_.at(op_.in, at);
    const void* both[] = {sums, values};
    op_.run(sums, both, count, nullptr);
  }
  void step() {}
  void fold_lanes(int64_t row, int64_t width) {
    void* lanes = running_.at(op_.in, row * width);
    for (int64_t half = width / 2; half > 0; half /= 2) {
      const void* halves[] = {lanes, element_at(lanes, op_.in, half)};
      op_.run(lanes, halves, half, nullptr);
    }
    std::memmove(running_.at(op_.in, row), lanes, op_.in == Domain::real ? sizeof(float) : sizeof(int64_t));
  }
  const void* results(int64_t count) {
    if (step_.constants.size() > 1) {
      Tile factor;
      factor.fill(Domain::real, count, step_.constants[1]);
      const void* both[] = {running_.bytes, factor.bytes};
      find_tile_op("mul", Domain::real)->run(running_.bytes, both, count, nullptr);
    }
    return running_.bytes;
  }

 private:
  const Step& step_;
  const TileOp& op_ = *tile_op_of(step_);
  Tile running_{};
};

double factor_of(const Step& step) { return step.constants.size() > 1 ? step.constants[1] : 1.0; }

// Sums in fp64, rounded once.
class WideResults {
 public:
  static constexpr int64_t kMostLanes = kWideLanes;
  explicit WideResults(const Step& step) : step_(step) {}
  void start(int64_t count) {
    count_ = count;
    added_ = 0;
    std::fill_n(sums_, count, step_.constants[0]);
    std::fill_n(block_, count, 0.0f);
  }
  void begin_rows(const void*, int64_t, int64_t, int64_t) {}
  void add(int64_t at, const void* values, int64_t count) {
    if (!in_blocks_) return add_wide(sums_ + at, static_cast<const float*>(values), count);
    const void* both[] = {block_ + at, values};
    op_.run(block_ + at, both, count, nullptr);
  }
  void step() {
    if (in_blocks_ && ++added_ % kWideBlock == 0) end_block();
  }
  void fold_lanes(int64_t row, int64_t width) {
    if (row == 0 && in_blocks_) end_block();
    sums_[row] = fold_wide(sums_ + row * width, width);
  }
  const void* results(int64_t count) {
    if (added_ % kWideBlock) end_block();
    for (int64_t i = 0; i < count; ++i) results_[i] = narrowed(sums_[i] * factor_of(step_));
    return results_;
  }

 private:
  void end_block() {
    add_wide(sums_, block_, count_);
    std::fill_n(block_, count_, 0.0f);
    added_ = 0;
  }

  const Step& step_;
  const TileOp& op_ = *tile_op_of(step_);
  const bool in_blocks_ = sums_in_blocks(step_);
  int64_t count_ = 0, added_ = 0;
  double sums_[kTile];
  float block_[kTile], results_[kTile];
};

// Squared distances from the mean, in fp64 and one pass: distances from the first element have the same variance, and
// what cancels is at most the number of elements times what is left.
class Variances {
 public:
  static constexpr int64_t kMostLanes = kWideLanes;
  explicit Variances(const Step& step) : step_(step) {}
  void start(int64_t count) {
    std::fill_n(sums_, count, 0.0);
    std::fill_n(squares_, count, 0.0);
    is_first_ = true;
  }
  void begin_rows(const void* values, int64_t rows, int64_t stride, int64_t width) {
    if (!is_first_) return;
    is_first_ = false;
    for (int64_t row = 0; row < rows; ++row)
      std::fill_n(shifts_ + row * width, width, static_cast<const float*>(values)[row * stride]);
  }
  void add(int64_t at, const void* values, int64_t count) {
    add_moments(sums_ + at, squares_ + at, shifts_ + at, static_cast<const float*>(values), count);
  }
  void step() {}
  void fold_lanes(int64_t row, int64_t width) {
    sums_[row] = fold_wide(sums_ + row * width, width);
    squares_[row] = fold_wide(squares_ + row * width, width);
  }
  const void* results(int64_t count) {
    const auto elements = static_cast<double>(folded_elements(step_));
    for (int64_t i = 0; i < count; ++i) {
      const double total = squares_[i] - sums_[i] * sums_[i] / elements;
      results_[i] = narrowed((total < 0 ? 0.0 : total) * factor_of(step_));
    }
    return results_;
  }

 private:
  const Step& step_;
  bool is_first_ = true;
  double sums_[kTile], squares_[kTile];
  float shifts_[kTile], results_[kTile];
};

// The order of the operations behind an element of the result follows from the step alone, never from the core split.
template <class Results>
struct Reduction {
  const Step& step;
  const Elements &written, &read;
  const std::vector<Nest>& folded;
  Results running{step};
  const Domain domain = tile_op_of(step)->in;
  Tile fresh{};
  bool fits = true;

  void finish(const Place& place, int64_t count, int64_t stride) {
    fits &= written.encode(running.results(count), place.at[0], count, stride);
  }

  // Each lane folds by itself, one element after the other.
  void lane_by_lane(const Nest& kept) {
    std::vector<Loop> loops = kept.loops;
    const Loop lanes = take_closest(loops, 1);
    walk(loops, 0, start_of(kept), [&](const Place& row) {
      for (int64_t at = 0; at < lanes.count; at += kTile) {
        const int64_t count = std::min(kTile, lanes.count - at), batch = kTile / count;
        running.start(count);
        for (const Nest& nest : folded) {
          std::vector<Loop> outer = nest.loops;
          const Loop inner = take_last(outer);
          walk(outer, 0, row.step(lanes, at) + nest.offset, [&](const Place& place) {
            for (int64_t i = 0; i < inner.count; i += batch) {
              end_if_stopped();
              const int64_t several = std::min(batch, inner.count - i);
              read.decode_rows(fresh.bytes, place.step(inner, i).at[1], several, inner.stride[1], count,
                               lanes.stride[1]);
              running.begin_rows(fresh.bytes, count, 1, 1);
              for (int64_t j = 0; j < several; ++j) {
                running.add(0, fresh.at(domain, j * count), count);
                running.step();
              }
            }
          });
        }
        finish(row.step(lanes, at), count, lanes.stride[0]);
      }
    });
  }

  // `width` running results over all that is folded, which are folded at the end; several rows share a tile.
  void across_lanes(const Nest& kept, int64_t width) {
    std::vector<Loop> loops = kept.loops;
    const Loop rows = take_closest(loops, 1);
    walk(loops, 0, start_of(kept), [&](const Place& outer) {
      for (int64_t row = 0; row < rows.count; row += kTile / width) {
        const int64_t several = std::min(kTile / width, rows.count - row);
        running.start(several * width);
        for (const Nest& nest : folded)
          add_nest(nest, outer.step(rows, row) + nest.offset, several, rows.stride[1], width);
        for (int64_t i = 0; i < several; ++i) running.fold_lanes(i, width);
        finish(outer.step(rows, row), several, rows.stride[0]);
      }
    });
  }

  void add_nest(const Nest& nest, const Place& start, int64_t rows, int64_t row_stride, int64_t width) {
    std::vector<Loop> loops = nest.loops;
    std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
    std::stable_sort(loops.begin(), loops.end(),
                     [](const Loop& a, const Loop& b) { return a.stride[1] > b.stride[1]; });
    const Loop lanes = take_last(loops);
    walk(loops, 0, start, [&](const Place& place) {
      for (int64_t at = 0; at < lanes.count; at += width) {
        end_if_stopped();
        const int64_t count = std::min(width, lanes.count - at);
        read.decode_rows(fresh.bytes, place.step(lanes, at).at[1], rows, row_stride, count, lanes.stride[1]);
        running.begin_rows(fresh.bytes, rows, count, width);
        if (count == width)
          running.add(0, fresh.bytes, rows * width);
        else
          for (int64_t row = 0; row < rows; ++row) running.add(row * width, fresh.at(domain, row * count), count);
        running.step();
      }
    });
  }
};

template <class Results>
void run_reduction(const Step& step, int core, const std::vector<Elements>& operands) {
  const size_t rank = step.extents.size(), kept_rank = rank - static_cast<size_t>(step.reduced);
  const std::vector<Nest> folded = folded_nests(step, core);
  const Operand& read = step.operands[1];
  const auto is_lane = [&](size_t i) {
    return step.extents[i] > 1 && (read.stick == static_cast<int>(i) || read.strides[i] == operands[1].access.element);
  };
  bool lanes_kept =
      std::all_of(step.extents.end() - step.reduced, step.extents.end(), [](int64_t e) { return e == 1; });
  for (size_t i = 0; i < kept_rank; ++i) lanes_kept |= is_lane(i);
  const bool sticks_folded = read.stick >= static_cast<int>(kept_rank);
  const int64_t stick = sticks_folded ? elements_per_stick(read.format) : kLanes;
  const int64_t width = std::min(Results::kMostLanes, stick);

  if (folded.empty()) return;
  Reduction<Results> reduction{step, operands[0], operands[1], folded};
  for (Nest& kept : kept_nests(step, core)) {
    simplify(kept.loops, 2);
    lanes_kept ? reduction.lane_by_lane(kept) : reduction.across_lanes(kept, width);
  }
  if (!reduction.fits && step.checked) does_not_fit(step);
}

}  // namespace

void run_reduce(const Step& step, int core, const std::vector<std::byte*>& bases) {
  const std::vector<Elements> operands = operands_of(step, bases);
  if (sums_wide(step)) return run_reduction<WideResults>(step, core, operands);
  if (finds_variance(step)) return run_reduction<Variances>(step, core, operands);
  run_reduction<PlainResults>(step, core, operands);
}

}  // namespace spyre
