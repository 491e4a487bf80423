// scan, argreduce and topk: rows are folded, several side by side.
#include <bit>
#include <cstring>
#include <functional>

#include "card/kernels/core_part.h"
#include "card/numeric/tile_math.h"

namespace spyre::indexed {

namespace {

constexpr int64_t kLanes = 64;  // rows side by side

// A block of decoded elements: `lanes` rows at `positions` places, tile[position * lanes + lane].
struct LaneBlock {
  size_t lane_axis, axis;
  int64_t first_lane, lanes, first, positions;
  int64_t place;  // of the block's first position among all that are folded
};

// Applies body(block, run of elements in memory, count, step, tile index, tile stride) along the better dimension.
template <typename Body>
void block_runs(const OperandWalk& side, const LaneBlock& block, int64_t base, const Body& body) {
  const AxisStride &across = side.strides[block.lane_axis], &stride = side.strides[block.axis];
  const int64_t lanes = block.lanes * (across.dense() ? 8 : 1), positions = block.positions * (stride.dense() ? 8 : 1);
  if (lanes > positions)
    for (int64_t i = 0; i < block.positions; ++i)
      even_runs(block.first_lane, block.lanes, kTile, {&across}, [&](int64_t lane, int64_t run) {
        body(base + stride.at(block.first + i) + across.at(lane), run, across.step(),
             i * block.lanes + lane - block.first_lane, 1);
      });
  else
    for (int64_t lane = 0; lane < block.lanes; ++lane)
      even_runs(block.first, block.positions, kTile, {&stride}, [&](int64_t at, int64_t run) {
        body(base + stride.at(at) + across.at(block.first_lane + lane), run, stride.step(),
             (at - block.first) * block.lanes + lane, block.lanes);
      });
}

template <typename Value>
void load(const OperandWalk& side, const LaneBlock& block, int64_t base, Value* tile) {
  block_runs(side, block, base, [&](int64_t at, int64_t run, int64_t step, int64_t index, int64_t stride) {
    if (stride == 1) return side.access.decode(tile + index, at, run, step);
    alignas(64) Value line[kTile];
    side.access.decode(line, at, run, step);
    for (int64_t i = 0; i < run; ++i) tile[index + i * stride] = line[i];
  });
}

template <typename Value>
bool store(const OperandWalk& side, const LaneBlock& block, int64_t base, const Value* tile) {
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
void fold_rows(CorePart& part, const Axes& kept, const Axes& folded, int64_t most, const Begin& begin, const Take& take,
               const End& end) {
  const OperandWalk& read = part.operands[1];
  const size_t lane_axis = part.longest(kept, {1}), axis = folded.back();
  const Axes rows = without(kept, lane_axis), outer = without(folded, axis);
  alignas(64) Value tile[kTile];
  part.walk(rows, [&] {
    even_runs(part.begin[lane_axis], part.count[lane_axis], most, {}, [&](int64_t first_lane, int64_t lanes) {
      LaneBlock block{lane_axis, axis, first_lane, lanes, 0, 0, 0};
      begin(lanes);
      part.walk(outer, [&] {
        even_runs(0, part.count[axis], kTile / lanes, {}, [&](int64_t first, int64_t positions) {
          end_if_stopped();
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
bool store_lanes(const CorePart& part, const LaneBlock& block, int64_t base, const int64_t* values) {
  const OperandWalk& written = part.operands[0];
  const AxisStride& stride = written.strides[block.lane_axis];
  bool fits = true;
  even_runs(block.first_lane, block.lanes, kLanes, {&stride}, [&](int64_t lane, int64_t run) {
    fits &= written.access.encode(values + (lane - block.first_lane), base + stride.at(lane), run, stride.step());
  });
  return fits;
}

// Running folds in fp64, of which every one is rounded by itself.
template <typename Fold>
void scan_wide(CorePart& part, const Fold& fold) {
  const size_t axis = part.none - 1;
  const Axes kept = part.axes(0, axis);
  double running[kLanes];
  fold_rows<float>(
      part, kept, {axis}, kLanes, [&](int64_t lanes) { std::fill_n(running, lanes, part.step.constants[0]); },
      [&](const LaneBlock& block, float* tile) {
        for (int64_t i = 0; i < block.positions; ++i)
          for (int64_t lane = 0; lane < block.lanes; ++lane) {
            float& value = tile[i * block.lanes + lane];
            running[lane] = fold(running[lane], double(value));
            value = narrowed(running[lane]);
          }
        store(part.operands[0], block, part.operands[0].at(part.point, without(kept, block.lane_axis)), tile);
      },
      [](const LaneBlock&) {});
}

template <typename Value>
void scan_of(CorePart& part) {
  const TileOp& op = *folding_op(part.step);
  const size_t axis = part.none - 1;
  const Axes kept = part.axes(0, axis);
  const Value start = std::is_same_v<Value, float> ? static_cast<Value>(part.step.constants[0])
                                                   : static_cast<Value>(integer_of(part.step.constants[0]));
  Value running[kLanes];
  bool fits = true;
  fold_rows<Value>(
      part, kept, {axis}, kLanes, [&](int64_t lanes) { std::fill_n(running, lanes, start); },
      [&](const LaneBlock& block, Value* tile) {
        const Value* before = running;
        for (int64_t i = 0; i < block.positions; ++i) {
          Value* const row = tile + i * block.lanes;
          const void* both[] = {before, row};
          op.run(row, both, block.lanes, nullptr);
          before = row;
        }
        std::copy_n(before, block.lanes, running);
        fits &= store(part.operands[0], block, part.operands[0].at(part.point, without(kept, block.lane_axis)), tile);
      },
      [](const LaneBlock&) {});
  part.check_fits(fits);
}

// The position of the largest or smallest element so far: of equal ones the last.
template <typename Value>
void scan_positions_of(CorePart& part) {
  const bool largest = part.step.function == "argmax";
  const size_t axis = part.none - 1;
  const Axes kept = part.axes(0, axis);
  Value best[kLanes];
  int64_t places[kLanes];
  alignas(64) int64_t found[kTile];
  fold_rows<Value>(
      part, kept, {axis}, kLanes, [](int64_t) {},
      [&](const LaneBlock& block, const Value* tile) {
        if (block.place == 0) {
          std::copy_n(tile, block.lanes, best);
          std::fill_n(places, block.lanes, 0);
        }
        for (int64_t i = 0; i < block.positions; ++i)
          for (int64_t lane = 0; lane < block.lanes; ++lane) {
            const Value value = tile[i * block.lanes + lane];
            const bool reached = largest ? value >= best[lane] : value <= best[lane];
            const bool better = reached | (value != value);  // nothing reaches NaN but another
            best[lane] = better ? value : best[lane];
            places[lane] = better ? block.place + i : places[lane];
            found[i * block.lanes + lane] = places[lane];
          }
        store(part.operands[0], block, part.operands[0].at(part.point, without(kept, block.lane_axis)), found);
      },
      [](const LaneBlock&) {});
}

template <typename Value>
void argreduce_of(CorePart& part) {
  const bool largest = part.step.function == "argmax";
  const size_t first = first_folded(part.step);
  const Axes kept = part.axes(0, first);
  Value best[kLanes];
  int64_t places[kLanes];
  fold_rows<Value>(
      part, kept, part.axes(first, part.none), kLanes, [](int64_t) {},
      [&](const LaneBlock& block, const Value* tile) {
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
      [&](const LaneBlock& block) {
        store_lanes(part, block, part.operands[0].at(part.point, without(kept, block.lane_axis)), places);
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
void topk_of(CorePart& part) {
  const Step& step = part.step;
  const size_t ranks = part.none - 2, axis = part.none - 1;
  const OperandWalk &written = part.operands[0], &read = part.operands[1];
  const Axes kept = part.axes(0, ranks);
  const bool values = step.function == "topkvalue";
  const uint32_t flip = step.constants[0] == 1 ? ~0u : 0;
  const int64_t n = part.count[axis], first = part.begin[ranks], count = part.count[ranks];
  const int64_t element = element_bytes(read.access.format), most = std::clamp<int64_t>((1 << 15) / n, 1, kLanes);
  // Order above, position below: comparing keys settles ties too.
  std::vector<uint64_t> keys;
  std::vector<int64_t> positions(count);

  const auto write = [&](int64_t lane_at, int64_t read_at) {
    const AxisStride& stride = written.strides[ranks];
    even_runs(first, count, count, {&stride}, [&](int64_t rank, int64_t run) {
      const int64_t at = lane_at + stride.at(rank);
      if (!values) return void(written.access.encode(&positions[rank - first], at, run, stride.step()));
      for (int64_t i = 0; i < run; ++i)
        std::memcpy(written.access.address + at + i * stride.step(),
                    read.access.address + read_at + read.strides[axis].at(positions[rank - first + i]), element);
    });
  };
  fold_rows<Value>(
      part, kept, {axis}, most, [&](int64_t lanes) { keys.resize(lanes * n); },
      [&](const LaneBlock& block, const Value* tile) {
        for (int64_t i = 0; i < block.positions; ++i)
          for (int64_t lane = 0; lane < block.lanes; ++lane)
            keys[lane * n + block.place + i] =
                uint64_t{rank_of(tile[i * block.lanes + lane], read.access.format) ^ flip} << 32 |
                static_cast<uint64_t>(block.place + i);
      },
      [&](const LaneBlock& block) {
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
          write(written.at(part.point, rows) + written.strides[block.lane_axis].at(at),
                read.at(part.point, rows) + read.strides[block.lane_axis].at(at));
        }
      });
}

bool reads_reals(const CorePart& part) { return part.operands[1].access.domain == Domain::real; }

}  // namespace

void scan(CorePart& part) {
  if (finds_positions(part.step))
    return reads_reals(part) ? scan_positions_of<float>(part) : scan_positions_of<int64_t>(part);
  if (reads_reals(part) && part.step.operands[0].format == DataFormat::IEEE_FP32) {
    const std::string& function = part.step.function;
    if (function == "add") return scan_wide(part, std::plus<>{});
    if (function == "mul") return scan_wide(part, std::multiplies<>{});
    if (function == "logaddexp") return scan_wide(part, math::wide_logaddexp);
  }
  reads_reals(part) ? scan_of<float>(part) : scan_of<int64_t>(part);
}
void argreduce(CorePart& part) { reads_reals(part) ? argreduce_of<float>(part) : argreduce_of<int64_t>(part); }
void topk(CorePart& part) { reads_reals(part) ? topk_of<float>(part) : topk_of<int64_t>(part); }

}  // namespace spyre::indexed
