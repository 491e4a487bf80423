// Layouts: the published table, explicit layouts, and lower() against a definition by host coordinates.
#include "card/memory/layout.h"

#include <algorithm>
#include <random>

#include "card/kernels/copy_fill.h"
#include "testing.h"

using namespace spyre;

namespace {

constexpr DataFormat kF16 = DataFormat::SEN169_FP16;

Layout dense(const Dims& size, Dims order = {}, DataFormat format = kF16) {
  return default_layout(size, contiguous_strides(size), format, std::move(order));
}

bool is(const Layout& layout, const Dims& device_size, const Dims& stride_map) {
  const bool same = layout.device_size == device_size && layout.stride_map == stride_map;
  if (!same) std::printf("  got %s\n", layout.str().c_str());
  return same;
}

// A view of a host tensor; elements are numbered in the view's own order.
struct View {
  Dims size, strides;
  int64_t offset = 0;
};

Nest nest_of(const View& view, int side) {
  Nest nest;
  nest.offset[side] = view.offset;
  const Dims numbers = contiguous_strides(view.size);
  for (size_t i = 0; i < view.size.size(); ++i) {
    Loop loop{view.size[i], {0, 0}};
    loop.stride[side] = view.strides[i];
    loop.stride[1 - side] = numbers[i];
    nest.loops.push_back(loop);
  }
  return nest;
}

// Host offset of each element of a view, by its number.
std::vector<int64_t> host_offsets(const View& view) {
  std::vector<int64_t> offsets;
  for_each_element(nest_of(view, 0), 0, 1, [&](int64_t at) { offsets.push_back(at); });
  return offsets;
}

std::vector<int64_t> offsets_on(const Nest& nest, int side) {
  std::vector<int64_t> offsets;
  for_each_element(nest, side, 1, [&](int64_t at) { offsets.push_back(at); });
  return offsets;
}

// Every element of the view once, at the place that `place` gives for its host offset. Returns the pieces it took.
template <typename Place>
size_t check_lowered(const Layout& layout, const View& view, const Place& place, int side = 0) {
  const std::vector<int64_t> host = host_offsets(view);
  const std::vector<Nest> pieces = lower(places(layout), side, nest_of(view, side));
  std::vector<int> visits(host.size(), 0);
  int64_t wrong = 0;
  for (const Nest& piece : pieces) {
    const std::vector<int64_t> device = offsets_on(piece, side), number = offsets_on(piece, 1 - side);
    for (size_t i = 0; i < device.size(); ++i) {
      ++visits.at(number[i]);
      wrong += device[i] != place(host[number[i]]);
    }
  }
  const bool once = std::all_of(visits.begin(), visits.end(), [](int count) { return count == 1; });
  CHECK(once);
  CHECK(wrong == 0);
  if (!once || wrong) std::printf("  %s\n", layout.str().c_str());
  return pieces.size();
}

// The place of a host offset by the identity host_offset = dot(coordinates, stride_map), each stride's coordinate
// as large as it can be.
int64_t place_by_identity(const Layout& layout, int64_t host_offset) {
  struct Dimension {
    int64_t unit, stride;
  };
  std::vector<Dimension> dimensions;
  int64_t stride = 1;
  for (size_t i = layout.device_size.size(); i-- > 0;) {
    if (layout.device_size[i] > 1 && layout.stride_map[i] > 0) dimensions.push_back({layout.stride_map[i], stride});
    stride *= layout.device_size[i];
  }
  std::sort(dimensions.begin(), dimensions.end(), [](auto a, auto b) { return a.unit > b.unit; });
  int64_t at = 0;
  for (const auto& [unit, device_stride] : dimensions) {
    at += host_offset / unit * device_stride;
    host_offset %= unit;
  }
  return at;
}

size_t pieces_of(const Layout& layout, const View& view) {
  return check_lowered(layout, view, [&](int64_t offset) { return place_by_identity(layout, offset); });
}

std::mt19937 random_engine(7);
int64_t random_between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_engine);
}
bool chance(int in) { return random_between(1, in) == 1; }

}  // namespace

