// Run, timing and strict mode: the same times, no memory, no undefined behaviour.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "card/card.h"
#include "tensors.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

// A mixture of everything, on several streams; returns every modelled time on the way.
std::vector<Picoseconds> script(Runtime& runtime) {
  Card &card = runtime.card(0), &peer = runtime.card(1);
  Engine& engine = runtime.engine();
  Tensor a(card, HostType::F16, {300, 500}), b(card, HostType::F16, {300, 500}, {1, 0}),
      c(card, HostType::F16, {500, 300}), far(peer, HostType::F16, {300, 500}), whole(card, HostType::I64, {300, 500});
  std::vector<uint16_t> values(150000, 0x3c00);
  std::vector<Event> events(6);
  std::vector<Picoseconds> times;
  card.to_card(a.view(), host_view(values, HostType::F16, {300, 500}), 1, Wait::yes);
  engine.record(card.stream(1), events[0]);
  card.on_card(b.view(), a.view(), 1);
  engine.record(card.stream(1), events[1]);
  engine.wait_event(card.stream(2), events[0]);
  card.on_card(c.view({300, 500}, {1, 300}), a.view(), 2);
  engine.wait_event(card.stream(2), events[1]);
  card.fill(a.view({100, 20}, {500, 1}, 3), 31 << 9, 2);
  engine.record(card.stream(2), events[2]);
  engine.wait_event(peer.stream(0), events[2]);
  peer.on_card(far.view(), a.view(), 0);
  engine.record(peer.stream(0), events[3]);
  engine.wait_event(card.stream(1), events[3]);
  card.on_card(whole.view(), a.view(), 1);
  card.to_host(host_view(values, HostType::F16, {300, 500}), b.view(), 1, Wait::yes);
  card.bytes_to_card(a.held(), 0, values.data(), 4096, 1);
  card.bytes_to_host(values.data(), a.held(), 0, 4096, 1);
  engine.record(card.stream(1), events[4]);
  card.synchronize(), peer.synchronize();
  for (const Event& event : events)
    if (event.record) times.push_back(event.record->time);
  for (int id : {0, 1, 2}) times.push_back(engine.time(card.stream(id)));
  return times;
}

int64_t resident_kilobytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

}  // namespace

TEST("card: timing and strict mode give exactly run mode's times") {
  Runtime run(options(Mode::run, {0, 1})), timing(options(Mode::timing, {0, 1})), strict(options(Mode::strict, {0, 1}));
  const std::vector<Picoseconds> expected = script(run);
  CHECK(std::all_of(expected.begin(), expected.begin() + 5, [](Picoseconds time) { return time > 0; }));
  CHECK(script(timing) == expected);
  CHECK(script(strict) == expected);
}

TEST("card: timing mode commits no memory, and reads zeros") {
  Options large = options(Mode::timing);
  large.memory_gb = 0;
  Runtime runtime(large);
  Card& card = runtime.card(0);
  const int64_t before = resident_kilobytes();
  {
    // 40 GB of weights, filled, copied and moved.
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (int i = 0; i < 20; ++i)
      tensors.push_back(std::make_unique<Tensor>(card, HostType::F16, Dims{1 << 15, 1 << 15}));
    for (auto& tensor : tensors) card.fill(tensor->view(), 0x3e00, 0);
    card.on_card(tensors[0]->view(), tensors[1]->view(), 0);
    card.synchronize();
    CHECK(card.engine().time(card.stream(0)) > 200'000'000'000);  // 42 GB at 150 GB/s: 0.28 s
  }
  CHECK(resident_kilobytes() - before < 20000);
  Tensor tensor(card, HostType::I64, {10, 10});
  write(tensor, std::vector<int64_t>(100, 3));
  CHECK(read<int64_t>(tensor) == std::vector<int64_t>(100, 0));
  std::vector<int64_t> column(20, 9);
  card.to_host({column.data(), HostType::I64, {10}, {2}, {}}, tensor.view({10}, {10}), 0, Wait::no);
  for (int i = 0; i < 20; ++i) CHECK(column[i] == (i % 2 ? 9 : 0));
  card.to_host({nullptr, HostType::I64, {10, 10}, {10, 1}, {}}, tensor.view(), 0, Wait::yes);  // the time alone
}

TEST("card: strict mode finds reads of memory that was never written") {
  Runtime runtime(options(Mode::strict, {0, 1}));
  Card &card = runtime.card(0), &peer = runtime.card(1);
  Tensor a(card, HostType::F32, {4, 40}), b(card, HostType::F32, {4, 40}), far(peer, HostType::F32, {4, 40});
  std::vector<float> row(40, 2), back(160);
  CHECK_THROWS(read<float>(a), UndefinedBehavior, "a copy to the host read device memory that was never written");
  CHECK_THROWS((card.on_card(b.view(), a.view(), 0), card.synchronize(0)), UndefinedBehavior,
               "a copy on the card read");
  CHECK_THROWS((card.on_card(b.view(), far.view(), 0), card.synchronize(0)), UndefinedBehavior,
               "a copy on the card read");
  // One row is there, the others are not.
  const DeviceView second = a.view({40}, {1}, 40);
  card.to_card(second, host_view(row, HostType::F32, {40}), 0, Wait::yes);
  card.to_host(host_view(row, HostType::F32, {40}), second, 0, Wait::yes);
  peer.on_card(far.view({40}, {1}), second, 0);
  peer.synchronize(0);
  card.on_card(b.view({40}, {1}, 80), far.view({40}, {1}), 0);
  card.synchronize(0);
  CHECK_THROWS(read<float>(a), UndefinedBehavior, "never written");
  card.fill(a.view(), bits(1), 0);
  CHECK(read<float>(a) == std::vector<float>(160, 1));
  // Fresh memory forgets what the last owner wrote.
  Block* old = nullptr;
  {
    Tensor shortlived(card, HostType::F32, {1000});
    write(shortlived, floats(1000));
    old = shortlived.block;
  }
  Tensor fresh(card, HostType::F32, {1000});
  CHECK(fresh.block == old);
  CHECK_THROWS(read<float>(fresh), UndefinedBehavior, "never written");
  card.bytes_to_card(fresh.held(), 0, floats(1024).data(), 4096, 0);
  CHECK(read<float>(fresh) == floats(1000));
}
