// Streams, events, waits, errors and interrupts. The threads' side is in pool_test.cpp.
#include "card/engine/engine.h"

#include <algorithm>

#include "streams.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

namespace {

// Holds every worker until the gate opens.
void occupy(Engine& engine, Streams& streams, int first_stream, Gate& gate) {
  std::atomic<int> inside{0};
  for (int i = 0; i < engine.threads(); ++i)
    engine.submit(streams[first_stream + i], {[&] {
                    ++inside;
                    gate.pass();
                  }});
  while (inside < engine.threads()) std::this_thread::yield();
}

// Fails if it is destroyed under the engine's lock: that would hang.
struct TakesLock {
  Engine& engine;
  Stream& stream;
  std::atomic<int>& destroyed;
  ~TakesLock() {
    engine.time(stream);
    ++destroyed;
  }
};

}  // namespace

TEST("engine: a stream carries its work out in order") {
  Deadline deadline(60);
  for (int threads : {1, 2, 4}) {
    Streams streams(3);
    Engine engine(threads, false);
    std::vector<int> order;
    for (int i = 0; i < 2000; ++i) {
      const uint64_t sequence = engine.submit(streams[1], {[&order, i] { order.push_back(i); }});
      CHECK(sequence == static_cast<uint64_t>(i) + 1);
    }
    engine.wait(streams[1], never);
    CHECK(order.size() == 2000 && std::is_sorted(order.begin(), order.end()));
    CHECK(engine.finished(streams[1]));
  }
}

TEST("engine: idle workers are woken, one for each stream") {
  Deadline deadline(60);
  Streams streams(3);
  Engine engine(3, false);
  // No call here may help: the streams' tasks wait for each other, so each needs a worker of its own.
  const auto meet = [&](int count) {
    Gate gates[3];
    for (int id = 0; id < count; ++id)
      engine.submit(streams[id], {[&, id, count] {
                      gates[id].open();
                      for (int other = 0; other < count; ++other) gates[other].pass();
                    }});
    for (int id = 0; id < count; ++id)
      while (!engine.finished(streams[id])) std::this_thread::yield();
  };
  for (int round = 0; round < 5; ++round) {
    usleep(5000);  // longer than an idle worker looks out
    meet(3);
  }
  for (int round = 0; round < 300; ++round) {  // one worker looks out, the others sleep
    meet(1);
    meet(2);
  }
}

TEST("engine: streams run at the same time") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(2, false);
  Gate a, b;
  engine.submit(streams[0], {[&] { a.open(), b.pass(); }});
  engine.submit(streams[1], {[&] { b.open(), a.pass(); }});
  engine.wait(streams[0], never);
  engine.wait(streams[1], never);
  CHECK(a.is_open() && b.is_open());
}

TEST("engine: high-priority streams go first") {
  Deadline deadline(60);
  Streams streams(40);
  Engine engine(1, false);
  Gate gate;
  occupy(engine, streams, 0, gate);
  std::vector<int> order;
  for (int id : {1, 2, 33, 34}) engine.submit(streams[id], {[&order, id] { order.push_back(id); }});
  for (int id : {1, 33}) engine.submit(streams[id], {[&order, id] { order.push_back(id); }});
  Event last;
  engine.record(streams[2], last);
  gate.open();
  while (!engine.finished(streams[1]) || !engine.finished(last)) std::this_thread::yield();  // no help
  CHECK(order == std::vector<int>({33, 34, 33, 1, 2, 1}));
}

TEST("engine: a stream waits for an event, and only for the recording that it saw") {
  Deadline deadline(60);
  Streams streams(3);
  Engine engine(2, false);
  Gate first, second;
  std::atomic<int> seen{0};
  Event event;
  engine.wait_event(streams[1], event);  // never recorded: nothing to wait for
  engine.submit(streams[1], {[&] { seen = 1; }});
  engine.wait(streams[1], never);
  CHECK(seen == 1 && engine.finished(event));

  engine.submit(streams[0], {[&] { first.pass(); }});
  engine.record(streams[0], event);
  engine.wait_event(streams[1], event);
  engine.submit(streams[1], {[&] { seen = 2; }});
  CHECK(!engine.finished(event));
  engine.submit(streams[0], {[&] { second.pass(); }});
  engine.record(streams[0], event);  // again: the wait above keeps the first recording
  CHECK(seen == 1);
  first.open();
  engine.wait(streams[1], never);
  CHECK(seen == 2 && !engine.finished(event) && !engine.finished(streams[0]));
  second.open();
  engine.wait(event, never);
  CHECK(engine.finished(event));
}