TEST("layout: the table of the default layout") {
  CHECK(is(dense({120}), {2, 64}, {64, 1}));
  CHECK(is(dense({1024, 256}), {4, 1024, 64}, {64, 256, 1}));
  CHECK(is(dense({5, 10, 200}), {10, 4, 5, 64}, {200, 64, 2000, 1}));
  CHECK(is(dense({5, 100, 150}), {100, 3, 5, 64}, {150, 64, 15000, 1}));
  CHECK(is(dense({512, 8, 240}), {8, 4, 512, 64}, {240, 64, 1920, 1}));
  CHECK(is(dense({512, 256}, {1, 0}), {8, 256, 64}, {16384, 1, 256}));
  CHECK(is(dense({512, 256}, {0, 1, -1}), {256, 1, 512, 64}, {1, -1, 256, -1}));
  CHECK(is(dense({}), {1, 64}, {-1, -1}));
}

TEST("layout: dimensions of one element have stride -1") {
  CHECK(is(dense({1}), {1, 64}, {-1, -1}));
  CHECK(is(dense({5}), {1, 64}, {-1, 1}));
  CHECK(is(dense({64}), {1, 64}, {-1, 1}));
  CHECK(is(dense({65}), {2, 64}, {64, 1}));
  CHECK(is(dense({7, 1}), {1, 7, 64}, {-1, 1, -1}));
  CHECK(is(dense({1, 130}), {3, 1, 64}, {64, -1, 1}));
  CHECK(is(dense({4, 1, 200}), {1, 4, 4, 64}, {-1, 64, 200, 1}));
  CHECK(is(dense({1, 6, 32}), {6, 1, 1, 64}, {32, -1, -1, 1}));
}

TEST("layout: the tiles of a given order keep their stride, be it one tile") {
  CHECK(is(dense({512, 8, 256}, {0, 2, 1}), {256, 1, 512, 64}, {1, 16384, 2048, 256}));
  CHECK(is(dense({4, 50}, {0, 1}), {1, 4, 64}, {64, 50, 1}));
  CHECK(is(dense({50}, {0}), {1, 64}, {64, 1}));
  CHECK(is(dense({7, 1}, {0, 1}), {1, 7, 64}, {-1, 1, -1}));  // nothing inside has a stride
  CHECK(is(dense({1, 130}, {0, 1}), {3, 1, 64}, {64, -1, 1}));
  CHECK(is(dense({4, 50}, {0, 1, -1}), {50, 1, 4, 64}, {1, -1, 50, -1}));
  CHECK(canonical(dense({512, 8, 256}, {0, 2, 1})).stride_map == Dims({1, -1, 2048, 256}));
  CHECK(canonical(dense({4, 50}, {0, 1})) == dense({4, 50}));
}

TEST("layout: one value per stick, in its lane 0") {
  const Layout single{{1, 60, 64}, {64, 1, 1}, kF16};
  check_layout(single, {60}, {1});
  CHECK(canonical(single).stride_map == Dims({-1, 1, -1}));
  const std::vector<Nest> nests = lower(places(single), 0, nest_of({{60}, {1}}, 0));
  CHECK(nests.size() == 1 && nests[0].loops.size() == 1 && nests[0].loops[0].stride[0] == 64);
  CHECK_THROWS(check_layout({{1, 59, 64}, {64, 1, 1}, kF16}, {60}, {1}), InvalidLayout, "coordinate 59");
  check_layout({{2, 64, 64}, {64, 1, 1}, kF16}, {128}, {1});
  check_layout({{4, 60, 64}, {60, 1, 1}, kF16}, {4, 60}, {60, 1});
}

TEST("layout: formats set the stick") {
  CHECK(is(dense({4, 100}, {}, DataFormat::IEEE_FP32), {4, 4, 32}, {32, 100, 1}));
  CHECK(is(dense({4, 300}, {}, DataFormat::SENINT8), {3, 4, 128}, {128, 300, 1}));
  CHECK(is(dense({}, {}, DataFormat::IEEE_INT32), {1, 32}, {-1, -1}));
  CHECK_THROWS(dense({4}, {}, DataFormat::IEEE_FP16), InvalidLayout, "IEEE_FP16");
}

TEST("layout: empty tensors") {
  CHECK(dense({0}).device_bytes() == 0);
  CHECK(dense({0, 5}).device_bytes() == 0);
  CHECK(dense({5, 0}).device_bytes() == 0);
  CHECK(lower(places(dense({5, 0})), 0, nest_of({{5, 0}, {1, 1}}, 0)).empty());
  check_layout(dense({5, 0}), {5, 0}, {1, 1});
}

