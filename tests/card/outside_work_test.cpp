// Streams behind work that other threads carry out: order, modelled time, errors and interrupts.
#include <thread>

#include "card/engine/engine.h"
#include "streams.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

struct Failed : Error {
  using Error::Error;
};

// The times of a mixture of tasks and events around work outside that ends at `end`.
std::vector<Picoseconds> times(bool immediate, bool ends_first, Picoseconds end) {
  Streams streams(2);
  Engine engine(2, immediate);
  OutsideWork work;
  engine.submit(streams[0], {.run = [] {}, .duration = 100});
  const Event outside = engine.expect(work);
  const auto fulfil = [&] { engine.fulfil(work, outside, end, nullptr); };
  if (ends_first) fulfil();
  engine.wait_event(streams[0], outside);
  engine.submit(streams[0], {.run = [] {}, .duration = 7});
  Event behind;
  engine.record(streams[0], behind);
  engine.submit(streams[1], {.run = [] {}, .duration = 1000});
  engine.wait_event(streams[1], behind);
  engine.submit(streams[1], {.run = [] {}, .duration = 10});
  std::thread other;
  if (!ends_first) other = std::thread([&] { usleep(3000), fulfil(); });
  const std::vector<Picoseconds> found{engine.time(behind), engine.time(streams[0]), engine.time(streams[1])};
  if (other.joinable()) other.join();
  engine.wait(streams[1], never);
  return found;
}

}  // namespace

TEST("outside work: modelled time does not depend on when it ends, or on the mode") {
  Deadline deadline(60);
  for (const bool immediate : {false, true})
    for (const bool ends_first : {false, true}) {
      CHECK((times(immediate, ends_first, 5000) == std::vector<Picoseconds>{5007, 5007, 5017}));
      CHECK((times(immediate, ends_first, 50) == std::vector<Picoseconds>{107, 107, 1010}));
    }
}

TEST("outside work: what is behind it is carried out behind it, and nothing else waits") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(2, false);
  OutsideWork work;
  const Event outside = engine.expect(work);
  std::atomic<int> ran{0};
  engine.wait_event(streams[0], outside);
  engine.submit(streams[0], {[&] { ran = 1; }});
  engine.submit(streams[1], {[] {}});
  engine.wait(streams[1], never);
  usleep(2000);
  CHECK(ran == 0 && !engine.finished(streams[0]) && !engine.finished(outside));
  engine.fulfil(work, outside, 0, nullptr);
  engine.wait(streams[0], never);
  CHECK(ran == 1 && engine.finished(outside));
}

TEST("outside work: ends in any order; memory is free when all before has ended") {
  Streams streams(1);
  Engine engine(1, false);
  OutsideWork work;
  const Event first = engine.expect(work), second = engine.expect(work), third = engine.expect(work);
  const auto completed = [&] { return work.progress.completed[0].load(); };
  engine.fulfil(work, second, 0, nullptr);
  CHECK(completed() == 0 && engine.finished(second) && !engine.finished(first));
  engine.fulfil(work, first, 0, nullptr);
  CHECK(completed() == 2);
  engine.fulfil(work, third, 0, nullptr);
  CHECK(completed() == 3 && work.early.empty());
}

TEST("outside work: its error fails the streams that wait for it, and is raised where the host waits") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(2, false);
  OutsideWork work;
  const Event outside = engine.expect(work);
  bool ran = false;
  engine.wait_event(streams[0], outside);
  engine.submit(streams[0], {[&] { ran = true; }});
  Event behind;
  engine.record(streams[0], behind);
  engine.fulfil(work, outside, 0, std::make_exception_ptr(Failed("rank 1 is gone")));
  CHECK(!engine.await(behind, [] { return true; }));
  CHECK_THROWS(engine.wait(streams[0], never), Failed, "rank 1 is gone");
  CHECK(!ran);
  engine.submit(streams[0], {[&] { ran = true; }});
  engine.wait(streams[0], never);  // raised once
  CHECK(ran);
  CHECK_THROWS(engine.wait(outside, never), Failed, "rank 1 is gone");
}

TEST("outside work: an interrupt lets go of the streams that wait for it") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  OutsideWork work;
  const Event outside = engine.expect(work);
  bool ran = false;
  engine.wait_event(streams[0], outside);
  engine.submit(streams[0], {[&] { ran = true; }});
  CHECK_THROWS(engine.wait(streams[0], [] { return true; }), Interrupted, "");
  CHECK(!ran && engine.interrupts() == 1);
  CHECK_THROWS(engine.wait(outside, [] { return true; }), Interrupted, "");
  engine.fulfil(work, outside, 0, nullptr);
}

TEST("outside work: a thread that waits for a stream learns whether its work was carried out") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(2, false);
  Event good, bad;
  engine.submit(streams[0], {[] {}});
  engine.record(streams[0], good);
  CHECK(engine.await(good, [] { return true; }));
  engine.submit(streams[0], {[] { throw Failed("planned"); }});
  engine.record(streams[0], bad);
  CHECK(!engine.await(bad, [] { return true; }));
  CHECK_THROWS(engine.wait(streams[0], never), Failed, "planned");  // the error is still the stream's
  OutsideWork work;
  const Event never_ends = engine.expect(work);
  CHECK(!engine.await(never_ends, [] { return false; }));
  engine.fulfil(work, never_ends, 0, nullptr);
}

TEST("outside work: a function is called when an event is done, or at once") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  Gate gate;
  Event event;
  std::atomic<int> called{0};
  engine.submit(streams[0], {[&] { gate.pass(); }});
  engine.record(streams[0], event);
  engine.when_done(event, [&] { ++called; });
  CHECK(called == 0);
  gate.open();
  engine.wait(streams[0], never);
  CHECK(called == 1);
  engine.when_done(event, [&] { ++called; });
  CHECK(called == 2);
}