TEST("engine: an event may be destroyed while streams wait for it") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(1, false);
  Gate gate;
  int seen = 0;
  engine.submit(streams[0], {[&] { gate.pass(); }});
  {
    Event event;
    engine.record(streams[0], event);
    engine.wait_event(streams[1], event);
  }
  engine.submit(streams[1], {[&] { seen = 1; }});
  gate.open();
  engine.wait(streams[1], never);
  CHECK(seen == 1);
}

TEST("engine: chains of events over many streams") {
  Deadline deadline(60);
  for (int threads : {1, 3}) {
    Streams streams(33);
    Engine engine(threads, false);
    std::vector<int> order;  // unguarded: the events order all of it
    for (int round = 0; round < 50; ++round)
      for (int id = 0; id < 33; ++id) {
        Event event;
        engine.submit(streams[id], {[&order, value = round * 33 + id] { order.push_back(value); }});
        engine.record(streams[id], event);
        engine.wait_event(streams[(id + 1) % 33], event);
      }
    for (Stream& stream : streams.all) engine.wait(stream, never);
    CHECK(order.size() == 50 * 33 && std::is_sorted(order.begin(), order.end()));
  }
}

TEST("engine: a blocking caller carries its own work out") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(2, false);
  for (int i = 0; i < 2000; ++i) {
    std::thread::id ran_by;
    const uint64_t sequence =
        engine.submit(streams[0], {[&] { ran_by = std::this_thread::get_id(); }}, Engine::Wake::caller_waits);
    engine.wait(streams[0], sequence, never);
    CHECK(ran_by == std::this_thread::get_id());
  }
}

TEST("engine: work submitted behind a blocking caller's is not left lying") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> behind{false};
    const uint64_t sequence = engine.submit(streams[0], {[&] { engine.submit(streams[0], {[&] { behind = true; }}); }},
                                            Engine::Wake::caller_waits);
    engine.wait(streams[0], sequence, never);
    while (!behind) std::this_thread::yield();  // no wait that would help
    engine.wait(streams[0], never);
  }
}

TEST("engine: a wait helps along the whole chain of events when every worker is busy") {
  Deadline deadline(60);
  Streams streams(5);
  Engine engine(1, false);
  Gate gate;
  occupy(engine, streams, 0, gate);
  // 3 waits for 2 waits for 1; nobody but this thread can carry any of it out.
  std::vector<int> order;
  for (int id : {1, 2, 3}) {
    Event event;
    engine.submit(streams[id], {[&order, id] { order.push_back(id); }});
    engine.record(streams[id], event);
    engine.wait_event(streams[id + 1], event);
  }
  engine.wait(streams[4], never);
  CHECK(order == std::vector<int>({1, 2, 3}) && !gate.is_open());
  gate.open();
  engine.wait(streams[0], never);
}

TEST("engine: a waiting thread is woken to help when the worker turns to something long") {
  Deadline deadline(60);
  Streams streams(4);
  Engine engine(1, false);
  Gate inside, start, gate;
  bool done = false;
  Event event;
  engine.submit(streams[0], {[&] { inside.open(), start.pass(), usleep(3000); }});  // by then the waiter sleeps
  inside.pass();
  engine.record(streams[0], event);
  engine.submit(streams[1], {[&] { gate.pass(); }});  // what the worker takes up next
  engine.wait_event(streams[2], event);
  engine.submit(streams[2], {[&] { done = true; }});
  // streams[2] becomes ready behind streams[1]: only this thread can go on with it.
  start.open();
  engine.wait(streams[2], never);
  CHECK(done && !gate.is_open());
  gate.open();
  engine.wait(streams[1], never);
}

