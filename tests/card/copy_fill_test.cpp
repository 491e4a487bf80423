// copy_nest and fill_nest against naive loops.
#include "card/kernels/copy_fill.h"

#include <cstring>
#include <random>

#include "testing.h"

using namespace spyre;

namespace {

std::mt19937 random_engine(11);
int64_t random_between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_engine);
}
bool chance(int in) { return random_between(1, in) == 1; }

struct Conversion {
  const char* name;
  int64_t to_bytes, from_bytes;
  Convert convert;
};

std::vector<Conversion> conversions() {
  const auto in = [](HostType type) {
    return Conversion{name(type), element_bytes(format_of(type)), host_bytes(type), host_to_device(type)};
  };
  const auto out = [](HostType type) {
    return Conversion{name(type), host_bytes(type), element_bytes(format_of(type)), device_to_host(type)};
  };
  return {in(HostType::F16),   out(HostType::F16), in(HostType::F32), in(HostType::I8),  in(HostType::Bool),
          out(HostType::Bool), in(HostType::U8),   out(HostType::U8), out(HostType::I64)};
}

// Bytes of a nest's two sides: the written one begins `to_shift` bytes behind a cache line, the read one anywhere.
struct Sides {
  std::vector<std::byte> to, from;
  int64_t shift[2];

  static int64_t reach(const Nest& nest, int side) {
    int64_t last = nest.offset[side];
    for (const Loop& loop : nest.loops) last += std::max<int64_t>(0, (loop.count - 1) * loop.stride[side]);
    return last + 1;
  }
  Sides(const Nest& nest, const Conversion& by, int64_t to_shift, int64_t from_shift)
      : to(reach(nest, 0) * by.to_bytes + to_shift + 128, std::byte{0xa5}),
        from(reach(nest, 1) * by.from_bytes + from_shift + 64),
        shift{to_shift + 63 - (reinterpret_cast<intptr_t>(to.data()) + 63) % 64, from_shift} {
    uint32_t state = 12345;
    for (std::byte& byte : from) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  }
  ElementPointer target(std::vector<std::byte>& bytes, const Conversion& by) const {
    return {bytes.data() + shift[0], by.to_bytes};
  }
  ElementPointer source(const Conversion& by) { return {from.data() + shift[1], by.from_bytes}; }
};

std::vector<int64_t> offsets(const Nest& nest, int side) {
  std::vector<int64_t> result;
  for_each_element(nest, side, 1, [&](int64_t at) { result.push_back(at); });
  return result;
}

std::vector<std::byte> naive_copy(const Nest& nest, Sides& sides, const Conversion& by) {
  std::vector<std::byte> expected = sides.to;
  const ElementPointer to = sides.target(expected, by), from = sides.source(by);
  const std::vector<int64_t> to_at = offsets(nest, 0), from_at = offsets(nest, 1);
  for (size_t i = 0; i < to_at.size(); ++i)
    by.convert(to.base + to_at[i] * by.to_bytes, from.base + from_at[i] * by.from_bytes, 1);
  return expected;
}

bool copies(Engine& engine, const Nest& nest, const Conversion& by, int64_t to_shift = 0, int64_t from_shift = 0) {
  Sides sides(nest, by, to_shift, from_shift);
  const std::vector<std::byte> expected = naive_copy(nest, sides, by);
  const bool good = copy_nest(engine, nest, sides.target(sides.to, by), sides.source(by), by.convert);
  const bool same = good && sides.to == expected;
  if (!same) {
    std::printf("  %s, %d threads, from", by.name, engine.threads());
    for (const Loop& loop : nest.loops)
      std::printf(" %ld(%ld, %ld)", long(loop.count), long(loop.stride[0]), long(loop.stride[1]));
    std::printf("\n");
  }
  return same;
}

