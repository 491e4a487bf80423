// The card as its host sees it: copies with layouts and views, peers, errors, memory.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "card/card.h"
#include "card/clock/work.h"
#include "card/program/step_work.h"
#include "tensors.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

std::mt19937 random_engine(23);
int64_t random_between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_engine);
}

}  // namespace

TEST("card: every type makes the way there and back") {
  Runtime runtime(options());
  for (int t = 0; t < kHostTypes; ++t) {
    const auto type = static_cast<HostType>(t);
    for (const Dims& size : {Dims{}, Dims{1}, Dims{100}, Dims{3, 200}, Dims{2, 5, 70}, Dims{2, 3, 4, 33}}) {
      Tensor tensor(runtime.card(0), type, size);
      std::vector<uint8_t> bytes(product(size) * host_bytes(type)), back(bytes.size());
      // Values that every conversion keeps: small exponents without a last bit, or 0 and 1.
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = type == HostType::Bool ? i % 2 : i % 2 ? 0x3c : 0x18;
      if (type == HostType::I64)
        for (int64_t i = 0; i < product(size); ++i) reinterpret_cast<int64_t*>(bytes.data())[i] = i * 1000 - 7;
      runtime.card(0).to_card(tensor.view(), {bytes.data(), type, size, contiguous_strides(size), {}}, 0, Wait::yes);
      runtime.card(0).to_host({back.data(), type, size, contiguous_strides(size), {}}, tensor.view(), 0, Wait::yes);
      if (back != bytes) std::printf("  %s, rank %zu\n", name(type), size.size());
      CHECK(back == bytes);
    }
  }
}

TEST("card: the bytes in memory are those of the layout and the card's format") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor tensor(card, HostType::F16, {2, 70});  // [2 tiles, 2 rows, 64]
  card.fill(tensor.view(), 0, 0);
  write(tensor, std::vector<uint16_t>(140, 0x3c00));  // one
  std::vector<uint16_t> raw(256);
  card.bytes_to_host(raw.data(), tensor.held(), 0, 512, 0);
  for (int i = 0; i < 256; ++i) {
    const int tile = i / 128, column = i % 64;
    if (tile * 64 + column < 70) CHECK(raw[i] == 31 << 9);
  }
}

TEST("card: views are written and read exactly, the rest stays") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  for (const Dims& order : {Dims{}, Dims{1, 0}, Dims{0, 1, -1}}) {
    Tensor tensor(card, HostType::F32, {40, 90}, order);
    for (int round = 0; round < 60; ++round) {
      std::vector<float> expected = floats(3600);
      write(tensor, expected);
      // A slice with steps, written from a transposed host view, filled in part, read back whole and as a view.
      const int64_t top = random_between(0, 39), left = random_between(0, 89), down = random_between(1, 3),
                    right = random_between(1, 3);
      const int64_t rows = (40 - top + down - 1) / down, columns = (90 - left + right - 1) / right;
      std::vector<float> patch = floats(rows * columns, 10000);
      const DeviceView view = tensor.view({rows, columns}, {90 * down, right}, top * 90 + left);
      card.to_card(view, {patch.data(), HostType::F32, {rows, columns}, {1, rows}, {}}, 0, Wait::yes);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) expected[(top + r * down) * 90 + left + c * right] = patch[c * rows + r];
      CHECK(read<float>(tensor) == expected);
      std::vector<float> back(rows * columns);
      card.to_host({back.data(), HostType::F32, {rows, columns}, {1, rows}, {}}, view, 0, Wait::yes);
      CHECK(back == patch);
      card.fill(view, bits(-1), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) expected[(top + r * down) * 90 + left + c * right] = -1;
      CHECK(read<float>(tensor) == expected);
    }
  }
}