TEST("engine: an error is raised once, at the next wait, and the stream works again") {
  Deadline deadline(60);
  for (bool by_event : {false, true}) {
    Streams streams(2);
    Engine engine(2, false);
    Gate gate;
    std::vector<int> ran;
    bool copied = false;
    Event before, after;
    engine.submit(streams[0], {[&] { ran.push_back(0); }});
    engine.record(streams[0], before);
    engine.submit(streams[0], {[&] { gate.pass(), throw Error("first"); }});
    engine.submit(streams[0], {[&] { ran.push_back(1); }});
    engine.submit(streams[0], {[&] { throw Error("second"); }});
    engine.submit(streams[0], {[&] { ran.push_back(2); }, 0, true});  // host callbacks still run
    engine.submit(streams[0], {[&] { ran.push_back(3); }, 0, false, &copied});
    engine.record(streams[0], after);
    engine.wait(before, never);  // recorded before the failure: not its business
    gate.open();
    engine.submit(streams[1], {[] {}});
    engine.wait(streams[1], never);  // another stream: unaffected
    if (by_event) {
      CHECK_THROWS(engine.wait(after, never), Error, "first");
    } else {
      CHECK_THROWS(engine.wait(streams[0], never), Error, "first");
    }
    CHECK(ran == std::vector<int>({0, 2}));
    CHECK(!copied);
    engine.wait(after, never);
    engine.wait(streams[0], never);
    engine.submit(streams[0], {[&] { ran.push_back(4); }});
    engine.wait(streams[0], never);
    CHECK(ran == std::vector<int>({0, 2, 4}));
  }
}

TEST("engine: an error belongs to the waits that reach its task") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  int ran = 0;
  const uint64_t good = engine.submit(streams[0], {[&] { ++ran; }});
  const uint64_t bad = engine.submit(streams[0], {[] { throw Error("late"); }});
  while (!streams.progress.finished(0, bad)) std::this_thread::yield();
  engine.wait(streams[0], good, never);
  // Queued before the host learnt of the failure: skipped, whenever it would have run.
  const uint64_t behind = engine.submit(streams[0], {[&] { ++ran; }});
  CHECK_THROWS(engine.wait(streams[0], bad, never), Error, "late");
  engine.wait(streams[0], behind, never);
  CHECK(ran == 1);
  engine.submit(streams[0], {[&] { ++ran; }});
  engine.wait(streams[0], never);
  CHECK(ran == 2);
}

TEST("engine: a task tells whether it was carried out") {
  Streams streams(1);
  Engine engine(1, false);
  bool first = false, second = false, third = false;
  engine.submit(streams[0], {[] {}, 0, false, &first});
  engine.submit(streams[0], {[] { throw Error("no"); }, 0, false, &second});
  engine.submit(streams[0], {[] {}, 0, false, &third});
  CHECK_THROWS(engine.wait(streams[0], never), Error, "no");
  CHECK(first && !second && !third);
}

TEST("engine: settle waits and leaves errors where they are") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  const uint64_t sequence = engine.submit(streams[0], {[] { throw Error("kept"); }});
  engine.settle({&streams.progress, 0, sequence}, never);
  CHECK(streams.progress.finished(0, sequence));
  CHECK_THROWS(engine.wait(streams[0], never), Error, "kept");
}

TEST("engine: an interrupted wait stops the task under way and drops what is queued") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(2, false);
  Gate inside;
  std::atomic<bool> stopped{false}, behind{false}, elsewhere{false};
  engine.submit(streams[0], {[&] {
                  inside.open();
                  try {
                    while (true) end_if_stopped();
                  } catch (const Stopped&) {
                    stopped = true;
                    throw;
                  }
                }});
  engine.submit(streams[0], {[&] { behind = true; }});
  engine.submit(streams[0], {[&] { behind = true; }, 0, true});  // a callback
  Event event;
  engine.record(streams[0], event);
  engine.wait_event(streams[1], event);
  engine.submit(streams[1], {[&] { elsewhere = true; }});
  inside.pass();
  int asked = 0;
  const InterruptCheck third_time = [&] { return ++asked == 3; };
  CHECK_THROWS(engine.wait(streams[0], third_time), Interrupted, "interrupted");
  CHECK(asked == 3 && stopped);
  for (int id : {0, 1}) engine.wait(streams[id], never);
  CHECK(!behind && !elsewhere && engine.finished(event));
  for (uint64_t sequence : {1, 2, 3, 4}) CHECK(streams.progress.dropped(0, sequence));
  bool next = false;
  const uint64_t sequence = engine.submit(streams[0], {[&] { next = true; }});
  engine.wait(streams[0], never);
  CHECK(next && !streams.progress.dropped(0, sequence));
}