TEST("layout: bytes, text and the shortcut that torch.empty takes") {
  CHECK(dense({2}).device_bytes() == 128);
  CHECK(dense({512, 256}).str() ==
        "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 256, 1], device_dtype=DataFormats.SEN169_FP16)");
  for (const Dims& size :
       {Dims{}, Dims{0}, Dims{1}, Dims{64}, Dims{65}, Dims{3, 200}, Dims{200, 3}, Dims{2, 0, 9}, Dims{4, 1, 7, 129}})
    for (DataFormat format : {kF16, DataFormat::IEEE_FP32, DataFormat::SENINT8})
      CHECK(default_layout_bytes(size.data(), size.size(), format) == dense(size, {}, format).device_bytes());
}

TEST("layout: malformed dim orders are refused") {
  CHECK_THROWS(dense({4, 5}, {0}), InvalidLayout, "dim_order [0]");
  CHECK_THROWS(dense({4, 5}, {0, 0}), InvalidLayout, "must name each");
  CHECK_THROWS(dense({4, 5}, {0, 2}), InvalidLayout, "must name each");
  CHECK_THROWS(dense({4, 5}, {-1, 0, 1}), InvalidLayout, "must name each");
  CHECK_THROWS(default_layout({4, 5}, {5}, kF16), InvalidLayout, "differ in rank");
}

TEST("layout: check_layout refuses what does not describe the tensor") {
  const auto check = [](Layout layout, Dims size) { check_layout(layout, size, contiguous_strides(size)); };
  check({{38, 64}, {64, 1}, kF16}, {40, 60});
  CHECK_THROWS(check({{37, 64}, {64, 1}, kF16}, {40, 60}), InvalidLayout, "coordinate 37 of a device dimension of 37");
  CHECK_THROWS(check({{40, 64}, {60, 2}, kF16}, {40, 60}), InvalidLayout, "between device coordinates");
  CHECK_THROWS(check({{4, 64}, {64, -1}, kF16}, {4, 64}), InvalidLayout, "between device coordinates");
  CHECK_THROWS(check({{4, 32}, {32, 1}, kF16}, {4, 32}), InvalidLayout, "one stick of 64");
  CHECK_THROWS(check({{4, 64}, {64}, kF16}, {4, 64}), InvalidLayout, "same rank");
  CHECK_THROWS(check({{-4, 64}, {64, 1}, kF16}, {4, 64}), InvalidLayout, "negative");
  CHECK_THROWS(check({{4, 64}, {-2, 1}, kF16}, {4, 64}), InvalidLayout, "below -1");
  CHECK_THROWS(check({{2, 2, 64}, {64, 64, 1}, kF16}, {2, 64}), InvalidLayout, "same host stride 64");
  CHECK_THROWS(check({{0, 64}, {64, 1}, kF16}, {1}), InvalidLayout, "no place for the elements");
  CHECK_THROWS(check({{1 << 30, 1 << 30, 1 << 30, 64}, {-1, -1, -1, 1}, kF16}, {64}), InvalidLayout, "larger than any");
  CHECK_THROWS(check({{4, 64}, {64, 1}, DataFormat::BOOL}, {4, 64}), InvalidLayout, "BOOL");
}

TEST("layout: explicit layouts place elements by the identity") {
  const auto whole = [](const Layout& layout, const Dims& size) {
    check_layout(layout, size, contiguous_strides(size));
    return pieces_of(layout, {size, contiguous_strides(size)});
  };
  CHECK(whole({{38, 64}, {64, 1}, kF16}, {40, 60}) == 2);               // folded: sticks cross rows
  CHECK(whole({{1, 50, 64}, {-1, 60, 1}, kF16}, {40, 60}) == 1);        // padded rows
  CHECK(whole({{3, 1, 40, 64}, {0, -1, 60, 1}, kF16}, {40, 60}) == 1);  // expanded
  CHECK(whole({{1024, 4, 64}, {256, 64, 1}, kF16}, {1024, 256}) == 1);  // permuted
  CHECK(whole({{2, 2, 2, 3, 64}, {64, 128, 768, 256, 1}, kF16}, {6, 256}) == 1);
  CHECK(whole({{4, 4, 64}, {256, 64, 1}, kF16}, {1024}) == 1);                           // a view of one dimension
  CHECK(whole({{8, 2, 4, 64, 64}, {64, 32768, 65536, 1, 512}, kF16}, {512, 512}) == 1);  // tiled twice
  const Layout replicas{{3, 1, 40, 64}, {0, -1, 60, 1}, kF16};
  CHECK(places(replicas).replicas.size() == 1 && places(replicas).replicas[0].device_stride == 40 * 64);
}