TEST("card: explicit layouts survive the way there and back") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  const DataFormat format = DataFormat::IEEE_FP32;
  for (const Layout& layout : {Layout{{75, 32}, {32, 1}, format},                 // folded, sticks cross rows
                               Layout{{2, 50, 32}, {32, 60, 1}, format},          // padded
                               Layout{{3, 2, 40, 32}, {0, 32, 60, 1}, format},    // expanded
                               Layout{{40, 2, 32}, {60, 32, 1}, format},          // permuted
                               Layout{{20, 2, 2, 32}, {120, 32, 60, 1}, format},  // tiled twice
                               Layout{{60, 2, 32}, {1, 1920, 60}, format}}) {     // sticks along the rows
    check_layout(layout, {40, 60}, {60, 1});
    Tensor tensor(card, layout, HostType::F32, {40, 60});
    write(tensor, floats(2400));
    CHECK(read<float>(tensor) == floats(2400));
  }
  // Every replica is written.
  Tensor expanded(card, {{3, 1, 32}, {0, -1, 1}, format}, HostType::F32, {32});
  write(expanded, floats(32));
  std::vector<float> raw(96);
  card.bytes_to_host(raw.data(), expanded.held(), 0, 384, 0);
  for (int i = 0; i < 96; ++i) CHECK(raw[i] == static_cast<float>(i % 32));
}

TEST("card: copies on the card, between layouts, views and types") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor a(card, HostType::F32, {50, 70}), b(card, HostType::F32, {50, 70}, {1, 0}), c(card, HostType::F32, {70, 50});
  Tensor narrow(card, HostType::F16, {50, 70}), whole(card, HostType::I64, {50, 70});
  write(a, floats(3500));
  card.on_card(b.view(), a.view(), 0);
  CHECK(read<float>(b) == floats(3500));
  card.on_card(c.view({50, 70}, {1, 50}), b.view(), 0);  // into a transposed view
  card.on_card(a.view(), c.view({50, 70}, {1, 50}), 0);
  CHECK(read<float>(a) == floats(3500));
  card.on_card(a.view({50, 70}, {70, 1}), b.view({50, 70}, {0, 1}, 70), 0);  // a row, expanded
  const std::vector<float> rows = read<float>(a);
  for (int64_t i = 0; i < 3500; ++i) CHECK(rows[i] == static_cast<float>(70 + i % 70));
  card.on_card(whole.view(), a.view(), 0);
  CHECK(read<int64_t>(whole)[71] == 71);
  card.on_card(narrow.view(), whole.view(), 0);
  CHECK(read<uint16_t>(narrow)[0] == 0x5460);  // 70
}

TEST("card: a copy takes a restickify's time where the stick dimension changes") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor a(card, HostType::F32, {50, 70}), b(card, HostType::F32, {50, 70}, {1, 0}), c(card, HostType::F32, {70, 50}),
      column(card, HostType::F32, {50, 1});
  card.fill(a.view(), 0, 0);
  card.fill(c.view(), 0, 0);
  card.synchronize(0);
  const auto takes = [&](const DeviceView& to, const DeviceView& from, bool restickifies) {
    const Picoseconds before = card.engine().time(card.stream(1));
    card.on_card(to, from, 1);
    const int64_t bytes = product(to.size) * 4;
    return card.engine().time(card.stream(1)) - before == card.clock().kernel(move_of(bytes, bytes, 32, restickifies));
  };
  CHECK(takes(b.view(), a.view(), true));
  CHECK(takes(a.view(), c.view({50, 70}, {1, 50}), true));
  CHECK(takes(b.view(), c.view({50, 70}, {1, 50}), false));
  CHECK(takes(a.view({20, 70}, {70, 1}), a.view({20, 70}, {70, 1}, 30 * 70), false));
  CHECK(takes(column.view(), a.view({50, 1}, {70, 1}), false));
  card.synchronize(1);
}

TEST("card: copies between cards") {
  Runtime runtime(options(Mode::run, {0, 3}));
  CHECK(runtime.count() == 2 && runtime.card(1).physical() == 3);
  Card &one = runtime.card(0), &two = runtime.card(1);
  Tensor a(one, HostType::F32, {64, 96}), b(two, HostType::F32, {64, 96}, {1, 0});
  write(a, floats(64 * 96));
  two.on_card(b.view(), a.view(), 5);
  two.synchronize(5);
  CHECK(read<float>(b) == floats(64 * 96));
  CHECK(two.engine().time(two.stream(5)) == two.clock().host_transfer(64 * 96 * 4));
  CHECK_THROWS(runtime.card(2), Error, "invalid device index 2: this process sees 2 spyre cards");
}