// Written places are distinct; what is read may overlap, repeat or run backwards.
Nest random_nest(int64_t most) {
  Nest nest;
  int64_t elements = 1;
  for (int64_t rank = random_between(0, 5); rank > 0; --rank) {
    const int64_t count =
        random_between(1, std::max<int64_t>(1, chance(3) ? most / elements : std::min<int64_t>(most / elements, 9)));
    nest.loops.push_back({count, {0, 0}});
    elements *= count;
  }
  for (int side : {0, 1}) {
    std::shuffle(nest.loops.begin(), nest.loops.end(), random_engine);
    int64_t step = 1;
    for (Loop& loop : nest.loops) {
      if (chance(4)) step += random_between(0, 3) * (chance(2) ? 1 : 32);
      loop.stride[side] = step;
      step *= loop.count;
      if (side == 1 && chance(8)) loop.stride[1] = 0;
      if (chance(10)) {
        nest.offset[side] += (loop.count - 1) * loop.stride[side];
        loop.stride[side] = -loop.stride[side];
      }
    }
    nest.offset[side] += random_between(0, 5);
  }
  std::shuffle(nest.loops.begin(), nest.loops.end(), random_engine);
  return nest;
}

// Host rows of `columns` and sticks [tiles][rows][stick]; rows x columns elements, tiles whole.
Nest tiling(int64_t rows, int64_t columns, int64_t stick, int device_side) {
  Nest nest;
  for (const auto& [count, device, host] :
       {std::array<int64_t, 3>{columns / stick, rows * stick, stick}, {rows, stick, columns}, {stick, 1, 1}}) {
    Loop loop{count, {host, host}};
    loop.stride[device_side] = device;
    nest.loops.push_back(loop);
  }
  return nest;
}

}  // namespace

TEST("transfer: random copies equal the naive loop") {
  for (int threads : {1, 3}) {
    Engine engine(threads, false);
    for (const Conversion& by : conversions())
      for (int round = 0; round < 150; ++round) {
        const Nest nest = random_nest(3000);
        CHECK(copies(engine, nest, by, chance(3) ? 1 : 0, chance(3) ? random_between(0, 9) : 0));
      }
  }
}

TEST("transfer: tiling and back, odd sizes") {
  Engine engine(2, false);
  for (const Conversion& by : conversions())
    for (int side : {0, 1})
      for (int64_t rows : {1, 2, 7, 8, 9, 65})
        for (int64_t tiles : {1, 3, 64, 67}) CHECK(copies(engine, tiling(rows, tiles * 32, 32, side), by));
}

TEST("transfer: transposition of every element size, whole blocks and rests") {
  Engine engine(1, false);
  for (const Conversion& by : conversions())
    for (int64_t rows : {1, 2, 7, 8, 16, 63, 64, 65, 130})
      for (int64_t columns : {1, 3, 8, 31, 64, 100}) {
        CHECK(copies(engine, {{{rows, {1, columns}}, {columns, {rows, 1}}}, {0, 0}}, by));
        CHECK(copies(engine, {{{rows, {1, columns + 3}}, {columns, {rows + 5, 1}}}, {2, 1}}, by, 0, 1));
        CHECK(copies(engine, {{{rows, {2, columns * 3}}, {columns, {rows * 2 + 1, 3}}}, {0, 0}}, by));
      }
}

TEST("transfer: copies past the cache") {
  // More than 16 MiB, and no count is a multiple of a block.
  const Conversion in = conversions()[0], out = conversions()[1], wide = conversions()[2], bytes = conversions()[3];
  Engine one(1, false), two(2, false);
  for (Engine* engine : {&one, &two}) {
    CHECK(copies(*engine, tiling(2049, 64 * 67, 64, 0), in));
    CHECK(copies(*engine, tiling(2049, 64 * 67, 64, 1), out));
  }
  CHECK(copies(two, {{{2112, {1, 4099}}, {4099, {2112, 1}}}, {0, 0}}, in));  // transposed
  CHECK(copies(one, {{{2112, {1, 2051}}, {2051, {2112, 1}}}, {0, 0}}, wide));
  CHECK(copies(one, {{{4224, {1, 4099}}, {4099, {4224, 1}}}, {0, 0}}, bytes));
  // What must not be streamed: rows or starts that are not on a cache line, columns that do not follow on in a row.
  CHECK(copies(one, tiling(2049, 64 * 67, 64, 0), in, 2));
  CHECK(copies(one, {{{67, {64, 2049 * 64}}, {2049, {67 * 64 + 1, 64}}, {64, {1, 1}}}, {0, 0}}, out));
  CHECK(copies(one, {{{67, {2049 * 64, 80}}, {2049, {64, 67 * 80}}, {64, {1, 1}}}, {0, 0}}, in));
}