TEST("engine: an interrupt is not lost when the work ends at that moment") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  Gate inside, gate;
  engine.submit(streams[0], {[&] { inside.open(), gate.pass(); }});
  inside.pass();
  const InterruptCheck ends_first = [&] {
    gate.open();
    while (!engine.finished(streams[0])) std::this_thread::yield();
    return true;
  };
  CHECK_THROWS(engine.wait(streams[0], ends_first), Interrupted, "interrupted");
}

TEST("engine: parts of a loop stop too") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(3, false);
  Gate inside;
  std::atomic<int64_t> parts{0};
  engine.submit(streams[0], {[&] {
                  engine.parallel_for(1 << 30, [&](int64_t) {
                    if (++parts == 100) inside.open();
                  });
                }});
  inside.pass();
  engine.drop_all();
  engine.wait(streams[0], never);
  CHECK(parts < 1 << 30);
}

TEST("engine: threads whose work was dropped learn of it, once, and others do not") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(1, false);
  Gate inside, gate, submitted, dropped;
  engine.submit(streams[0], {[&] { inside.open(), gate.pass(); }, 0, true});
  inside.pass();
  std::thread other([&] {
    engine.submit(streams[0], {[] {}});
    engine.submit(streams[1], {[] {}});
    submitted.open();
    dropped.pass();
    engine.wait(streams[1], never);  // had none that was dropped, unless it came too late
    CHECK_THROWS(engine.wait(streams[0], never), Dropped, "interrupted");
    engine.wait(streams[0], never);
  });
  submitted.pass();
  engine.wait(streams[1], never);
  engine.drop_all();
  gate.open();
  dropped.open();
  other.join();
  engine.wait(streams[0], never);
  std::thread([&] { engine.wait(streams[0], never); }).join();
}

TEST("engine: work that was prepared before an interrupt is not taken after it") {
  Streams streams(1);
  Engine engine(1, false);
  const uint64_t before = engine.interrupts();
  engine.drop_all();
  CHECK_THROWS(engine.submit(streams[0], {[] {}}, Engine::Wake::worker, before), Dropped, "meanwhile");
  engine.submit(streams[0], {[] {}}, Engine::Wake::worker, engine.interrupts());
  engine.wait(streams[0], never);
}

TEST("engine: a callback that waits for its own stream, however indirectly, is refused") {
  Deadline deadline(60);
  for (bool immediate : {false, true}) {
    Streams streams(3);
    Engine engine(2, immediate);
    engine.submit(streams[0], {[&] { engine.wait(streams[0], never); }, 0, true});
    CHECK_THROWS(engine.wait(streams[0], never), Error, "only when the callback returns");
    if (immediate) continue;

    // Stream 1 waits for an event behind the callback.
    Gate ready;
    engine.submit(streams[0], {[&] { ready.pass(), engine.wait(streams[1], never); }, 0, true});
    Event event;
    engine.record(streams[0], event);
    engine.wait_event(streams[1], event);
    ready.open();
    CHECK_THROWS(engine.wait(streams[0], never), Error, "only when the callback returns");
    engine.wait(streams[1], never);

    // Two callbacks that wait for each other: one is refused, and the other goes on.
    Gate both[2];
    for (int id : {0, 1})
      engine.submit(streams[id], {[&, id] {
                                    both[id].open(), both[1 - id].pass();
                                    engine.wait(streams[1 - id], never);
                                  },
                                  0, true});
    int refused = 0;
    for (int id : {0, 1}) {
      try {
        engine.wait(streams[id], never);
      } catch (const Error&) {
        ++refused;
      }
    }
    CHECK(refused >= 1);

    bool done = false;
    engine.submit(streams[2], {[&] { done = true; }});
    engine.submit(streams[0], {[&] { engine.wait(streams[2], never); }, 0, true});
    engine.wait(streams[0], never);
    CHECK(done);
  }
}