TEST("card: memory that a peer still reads is not reused, and the allocator waits for it") {
  Options small = options(Mode::run, {0, 1});
  small.memory_gb = 1.0 / 1024;  // one MiB
  Runtime runtime(small);
  Card &one = runtime.card(0), &two = runtime.card(1);
  std::atomic<bool> released{false};
  two.callback(1, [&] { released.wait(false); });
  Tensor target(two, HostType::F32, {32});
  {
    Tensor source(one, HostType::F32, {6000, 32});  // 768000 bytes
    write(source, floats(6000 * 32));
    two.on_card(target.view(), source.view({32}, {1}, 32 * 5999), 1);
  }
  CHECK(one.memory().stats().pending_bytes == 768000);
  std::thread opener([&] { usleep(30000), released = true, released.notify_all(); });
  Tensor next(one, HostType::F32, {6000, 32});  // must wait for the other card's stream
  CHECK(released);
  write(next, std::vector<float>(6000 * 32, -1));
  two.synchronize(1);
  CHECK(read<float>(target) == floats(32, 32 * 5999));
  opener.join();
}

TEST("card: a freed block is reused only after the last use, whatever the stream") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::atomic<bool> open{false};
  card.callback(7, [&] { open.wait(false); });
  std::vector<float> back(32, 0), ones(32, 1);
  Block* freed = nullptr;
  {
    Tensor tensor(card, HostType::F32, {32});
    write(tensor, ones);
    card.to_host(host_view(back, HostType::F32, {32}), tensor.view(), 7, Wait::no);
    freed = tensor.block;
  }
  Tensor other(card, HostType::F32, {32});
  CHECK(other.block != freed);
  write(other, std::vector<float>(32, 2));
  open = true, open.notify_all();
  card.synchronize(7);
  CHECK(back == ones);
  Tensor again(card, HostType::F32, {32});
  CHECK(again.block == freed);
}

TEST("card: asynchronous copies from pinned memory keep it until they are done") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::atomic<bool> open{false};
  card.callback(1, [&] { open.wait(false); });
  Tensor tensor(card, HostType::F32, {32});
  Memory& pinned = runtime.pinned();
  Block* block = pinned.allocate(128);
  auto* values = static_cast<float*>(pinned.device_pointer(block));
  std::iota(values, values + 32, 5.0f);
  card.to_card(tensor.view(), {values, HostType::F32, {32}, {1}, {&pinned, block}}, 1, Wait::no);
  pinned.release(block);
  Block* next = pinned.allocate(128);
  CHECK(next != block);
  std::fill_n(static_cast<float*>(pinned.device_pointer(next)), 32, -1.0f);
  open = true, open.notify_all();
  card.synchronize(1);
  CHECK(read<float>(tensor) == floats(32, 5));
  pinned.release(next);
}

TEST("card: a value outside 32 bits is an error at the wait, and the stream works on") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor tensor(card, HostType::I64, {1000});
  std::vector<int64_t> values(1000, 5), wide = values;
  wide[777] = int64_t{1} << 31;
  CHECK_THROWS(write(tensor, wide), ValueRange, "a value does not fit int64 on the card, which keeps it in 32 bits");
  card.to_card(tensor.view(), host_view(wide, HostType::I64, {1000}), 4, Wait::no);
  CHECK_THROWS(card.synchronize(4), ValueRange, "int64");
  card.synchronize(4);
  card.to_card(tensor.view(), host_view(wide, HostType::I64, {1000}), 4, Wait::no);
  CHECK_THROWS(card.synchronize(), ValueRange, "int64");  // of all streams
  write(tensor, values);
  CHECK(read<int64_t>(tensor) == values);
}