TEST("transfer: large copies in parallel") {
  Engine engine(4, false);
  const Conversion by = conversions()[0];
  CHECK(copies(engine, {{{3000001, {1, 1}}}, {1, 3}}, by));                               // one run
  CHECK(copies(engine, {{{1999, {1, 1001}}, {1001, {1999, 1}}}, {0, 0}}, by));            // transposed
  CHECK(copies(engine, {{{700001, {3, 2}}}, {0, 0}}, by));                                // strided both ways
  CHECK(copies(engine, {{{5003, {64, 3}}, {3, {1, 1}}}, {0, 0}}, by));                    // short runs
  CHECK(copies(engine, {{{300, {6400, 0}}, {100, {64, 0}}, {64, {1, 0}}}, {0, 0}}, by));  // one element everywhere
}

TEST("transfer: nothing to do, one element") {
  Engine engine(1, false);
  const Conversion by = conversions()[0];
  CHECK(copies(engine, {{}, {3, 4}}, by));
  CHECK(copies(engine, {{{0, {1, 1}}}, {0, 0}}, by));
  CHECK(copies(engine, {{{4, {1, 1}}, {0, {9, 9}}}, {0, 0}}, by));
  CHECK(copies(engine, {{{1, {7, 7}}, {1, {0, 0}}}, {2, 1}}, by));
}

TEST("transfer: a value that does not fit is reported from any block and thread") {
  const Convert convert = host_to_device(HostType::I64);
  for (int threads : {1, 4}) {
    Engine engine(threads, false);
    for (const Nest& nest : {Nest{{{200000, {1, 1}}}, {0, 0}}, Nest{{{400, {1, 500}}, {500, {400, 1}}}, {0, 0}},
                             tiling(2000, 96, 32, 0)}) {
      std::vector<int64_t> from(Sides::reach(nest, 1), 5);
      std::vector<int32_t> to(Sides::reach(nest, 0));
      const auto copy = [&] {
        return copy_nest(engine, nest, {reinterpret_cast<std::byte*>(to.data()), 4},
                         {reinterpret_cast<std::byte*>(from.data()), 8}, convert);
      };
      CHECK(copy());
      for (size_t at : {size_t{0}, from.size() / 2, from.size() - 1}) {
        from[at] = int64_t{1} << 31;
        CHECK(!copy());
        from[at] = -(int64_t{1} << 31);
        CHECK(copy());
      }
    }
  }
}

TEST("transfer: fills") {
  for (int threads : {1, 3}) {
    Engine engine(threads, false);
    for (int64_t bytes : {1, 2, 4, 8})
      for (int round = 0; round < 200; ++round) {
        const Nest nest = round < 2 ? Nest{{{400001, {round + 1, 0}}}, {3, 0}} : random_nest(4000);
        const Conversion by{"fill", bytes, 1, nullptr};
        Sides sides(nest, by, chance(3) ? 1 : 0, 0);
        const uint64_t element = 0x1122334455667788;
        std::vector<std::byte> expected = sides.to;
        for (int64_t at : offsets(nest, 0)) std::memcpy(sides.target(expected, by).base + at * bytes, &element, bytes);
        fill_nest(engine, nest, sides.target(sides.to, by), &element);
        CHECK(sides.to == expected);
      }
  }
}

TEST("transfer: for_each_element gives byte offsets in loop order") {
  std::vector<int64_t> seen;
  for_each_element({{{2, {10, 0}}, {3, {-1, 5}}}, {4, 0}}, 0, 2, [&](int64_t at) { seen.push_back(at); });
  CHECK(seen == std::vector<int64_t>({8, 6, 4, 28, 26, 24}));
  CHECK(offsets({{}, {7, 8}}, 1) == std::vector<int64_t>({8}));
  CHECK(offsets({{{3, {1, 1}}, {0, {1, 1}}}, {0, 0}}, 0).empty());
}