TEST("engine: callbacks leave a worker for the rest, and waiting threads carry out none") {
  Deadline deadline(60);
  Streams streams(4);
  Engine engine(1, false);
  Gate gates[3];
  std::thread::id ran_by;
  for (int id : {0, 1, 2}) engine.submit(streams[id], {[&, id] { gates[id].pass(); }, 0, true});
  engine.submit(streams[3], {[&] { ran_by = std::this_thread::get_id(); }, 0, true});
  engine.wait(streams[3], never);
  CHECK(ran_by != std::this_thread::get_id());
  for (Gate& gate : gates) gate.open();
}

TEST("engine: a thread that waits leaves long work to the pool") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(1, false);
  constexpr Picoseconds kSecond = 1'000'000'000'000;
  for (int i = 0; i < 100; ++i) {
    std::thread::id short_one, long_one;
    engine.submit(streams[0], {[&] { short_one = std::this_thread::get_id(); }}, Engine::Wake::caller_waits);
    const uint64_t sequence = engine.submit(streams[0], {[&] { long_one = std::this_thread::get_id(); }, kSecond},
                                            Engine::Wake::caller_waits);
    engine.wait(streams[0], sequence, never);
    CHECK(short_one == std::this_thread::get_id() && long_one != std::this_thread::get_id());
  }
}

TEST("engine: a task whose wait was interrupted can be withdrawn") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(1, false);
  Gate gate;
  std::atomic<int> destroyed{0};
  bool ran = false;
  occupy(engine, streams, 0, gate);
  Event event;
  engine.record(streams[0], event);
  engine.wait_event(streams[1], event);
  auto held = std::make_shared<TakesLock>(engine, streams[1], destroyed);
  const uint64_t sequence = engine.submit(streams[1], {[&ran, held] { ran = true; }}, Engine::Wake::caller_waits);
  held.reset();
  CHECK_THROWS(engine.wait(streams[1], sequence, [] { return true; }), Interrupted, "interrupted");
  engine.withdraw(streams[1], sequence);
  CHECK(destroyed == 1);
  gate.open();
  engine.wait(streams[1], never);
  CHECK(!ran);

  // Running already: withdraw returns when it is over.
  Gate inside;
  std::atomic<bool> over{false};
  const uint64_t running = engine.submit(streams[1], {[&] {
                                           inside.open();
                                           usleep(20000);
                                           over = true;
                                         }});
  inside.pass();
  engine.withdraw(streams[1], running);
  CHECK(over);
}

TEST("engine: what a task holds is let go without the engine's lock") {
  Deadline deadline(60);
  for (bool immediate : {false, true}) {
    std::atomic<int> destroyed{0};
    Streams streams(1);
    Engine engine(1, immediate);
    const auto holding = [&](std::function<void()> body) {
      return [held = std::make_shared<TakesLock>(engine, streams[0], destroyed), body] { body(); };
    };
    engine.submit(streams[0], {holding([] {})});
    engine.submit(streams[0], {holding([] { throw Error("no"); }), 0, true});
    engine.submit(streams[0], {holding([] {})});  // skipped
    const auto throwing = [&] { throw std::make_shared<TakesLock>(engine, streams[0], destroyed); };
    engine.submit(streams[0], {throwing, 0, true});
    CHECK_THROWS(engine.wait(streams[0], never), Error, "no");
    CHECK(destroyed == 4);
  }
}

TEST("engine: the destructor lets queued work finish") {
  Deadline deadline(60);
  std::atomic<int> ran{0};
  Streams streams(4);
  {
    Engine engine(2, false);
    Event event;
    engine.submit(streams[0], {[] { usleep(5000); }});
    engine.record(streams[0], event);
    for (int i = 0; i < 100; ++i) {
      engine.wait_event(streams[1 + i % 3], event);
      engine.submit(streams[1 + i % 3], {[&] { ++ran; }});
    }
  }
  CHECK(ran == 100);
}