TEST("card: reals saturate as int64") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor numbers(card, HostType::F32, {6}), whole(card, HostType::I64, {6});
  write(numbers, std::vector<float>{1.9f, 3e9f, -3e9f, INFINITY, -INFINITY, NAN});
  card.on_card(whole.view(), numbers.view(), 0);
  CHECK((read<int64_t>(whole) == std::vector<int64_t>{1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MIN}));
}

TEST("card: a blocking copy that another thread's error made skip says so") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::atomic<bool> open{false};
  Tensor bad(card, HostType::I64, {32}), good(card, HostType::I64, {32});
  std::vector<int64_t> wide(32, int64_t{1} << 40), values(32, 1);
  card.callback(0, [&] { open.wait(false); });
  card.to_card(bad.view(), host_view(wide, HostType::I64, {32}), 0, Wait::no);
  std::string first, second;
  const auto copy = [&](std::string& error) {
    try {
      card.to_card(good.view(), host_view(values, HostType::I64, {32}), 0, Wait::yes);
    } catch (const Error& raised) {
      error = raised.what();
    }
  };
  std::thread one(copy, std::ref(first)), two(copy, std::ref(second));
  while (card.progress().issued[0] < 4) std::this_thread::yield();
  open = true, open.notify_all();
  one.join(), two.join();
  if (first.find("does not fit") == std::string::npos) std::swap(first, second);
  CHECK(first.find("does not fit") != std::string::npos);
  CHECK(second.find("not carried out: earlier work on stream 0 failed") != std::string::npos);
}

TEST("card: views that do not fit their memory, layout or partner are refused") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor tensor(card, HostType::F16, {4, 64});
  std::vector<uint16_t> values(1024);
  const auto copy = [&](DeviceView to, HostView from) { card.to_card(to, from, 0, Wait::yes); };
  const HostView good = host_view(values, HostType::F16, {4, 64});
  copy(tensor.view(), good);
  CHECK_THROWS(copy(tensor.view(), host_view(values, HostType::F16, {64, 4})), Error, "equal sizes");
  CHECK_THROWS(copy(tensor.view(), host_view(values, HostType::BF16, {4, 64})), Error,
               "cannot copy bfloat16 into float16");
  DeviceView wrong = tensor.view();
  wrong.type = HostType::F32;
  CHECK_THROWS(card.fill(wrong, 0, 0), InvalidLayout, "float32 is IEEE_FP32 on the card");
  CHECK_THROWS(copy(tensor.view({5, 64}, {64, 1}), host_view(values, HostType::F16, {5, 64})), InvalidLayout,
               "no place");
  const Layout large = default_layout({8, 64}, {64, 1}, DataFormat::SEN169_FP16);
  DeviceView beyond = tensor.view();
  beyond.layout = &large;
  CHECK_THROWS(card.fill(beyond, 0, 0), InvalidLayout, "512 bytes of memory, too few");
  beyond.held.block = nullptr;
  CHECK_THROWS(card.fill(beyond, 0, 0), InvalidLayout, "no memory");
  CHECK_THROWS(card.bytes_to_host(values.data(), tensor.held(), 500, 13, 0), Error, "not all within a block of 512");
  CHECK_THROWS(card.bytes_to_card(tensor.held(), -1, values.data(), 1, 0), Error, "not all within");
  CHECK_THROWS(card.synchronize(-1), Error, "stream -1 does not exist");
  card.synchronize();
}

TEST("card: an interrupted blocking copy no longer touches the host's memory") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::atomic<bool> inside{false}, open{false};
  Tensor tensor(card, HostType::F32, {32});
  write(tensor, std::vector<float>(32, 3));
  card.callback(0, [&] {
    inside = true;
    open.wait(false);
  });
  std::vector<float> back(32, 1);
  while (!inside) std::this_thread::yield();  // or the copy below would help with the callback, and hang in it
  Runtime::interrupted = [] { return true; };
  CHECK_THROWS(card.to_host(host_view(back, HostType::F32, {32}), tensor.view(), 0, Wait::yes), Interrupted,
               "interrupted");
  Runtime::interrupted = nullptr;
  open = true, open.notify_all();
  card.synchronize();
  CHECK(back == std::vector<float>(32, 1));
}

