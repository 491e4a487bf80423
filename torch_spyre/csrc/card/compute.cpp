#include "compute.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "matmul.h"

namespace spyre {

namespace {

constexpr int64_t kTile = 1024;  // elements: four fp32 operands take half of a 32 KiB cache
constexpr int64_t kLanes = 64;   // running results of a fold along the stick

HostType host_type_of(DataFormat format) {
  switch (format) {
    case DataFormat::SEN169_FP16:
      return HostType::F16;
    case DataFormat::SEN143_FP8:
      return HostType::F8E4M3;
    case DataFormat::SEN152_FP8:
      return HostType::F8E5M2;
    default:
      return HostType::F32;
  }
}

struct Tile {
  alignas(64) std::byte bytes[kTile * sizeof(int64_t)];
  void* at(Domain domain, int64_t element) {
    return bytes + element * static_cast<int64_t>(domain == Domain::real ? sizeof(float) : sizeof(int64_t));
  }
};

template <typename Stored>
void widen(int64_t* to, const std::byte* from, int64_t count, int64_t stride) {
  auto* values = reinterpret_cast<const Stored*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = values[i * stride];
}

template <typename Stored>
bool narrow(std::byte* to, const int64_t* from, int64_t count, int64_t stride) {
  auto* values = reinterpret_cast<Stored*>(to);
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    values[i * stride] = static_cast<Stored>(from[i]);
    fits &= from[i] == static_cast<int64_t>(values[i * stride]);
  }
  return fits;
}

template <typename Stored>
void spread_out(std::byte* to, const void* from, int64_t count, int64_t stride) {
  auto* values = reinterpret_cast<Stored*>(to);
  auto* packed = static_cast<const Stored*>(from);
  for (int64_t i = 0; i < count; ++i) values[i * stride] = packed[i];
}

template <typename Stored>
void gather(void* to, const std::byte* from, int64_t count, int64_t stride) {
  auto* packed = static_cast<Stored*>(to);
  auto* values = reinterpret_cast<const Stored*>(from);
  for (int64_t i = 0; i < count; ++i) packed[i] = values[i * stride];
}

// One operand of a step: how its elements are read and written.
struct Access {
  std::byte* base;
  DataFormat format;
  int64_t element;
  Domain domain;
  Convert decode_real, encode_real;

  Access(std::byte* base, DataFormat format)
      : base(base),
        format(format),
        element(element_bytes(format)),
        domain(domain_of(format)),
        decode_real(device_cast(host_type_of(format), HostType::F32)),
        encode_real(device_cast(HostType::F32, host_type_of(format))) {}

  void decode(void* to, int64_t at, int64_t count, int64_t stride) const {
    const std::byte* from = base + at * element;
    if (domain == Domain::real) return decode_reals(static_cast<float*>(to), from, count, stride);
    auto* values = static_cast<int64_t*>(to);
    switch (format) {
      case DataFormat::SENINT8:
        return widen<int8_t>(values, from, count, stride);
      case DataFormat::SENINT16:
        return widen<int16_t>(values, from, count, stride);
      case DataFormat::SENUINT32:
        return widen<uint32_t>(values, from, count, stride);
      default:
        return widen<int32_t>(values, from, count, stride);
    }
  }

  void decode_reals(float* to, const std::byte* from, int64_t count, int64_t stride) const {
    if (stride == 1) {
      decode_real(to, from, count);
    } else if (stride == 0) {
      decode_real(to, from, 1);
      std::fill_n(to + 1, count - 1, to[0]);
    } else {
      alignas(64) std::byte packed[kTile * sizeof(float)];
      element == 1   ? gather<uint8_t>(packed, from, count, stride)
      : element == 2 ? gather<uint16_t>(packed, from, count, stride)
                     : gather<uint32_t>(packed, from, count, stride);
      decode_real(to, packed, count);
    }
  }

