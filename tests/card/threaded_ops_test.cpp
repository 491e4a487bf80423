// Threaded ops against the conversions and tile operations that define what they do, on every instruction set this
// machine has.
#include "card/fusion/threaded_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "card/numeric/formats.h"
#include "card/numeric/tile_ops.h"
#include "testing.h"

namespace spyre::detail {
decltype(ThreadedOp::run) find_threaded_op(const char* simd, OpKind kind, Source source, Source addend = Source::splat);
decltype(ThreadedOp::run) end_of_ops(const char* simd);
void run_threaded_ops(const char* simd, const ThreadedOp* ops, const Area& area);
std::span<const TileOp> tile_ops(const char* simd);
}  // namespace spyre::detail

using namespace spyre;

namespace {

constexpr int64_t kElements = kTileRows * kRow;

struct Tile {
  alignas(64) float floats[kElements];
  alignas(64) uint16_t codes[kElements];
};

std::vector<const char*> levels() {
  std::vector<const char*> usable;
  for (const char* level : {"portable", "avx2", "avx512"})
    if (!detail::tile_ops(level).empty()) usable.push_back(level);
  return usable;
}

struct Ops {
  const char* simd;
  std::vector<ThreadedOp> ops{};
  Ops& add(OpKind kind, Source source, void* at = nullptr, int64_t row_stride = 0, bool canonical = false) {
    if (source == Source::splat) row_stride = sizeof(float);
    ops.push_back(
        {detail::find_threaded_op(simd, kind, source), static_cast<std::byte*>(at), row_stride, 128, canonical});
    return *this;
  }
  void run(int64_t rows = kTileRows, int64_t lanes = kRow) {
    ops.push_back({detail::end_of_ops(simd), nullptr, 0, 0, false});
    detail::run_threaded_ops(simd, ops.data(), {rows, 1, lanes});
  }
};

// Of all magnitudes, or in the middle, or with zeros, or around the smallest code.
void fill(Tile& tile, std::mt19937& random, int kind) {
  for (int64_t i = 0; i < kElements; ++i) {
    uint32_t bits = random();
    if (kind == 1) bits = (bits & 0x87ffffff) | 0x38000000;
    if (kind == 2 && i % 7 == 0) bits &= 0x80000000;
    if (kind == 3) bits = (bits & 0x80ffffff) | (0x2f + bits % 2) << 24;
    std::memcpy(tile.floats + i, &bits, sizeof(float));
  }
}

bool same(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

}  // namespace

TEST("threaded ops: every code is decoded as a cast decodes it") {
  for (const char* simd : levels())
    for (int base = 0; base < 65536; base += kElements) {
      Tile tile, wanted;
      for (int64_t i = 0; i < kElements; ++i) tile.codes[i] = static_cast<uint16_t>(base + i);
      device_cast(HostType::F16, HostType::F32)(wanted.floats, tile.codes, kElements);
      Ops{simd}
          .add(OpKind::load, Source::codes, tile.codes, 128)
          .add(OpKind::store, Source::floats, tile.floats, 256)
          .run();
      CHECK(same(tile.floats, wanted.floats, sizeof tile.floats));
    }
}

TEST("threaded ops: what is folded is folded in the order of sticks, one or two at a time") {
  constexpr int64_t kSticks = 6, kRows = 5;
  std::mt19937 random(4);
  for (const char* simd : levels())
    for (const auto& [kind, halves] : {std::pair{OpKind::fold_add, false},
                                       {OpKind::fold_add_halves, true},
                                       {OpKind::fold_mul, false},
                                       {OpKind::fold_mul_halves, true}}) {
      Tile tile;
      alignas(64) float given[kSticks * kRows * kRow], wanted[kRows * kRow];
      for (float& each : given) each = 0.5f + static_cast<float>(random() % 100000) * 0x1p-16f;
      std::fill_n(wanted, kRows * kRow, 0.75f);
      for (int64_t stick = 0; stick < kSticks; ++stick)
        for (int64_t row = 0; row < kRows; ++row)
          for (int64_t lane = 0; lane < kRow; ++lane) {
            float& sum = wanted[row * kRow + (halves ? lane % (kRow / 2) : lane)];
            const float x = given[(stick * kRows + row) * kRow + lane];
            sum = kind == OpKind::fold_add || kind == OpKind::fold_add_halves ? sum + x : sum * x;
          }
      for (const bool pairs : {false, true}) {
        std::fill_n(tile.floats, kRows * kRow, 0.75f);
        Ops run{simd};
        run.add(OpKind::load, Source::floats, given, 256).add(kind, Source::floats, tile.floats, 256);
        run.ops[0].stick_stride = kRows * kRow * 4;
        run.ops.push_back({detail::end_of_ops(simd), nullptr, 0, 0, false});
        detail::run_threaded_ops(simd, run.ops.data(), {kRows, kSticks, kRow, pairs});
        for (int64_t row = 0; row < kRows; ++row)
          CHECK(same(tile.floats + row * kRow, wanted + row * kRow, (halves ? 32 : 64) * sizeof(float)));
      }
    }
}

TEST("threaded ops: sums in fp64, of whole rows and of some lanes") {
  constexpr int64_t kSticks = 6, kRows = 5, kHalf = kRow / 2;
  std::mt19937 random(5);
  for (const char* simd : levels())
    for (const int64_t lanes : {int64_t{7}, kHalf, int64_t{45}, kRow}) {
      alignas(64) float given[kSticks * kRows * kRow];
      alignas(64) double sums[kRows * kHalf], wanted[kRows * kHalf];
      for (float& each : given) each = static_cast<float>(random() % 100000) * 0x1p-16f - 0.5f;
      std::fill_n(wanted, kRows * kHalf, 0.75);
      for (int64_t stick = 0; stick < kSticks; ++stick)
        for (int64_t row = 0; row < kRows; ++row)
          for (int64_t lane = 0; lane < lanes; ++lane)
            wanted[row * kHalf + lane % kHalf] += double(given[(stick * kRows + row) * kRow + lane]);
      for (const bool pairs : {false, true}) {
        std::fill_n(sums, kRows * kHalf, 0.75);
        Ops run{simd};
        run.add(OpKind::load, Source::floats, given, 256).add(OpKind::fold_wide_add, Source::floats, sums, 256);
        run.ops[0].stick_stride = kRows * kRow * 4;
        run.ops.push_back({detail::end_of_ops(simd), nullptr, 0, 0, false});
        detail::run_threaded_ops(simd, run.ops.data(), {kRows, kSticks, lanes, pairs && lanes == kRow});
        CHECK(same(sums, wanted, sizeof sums));
      }
    }
}

TEST("threaded ops: rounding and encoding give the bits of their definitions") {
  std::mt19937 random(1);
  for (const char* simd : levels())
    for (int attempt = 0; attempt < 400; ++attempt) {
      Tile tile, seen, wanted;
      fill(tile, random, attempt % 4);
      device_cast(HostType::F32, HostType::F16)(wanted.codes, tile.floats, kElements);
      Ops{simd}
          .add(OpKind::load, Source::floats, tile.floats, 256)
          .add(OpKind::store, Source::codes, seen.codes, 128)
          .run();
      CHECK(same(seen.codes, wanted.codes, sizeof seen.codes));

      std::memcpy(wanted.floats, tile.floats, sizeof wanted.floats);
      round_to_sen169(wanted.floats, kElements);
      Ops{simd}
          .add(OpKind::load, Source::floats, tile.floats, 256)
          .add(OpKind::round, Source::floats)
          .add(OpKind::store, Source::floats, seen.floats, 256)
          .run();
      CHECK(same(seen.floats, wanted.floats, sizeof seen.floats));
    }
}

TEST("threaded ops: exp and silu, short or not, give the bits of their definitions") {
  std::mt19937 random(5);
  for (const char* simd : levels())
    for (const char* name : {"exp", "silu"})
      for (const bool is_short : {false, true})
        for (int attempt = 0; attempt < 100; ++attempt) {
          Tile tile, seen, wanted;
          fill(tile, random, attempt % 4);
          if (attempt % 5 == 0)
            for (float& x : tile.floats) x = static_cast<float>(random() % 200001) * 1e-3f - 100;
          const void* in[] = {tile.floats};
          const TileOp* op = is_short ? find_short_op(name) : find_tile_op(name, Domain::real);
          op->run(wanted.floats, in, kElements, nullptr);
          Ops{simd}
              .add(OpKind::load, Source::floats, tile.floats, 256)
              .add(*unary_op_kind(name, is_short), Source::floats)
              .add(OpKind::canonical, Source::floats)
              .add(OpKind::store, Source::floats, seen.floats, 256)
              .run();
          CHECK(same(seen.floats, wanted.floats, sizeof seen.floats));
        }
}

TEST("threaded ops: operations of two, in both orders, from every source") {
  std::mt19937 random(2);
  const struct {
    const char* name;
    OpKind in_order, swapped;
  } ops[] = {{"add", OpKind::add, OpKind::add},           {"sub", OpKind::sub, OpKind::from},
             {"mul", OpKind::mul, OpKind::mul},           {"div", OpKind::div, OpKind::into},
             {"maximum", OpKind::maximum, OpKind::under}, {"minimum", OpKind::minimum, OpKind::over}};
  for (const char* simd : levels())
    for (const auto& op : ops)
      for (int attempt = 0; attempt < 12; ++attempt) {
        Tile x, y, seen, wanted;
        fill(x, random, attempt % 4);
        fill(y, random, (attempt + 1) % 4);
        const auto source = static_cast<Source>(attempt % 3);
        device_cast(HostType::F32, HostType::F16)(y.codes, y.floats, kElements);
        void* at = y.floats;
        int64_t stride = 256;
        if (source == Source::codes) {
          device_cast(HostType::F16, HostType::F32)(y.floats, y.codes, kElements);
          at = y.codes;
          stride = 128;
        } else if (source == Source::splat) {
          for (int64_t i = kElements; i-- > 0;) y.floats[i] = y.floats[i / kRow];
          for (int64_t row = 0; row < kTileRows; ++row) seen.floats[row] = y.floats[row * kRow];
          std::memcpy(y.codes, seen.floats, kTileRows * sizeof(float));
          at = y.codes;
        }
        for (const bool swapped : {false, true}) {
          const void* in[] = {swapped ? y.floats : x.floats, swapped ? x.floats : y.floats};
          find_tile_op(op.name, Domain::real)->run(wanted.floats, in, kElements, nullptr);
          Ops{simd}
              .add(OpKind::load, Source::floats, x.floats, 256)
              .add(swapped ? op.swapped : op.in_order, source, at, stride)
              .add(OpKind::canonical, Source::floats)
              .add(OpKind::store, Source::floats, seen.floats, 256)
              .run();
          CHECK(same(seen.floats, wanted.floats, sizeof seen.floats));
        }
      }
}

TEST("threaded ops: lanes that are not there are not written, and not folded") {
  std::mt19937 random(3);
  for (const char* simd : levels())
    for (const int64_t lanes : {1, 7, 31, 32, 33, 50, 63, 64})
      for (const int64_t rows : {1, 2, 5, 16}) {
        Tile tile, codes, copied, floats, sums, halves;
        fill(tile, random, 1);
        std::memset(&codes, 0xaa, sizeof codes);
        std::memset(&copied, 0xaa, sizeof copied);
        std::memset(&floats, 0xaa, sizeof floats);
        std::fill_n(sums.floats, kElements, 0.5f);
        std::fill_n(halves.floats, kElements, 0.5f);
        device_cast(HostType::F32, HostType::F16)(tile.codes, tile.floats, kElements);
        Ops{simd}
            .add(OpKind::load, Source::codes, tile.codes, 128)
            .add(OpKind::copy, Source::codes, copied.codes, 128)
            .add(OpKind::store, Source::codes, codes.codes, 128)
            .add(OpKind::store, Source::floats, floats.floats, 256)
            .add(OpKind::fold_add, Source::floats, sums.floats, 256)
            .add(OpKind::fold_add_halves, Source::floats, halves.floats, 256)
            .run(rows, lanes);
        for (int64_t i = 0; i < kElements; ++i) {
          const int64_t lane = i % kRow;
          const bool there = i / kRow < rows && lane < lanes;
          const float value = sen169_to_float(tile.codes[i]);
          CHECK(codes.codes[i] == (there ? tile.codes[i] : 0xaaaa));
          CHECK(copied.codes[i] == (there ? tile.codes[i] : 0xaaaa));
          CHECK(there ? floats.floats[i] == value : std::memcmp(floats.floats + i, "\xaa\xaa\xaa\xaa", 4) == 0);
          CHECK(sums.floats[i] == (there ? 0.5f + value : 0.5f));
          if (lane >= kRow / 2) continue;
          float half = there ? 0.5f + value : 0.5f;
          if (i / kRow < rows && lane + kRow / 2 < lanes) half += sen169_to_float(tile.codes[i + kRow / 2]);
          CHECK(halves.floats[i] == half);
        }
      }
}