TEST("card: what an interrupt dropped did not happen, and tensors without values say so") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::atomic<bool> inside{false}, open{false};
  Tensor old(card, HostType::F32, {32}), fresh(card, HostType::F32, {32}), partly(card, HostType::F32, {32});
  write(old, std::vector<float>(32, 3));
  card.callback(0, [&] {
    inside = true;
    open.wait(false);
  });
  while (!inside) std::this_thread::yield();
  card.fill(old.view(), 0, 0);
  card.on_card(fresh.view(), old.view(), 0);
  card.fill(partly.view(), 0, 1);  // another stream: carried out
  card.synchronize(1);
  card.on_card(partly.view(), fresh.view(), 0);
  card.engine().drop_all();
  open = true, open.notify_all();
  card.synchronize();
  CHECK(read<float>(old) == std::vector<float>(32, 3));
  CHECK(read<float>(partly) == std::vector<float>(32, 0));
  CHECK_THROWS(read<float>(fresh), Dropped, "has no values");
  CHECK_THROWS(card.on_card(old.view(), fresh.view(), 0), Dropped, "has no values");
  CHECK_THROWS(card.fill(fresh.view(), 0, 0), Dropped, "has no values");
  DeviceView whole = fresh.view();
  whole.whole = true;
  card.fill(whole, 0, 0);
  CHECK(read<float>(fresh) == std::vector<float>(32, 0));
}

TEST("card: empty tensors cost nothing and need no memory") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  const Layout layout = default_layout({5, 0}, {1, 1}, DataFormat::IEEE_FP32);
  const DeviceView nothing{{}, &layout, HostType::F32, {5, 0}, {1, 1}, 0};
  const HostView host{nullptr, HostType::F32, {5, 0}, {1, 1}, {}};
  card.to_card(nothing, host, 0, Wait::yes);
  card.to_host(host, nothing, 0, Wait::yes);
  card.on_card(nothing, nothing, 0);
  card.fill(nothing, 0, 0);
  CHECK(card.engine().time(card.stream(0)) == 0);
}

TEST("card: callbacks run in stream order, also behind an error") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  Tensor tensor(card, HostType::I64, {4});
  std::vector<int64_t> wide(4, int64_t{1} << 40);
  std::vector<int> order;
  card.callback(2, [&] { order.push_back(1); });
  card.to_card(tensor.view(), host_view(wide, HostType::I64, {4}), 2, Wait::no);
  card.callback(2, [&] { order.push_back(2); });
  CHECK_THROWS(card.synchronize(2), ValueRange, "int64");
  CHECK(order == std::vector<int>({1, 2}));
}

TEST("card: many threads copy at once") {
  Runtime runtime(options());
  Card& card = runtime.card(0);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 40; ++round) {
        const int64_t rows = 1 + (t * 7 + round * 13) % 60;
        Tensor a(card, HostType::F32, {rows, 77}), b(card, HostType::F32, {rows, 77}, {1, 0});
        const std::vector<float> values = floats(rows * 77, static_cast<float>(t * 1000));
        const int stream = t % 4;  // shared by some
        write(a, values, stream);
        card.on_card(b.view(), a.view(), stream);
        wrong += read<float>(b, stream) != values;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST("runtime: work still queued is finished before the cards go") {
  std::vector<float> back(32, 0);
  std::atomic<int> calls{0};
  {
    Runtime runtime(options());
    Card& card = runtime.card(0);
    Tensor tensor(card, HostType::F32, {32});
    write(tensor, floats(32));
    card.callback(1, [&] { usleep(10000), ++calls; });
    card.to_host(host_view(back, HostType::F32, {32}), tensor.view(), 1, Wait::no);
    card.callback(1, [&] { ++calls; });
  }
  CHECK(calls == 2 && back == floats(32));
}