  // False when an integer does not fit.
  bool encode(const void* from, int64_t at, int64_t count, int64_t stride) const {
    std::byte* to = base + at * element;
    if (domain == Domain::real) {
      if (stride == 1) return encode_real(to, from, count);
      alignas(64) std::byte packed[kTile * sizeof(float)];
      encode_real(packed, from, count);
      element == 1   ? spread_out<uint8_t>(to, packed, count, stride)
      : element == 2 ? spread_out<uint16_t>(to, packed, count, stride)
                     : spread_out<uint32_t>(to, packed, count, stride);
      return true;
    }
    const auto* values = static_cast<const int64_t*>(from);
    switch (format) {
      case DataFormat::SENINT8:
        return narrow<int8_t>(to, values, count, stride);
      case DataFormat::SENINT16:
        return narrow<int16_t>(to, values, count, stride);
      case DataFormat::SENUINT32: {  // uint8 in four bytes
        bool fits = true;
        auto* out = reinterpret_cast<uint32_t*>(to);
        for (int64_t i = 0; i < count; ++i) {
          out[i * stride] = static_cast<uint8_t>(values[i]);
          fits &= values[i] >= 0 && values[i] <= 255;
        }
        return fits;
      }
      default:
        return narrow<int32_t>(to, values, count, stride);
    }
  }
};

std::vector<Access> accesses(const Step& step, const std::vector<std::byte*>& bases) {
  std::vector<Access> all;
  for (size_t i = 0; i < step.operands.size(); ++i) all.emplace_back(bases[i], step.operands[i].format);
  return all;
}

bool empty(const std::vector<Loop>& loops) {
  return std::any_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.count == 0; });
}

// Drops loops of one, orders by the written side's stride, and joins neighbours where every side allows.
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

struct Place {
  int64_t at[kSides];
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

Loop take_last(std::vector<Loop>& loops) {
  if (loops.empty()) return {1, {}};
  const Loop last = loops.back();
  loops.pop_back();
  return last;
}

[[noreturn]] void does_not_fit(const Step& step) {
  throw ValueRange("a result of " + step.function + " does not fit the " +
                   std::to_string(8 * element_bytes(step.operands[0].format)) + " bits that the card keeps it in" +
                   (step.source.empty() ? "" : " (" + step.source + ")"));
}

}  // namespace

Domain domain_of(DataFormat format) {
  switch (format) {
    case DataFormat::SENINT8:
    case DataFormat::SENINT16:
    case DataFormat::IEEE_INT32:
    case DataFormat::SENUINT32:
      return Domain::integer;
    default:
      return Domain::real;
  }
}

const TileOp* tile_op_of(const Step& step) {
  return step.operands.size() < 2 ? nullptr : find_tile_op(step.function, domain_of(step.operands.back().format));
}

void run_elementwise(const Step& step, int core, const std::vector<std::byte*>& bases) {
  const TileOp& op = *tile_op_of(step);
  const std::vector<Access> operands = accesses(step, bases);
  Nest nest = core_nest(step, core);
  std::vector<Loop>& loops = nest.loops;
  if (empty(loops)) return;
  simplify(loops, operands.size());
  const Loop run = take_last(loops);   // along the written sticks
  const Loop rows = take_last(loops);  // several runs share a tile
  const int64_t length = std::min(run.count, kTile), batch = std::max<int64_t>(1, kTile / length);

  thread_local Tile tiles[kSides];
  const void* inputs[kSides];
  for (size_t i = 1; i < operands.size(); ++i) inputs[i - 1] = tiles[i].bytes;
  bool fits = true;
  const auto tile = [&](const Place& place, int64_t row_count, int64_t count) {
    for (size_t i = 1; i < operands.size(); ++i)
      for (int64_t row = 0; row < row_count; ++row)
        operands[i].decode(tiles[i].at(operands[i].domain, row * count), place.at[i] + row * rows.stride[i], count,
                           run.stride[i]);
    op.run(tiles[0].bytes, inputs, row_count * count, step.constants.data());
    for (int64_t row = 0; row < row_count; ++row)
      fits &= operands[0].encode(tiles[0].at(op.out, row * count), place.at[0] + row * rows.stride[0], count,
                                 run.stride[0]);
  };
  walk(loops, 0, start_of(nest), [&](const Place& place) {
    for (int64_t row = 0; row < rows.count; row += batch)
      for (int64_t at = 0; at < run.count; at += length)
        tile(place.step(rows, row).step(run, at), std::min(batch, rows.count - row), std::min(length, run.count - at));
  });
  if (!fits && step.checked) does_not_fit(step);
}