TEST("layout: a padded row's tail is not the next row") {
  const Layout padded{{1, 40, 64}, {-1, 60, 1}, kF16};
  // Host offset 60 is element (1, 0), not the padding at (0, 60).
  CHECK_THROWS(lower(places(padded), 0, nest_of({{1}, {1}, 40 * 60}, 0)), InvalidLayout, "coordinate 40");
  check_lowered(padded, {{2}, {1}, 59}, [](int64_t offset) { return offset == 59 ? 59 : 64; });
}

TEST("layout: common views take few pieces") {
  const Layout matrix = dense({1024, 256}), cube = dense({5, 10, 200}), odd = dense({300, 400});
  CHECK(pieces_of(matrix, {{1024, 256}, {256, 1}}) == 1);
  CHECK(pieces_of(matrix, {{256, 1024}, {1, 256}}) == 1);              // transposed
  CHECK(pieces_of(matrix, {{1024, 97}, {256, 1}, 3}) == 2);            // x[:, 3:100]
  CHECK(pieces_of(matrix, {{1024, 253}, {256, 1}, 3}) == 2);           // x[:, 3:]
  CHECK(pieces_of(matrix, {{1024, 200}, {256, 1}, 3}) == 3);           // x[:, 3:203]
  CHECK(pieces_of(matrix, {{72, 70}, {256, 1}, 5 * 256 + 130}) == 2);  // x[5:77, 130:200]
  CHECK(pieces_of(matrix, {{1024, 128}, {256, 2}}) == 1);              // x[:, ::2]
  CHECK(pieces_of(matrix, {{1024, 86}, {256, 3}}) <= 5);               // x[:, ::3]
  CHECK(pieces_of(matrix, {{342, 256}, {768, 1}}) == 1);               // x[::3]
  CHECK(pieces_of(matrix, {{262144}, {1}}) == 1);                      // flat
  CHECK(pieces_of(matrix, {{100000}, {1}, 777}) <= 7);                 // flat at an odd offset
  CHECK(pieces_of(matrix, {{256}, {257}}) == 1);                       // diagonal
  CHECK(pieces_of(cube, {{5, 10, 200}, {2000, 200, 1}}) == 2);
  CHECK(pieces_of(cube, {{50, 200}, {200, 1}}) == 2);   // flatten(0, 1)
  CHECK(pieces_of(cube, {{5, 2000}, {2000, 1}}) == 2);  // flatten(1, 2)
  CHECK(pieces_of(cube, {{10, 5, 200}, {200, 2000, 1}}) == 2);
  CHECK(pieces_of(odd, {{600, 200}, {200, 1}}) <= 6);          // view(600, 200)
  CHECK(pieces_of(dense({1000}), {{331, 10}, {3, 1}}) <= 80);  // unfold(0, 10, 3)
  CHECK(pieces_of(dense({}), {{7}, {0}}) == 1);                // a number, expanded
}

TEST("layout: an incommensurable view of a large tensor does not exhaust the stack") {
  // Every row is cut at another place: about one piece per row and crossing, without recursion.
  const Layout layout = dense({50021, 3});
  const View view{{3, 50021}, {50021, 1}};
  CHECK(pieces_of(layout, view) < 200);
  const Layout tall = dense({211, 20011});
  CHECK(lower(places(tall), 0, nest_of({{20011, 211}, {211, 1}}, 0)).size() < 10000);  // joined: one loop
  Nest crossed = nest_of({{20011, 211}, {211, 1}}, 0);
  crossed.loops[0].stride[1] = 1, crossed.loops[1].stride[1] = 20011;  // the other side runs the other way
  const size_t pieces = lower(places(tall), 0, crossed).size();
  CHECK(pieces > 20011 && pieces < 20011 * 8);
}

TEST("layout: the transfer that users see, in decreasing device stride") {
  std::vector<Nest> pieces = lower(places(dense({1024, 256})), 0, {{{1024, {256, 256}}, {256, {1, 1}}}, {0, 0}});
  CHECK(pieces.size() == 1);
  sort_by_stride(pieces[0], 0);
  const int64_t expected[3][3] = {{4, 65536, 64}, {1024, 64, 256}, {64, 1, 1}};
  CHECK(pieces[0].loops.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Loop& loop = pieces[0].loops[i];
    CHECK(loop.count == expected[i][0] && loop.stride[0] == expected[i][1] && loop.stride[1] == expected[i][2]);
  }
}