void run_reduce(const Step& step, int core, const std::vector<std::byte*>& bases) {
  const TileOp& op = *tile_op_of(step);
  const std::vector<Access> operands = accesses(step, bases);
  const Access &written = operands[0], &read = operands[1];
  const Nest nest = core_nest(step, core);
  if (empty(nest.loops)) return;
  std::vector<Loop> kept(nest.loops.begin(), nest.loops.end() - step.reduced);
  std::vector<Loop> folded(nest.loops.end() - step.reduced, nest.loops.end());
  simplify(kept, 2);
  std::erase_if(folded, [](const Loop& loop) { return loop.count == 1; });
  const bool real = op.in == Domain::real;
  thread_local Tile running, fresh;
  const void* both[] = {running.bytes, fresh.bytes};
  const auto begin = [&](int64_t count) {
    if (real)
      std::fill_n(reinterpret_cast<float*>(running.bytes), count, static_cast<float>(step.constants[0]));
    else
      std::fill_n(reinterpret_cast<int64_t*>(running.bytes), count, static_cast<int64_t>(step.constants[0]));
  };
  const auto add = [&](int64_t at, int64_t count, int64_t stride) {
    read.decode(fresh.bytes, at, count, stride);
    op.run(running.bytes, both, count, nullptr);
  };
  bool fits = true;

  // Where the sticks are kept, each lane folds by itself; where they are folded, 64 lanes do and are folded at the end.
  const bool lanes_kept = !kept.empty() && kept.back().stride[1] == 1;
  if (lanes_kept || folded.empty()) {
    const Loop lanes = take_last(kept);
    walk(kept, 0, start_of(nest), [&](const Place& row) {
      for (int64_t at = 0; at < lanes.count; at += kTile) {
        const int64_t count = std::min(kTile, lanes.count - at);
        begin(count);
        walk(folded, 0, row.step(lanes, at), [&](const Place& place) { add(place.at[1], count, lanes.stride[1]); });
        fits &= written.encode(running.bytes, row.step(lanes, at).at[0], count, lanes.stride[0]);
      }
    });
  } else {
    std::stable_sort(folded.begin(), folded.end(),
                     [](const Loop& a, const Loop& b) { return a.stride[1] > b.stride[1]; });
    const Loop lanes = take_last(folded);
    walk(kept, 0, start_of(nest), [&](const Place& point) {
      begin(kLanes);
      walk(folded, 0, point, [&](const Place& place) {
        for (int64_t at = 0; at < lanes.count; at += kLanes)
          add(place.step(lanes, at).at[1], std::min(kLanes, lanes.count - at), lanes.stride[1]);
      });
      if (real) {
        const float result = fold(op, reinterpret_cast<const float*>(running.bytes), kLanes);
        fits &= written.encode(&result, point.at[0], 1, 1);
      } else {
        for (int64_t width = kLanes / 2; width > 0; width /= 2) {
          const void* halves[] = {running.at(Domain::integer, 0), running.at(Domain::integer, width)};
          op.run(running.bytes, halves, width, nullptr);
        }
        fits &= written.encode(running.bytes, point.at[0], 1, 1);
      }
    });
  }
  if (!fits && step.checked) does_not_fit(step);
}

void run_matmul(const Step& step, int core, const std::vector<std::byte*>& bases) {
  Nest nest = core_nest(step, core);
  if (empty(nest.loops)) return;
  const size_t rank = nest.loops.size();
  const Loop m = nest.loops[rank - 3], n = nest.loops[rank - 2], k = nest.loops[rank - 1];
  nest.loops.resize(rank - 3);
  const MatmulShape shape{m.count, n.count, k.count, step.transposed, false};
  const auto matrix = [&](size_t i, const Place& place, const Loop& rows, const Loop& sticks) {
    const DataFormat format = step.operands[i].format;
    return StickMatrix{bases[i] + place.at[i] * element_bytes(format), format, rows.stride[i], sticks.stride[i]};
  };
  walk(nest.loops, 0, start_of(nest), [&](const Place& place) {
    matmul(matrix(0, place, m, n), matrix(1, place, m, k),
           step.transposed ? matrix(2, place, n, k) : matrix(2, place, k, n), shape);
  });
}

}  // namespace spyre