TEST("layout: simplified() keeps the points") {
  for (int round = 0; round < 500; ++round) {
    Nest nest;
    int64_t step = 1;
    for (int64_t i = random_between(0, 4); i > 0; --i) {
      const int64_t count = random_between(1, 4);
      nest.loops.push_back({count, {step, chance(3) ? 7 * step : step}});
      step *= count * (chance(3) ? 2 : 1);
    }
    std::shuffle(nest.loops.begin(), nest.loops.end(), random_engine);
    const auto points = [](const Nest& nest) {
      std::vector<std::pair<int64_t, int64_t>> points;
      const auto a = offsets_on(nest, 0), b = offsets_on(nest, 1);
      for (size_t i = 0; i < a.size(); ++i) points.emplace_back(a[i], b[i]);
      std::sort(points.begin(), points.end());
      return points;
    };
    const Nest simple = simplified(nest, 0);
    CHECK(simple.loops.size() <= nest.loops.size());
    CHECK(points(simple) == points(nest));
  }
  CHECK(simplified({{{3, {20, 20}}, {1, {9, 9}}, {4, {5, 5}}, {5, {1, 1}}}, {0, 0}}, 0).loops.size() == 1);
}

namespace {

// One host dimension, or several that lie densely one in another, taken as one.
struct Logical {
  int64_t size, stride;
};

// A device dimension: coordinate = index of a logical dimension / unit % extent.
struct Placed {
  int64_t dimension;  // -1: none, the coordinate is 0
  int64_t unit, extent, stride_map;
};

struct Case {
  Layout layout;
  Dims host_size, host_strides;
  std::vector<int64_t> place;  // device offset by host offset
};

Dims random_order(int64_t rank) {
  Dims order(rank);
  for (int64_t i = 0; i < rank; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random_engine);
  return order;
}

// A dense host tensor and an explicit layout, built together with each element's place.
Case random_case() {
  Case made;
  const int64_t rank = random_between(0, 4);
  made.host_size.resize(rank), made.host_strides.resize(rank);
  std::vector<Logical> logical;
  int64_t elements = 1;
  for (int64_t dim : random_order(rank)) {  // innermost in memory first
    const int64_t size = chance(6) ? 1 : random_between(2, chance(4) && elements < 100 ? 150 : 7);
    made.host_size[dim] = size, made.host_strides[dim] = elements;
    if (size > 1) {
      if (!logical.empty() && chance(4))
        logical.back().size *= size;  // folded into the next inner one
      else
        logical.push_back({size, elements});
    }
    elements *= size;
  }

  std::vector<Placed> placed;
  const int64_t stick = logical.empty() || chance(8) ? -1 : random_between(0, static_cast<int64_t>(logical.size()) - 1);
  for (int64_t d = 0; d < static_cast<int64_t>(logical.size()); ++d) {
    int64_t unit = d == stick ? 64 : 1, left = (logical[d].size + unit - 1) / unit;
    while (left > 2 && chance(3)) {  // tiled (again)
      const int64_t tile = random_between(2, left - 1);
      placed.push_back({d, unit, tile, logical[d].stride * unit});
      unit *= tile;
      left = (left + tile - 1) / tile;
    }
    if (left > 1) placed.push_back({d, unit, left + (chance(5) ? random_between(1, 3) : 0), logical[d].stride * unit});
  }
  if (chance(4)) placed.push_back({-1, 1, random_between(1, 3), -1});
  if (chance(4)) placed.push_back({-1, 1, random_between(2, 3), 0});
  std::shuffle(placed.begin(), placed.end(), random_engine);
  placed.push_back({stick, 1, 64, stick < 0 ? -1 : logical[stick].stride});

  made.layout.format = kF16;
  for (const Placed& p : placed) {
    made.layout.device_size.push_back(p.extent);
    made.layout.stride_map.push_back(p.extent == 1 ? -1 : p.stride_map);
  }
  for (int64_t offset = 0; offset < elements; ++offset) {
    int64_t at = 0;
    for (const Placed& p : placed) {
      const int64_t index = p.dimension < 0 ? 0 : offset / logical[p.dimension].stride % logical[p.dimension].size;
      at = at * p.extent + index / p.unit % p.extent;
    }
    made.place.push_back(at);
  }
  return made;
}

// What torch's view operations make of a whole tensor: slices with steps, transposes, windows, expansion.
View random_view(const Case& of) {
  View view{of.host_size, of.host_strides, 0};
  for (int64_t operations = random_between(0, 4); operations > 0; --operations) {
    const auto rank = static_cast<int64_t>(view.size.size());
    if (rank == 0 || chance(6)) {
      const int64_t at = random_between(0, rank);
      view.size.insert(view.size.begin() + at, random_between(1, 3));
      view.strides.insert(view.strides.begin() + at, 0);
      continue;
    }
    const int64_t dim = random_between(0, rank - 1), size = view.size[dim], stride = view.strides[dim];
    switch (random_between(0, 3)) {
      case 0: {  // slice
        const int64_t begin = random_between(0, size - 1), step = random_between(1, 3);
        view.offset += begin * stride;
        view.size[dim] = (random_between(begin + 1, size) - begin + step - 1) / step;
        view.strides[dim] = step * stride;
        break;
      }
      case 1: {  // transpose
        const int64_t other = random_between(0, rank - 1);
        std::swap(view.size[dim], view.size[other]);
        std::swap(view.strides[dim], view.strides[other]);
        break;
      }
      case 2: {  // unfold
        if (rank >= 6) break;
        const int64_t window = random_between(1, size), step = random_between(1, 3);
        view.size[dim] = (size - window) / step + 1;
        view.strides[dim] = step * stride;
        view.size.push_back(window);
        view.strides.push_back(stride);
        break;
      }
      default: {  // select
        view.offset += random_between(0, size - 1) * stride;
        view.size.erase(view.size.begin() + dim);
        view.strides.erase(view.strides.begin() + dim);
      }
    }
  }
  return view;
}

// as_strided, anywhere within the storage.
View random_window(int64_t elements) {
  View view;
  view.offset = random_between(0, elements - 1);
  int64_t room = elements - 1 - view.offset, count = 1;
  for (int64_t rank = random_between(0, 4); rank > 0; --rank) {
    const int64_t stride = random_between(0, std::max<int64_t>(1, room / (chance(2) ? 1 : 20)));
    const int64_t most = std::min<int64_t>(stride ? room / stride + 1 : 4, std::max<int64_t>(1, 4000 / count));
    const int64_t size = random_between(1, most);
    view.size.push_back(size);
    view.strides.push_back(stride);
    room -= (size - 1) * stride;
    count *= size;
  }
  return view;
}

}  // namespace

TEST("layout: lower() visits every element of random views once, at its place") {
  for (int round = 0; round < 6000; ++round) {
    const Case made = random_case();
    check_layout(made.layout, made.host_size, made.host_strides);
    const auto place = [&](int64_t offset) { return made.place[offset]; };
    const int side = static_cast<int>(random_between(0, 1));
    check_lowered(made.layout, {made.host_size, made.host_strides}, place, side);
    check_lowered(made.layout, random_view(made), place, side);
    check_lowered(made.layout, random_window(static_cast<int64_t>(made.place.size())), place, side);
  }
}

TEST("layout: lower() of default layouts in any order, sparse too") {
  for (int round = 0; round < 500; ++round) {
    const int64_t rank = random_between(1, 4);
    Dims size(rank);
    for (int64_t& extent : size) extent = random_between(1, 6);
    if (chance(2)) size[random_between(0, rank - 1)] = random_between(60, 140);
    const Dims strides = contiguous_strides(size);
    Dims order = random_order(rank);
    const bool sparse = chance(3);
    if (sparse) order.push_back(-1);
    const Layout layout = default_layout(size, strides, kF16, order);
    // The definition in words: o1 ... o(n-2), tiles of the last, o0, the stick of the last.
    const auto place = [&](int64_t offset) {
      const auto index = [&](int64_t dim) { return offset / strides[dim] % size[dim]; };
      const auto extent = [&](int64_t dim) { return size[dim]; };
      int64_t at = 0;
      for (size_t i = 1; i + 1 < order.size(); ++i) at = at * extent(order[i]) + index(order[i]);
      if (!sparse) at = at * ((extent(order.back()) + 63) / 64) + index(order.back()) / 64;
      if (order.size() > 1) at = at * extent(order[0]) + index(order[0]);
      return at * 64 + (sparse ? 0 : index(order.back()) % 64);
    };
    check_lowered(layout, {size, strides}, place);
    check_lowered(layout, random_window(product(size)), place);
  }
}
