// Modelled time, loops in parallel, and many threads at once.
#include <algorithm>
#include <random>

#include "card/engine/engine.h"
#include "streams.h"
#include "testing.h"

using namespace spyre;
using namespace spyre::testing;

TEST("engine: modelled time follows from stream order and events only") {
  Deadline deadline(60);
  const auto script = [](Engine& engine, Streams& streams, std::mt19937* jitter) {
    std::vector<Event> events(40);
    std::vector<Picoseconds> times;
    std::mt19937 choose(5);
    for (int i = 0; i < 400; ++i) {
      Stream& stream = streams[choose() % 8];
      Event& event = events[choose() % events.size()];
      const Picoseconds duration = choose() % 1000;
      engine.submit(stream, {[] {}, duration});
      if (choose() % 3 == 0) engine.record(stream, event);
      if (choose() % 3 == 0) engine.wait_event(streams[choose() % 8], event);
      if (jitter && (*jitter)() % 20 == 0) usleep((*jitter)() % 200);
      if (jitter && (*jitter)() % 20 == 0) engine.wait(streams[(*jitter)() % 8], never);
    }
    for (const Event& event : events) times.push_back(event.record ? event.record->time : -1);
    for (int id = 0; id < 8; ++id) times.push_back(engine.time(streams[id]));
    for (int id = 0; id < 8; ++id) engine.wait(streams[id], never);
    return times;
  };
  Streams timed(8);
  Engine timing(1, true);
  const std::vector<Picoseconds> expected = script(timing, timed, nullptr);
  std::mt19937 jitter(1);
  for (int threads : {1, 2, 5}) {
    Streams streams(8);
    Engine engine(threads, false);
    CHECK(script(engine, streams, &jitter) == expected);
  }
}

TEST("engine: modelled time of a small graph") {
  Streams streams(2);
  Engine engine(2, false);
  Event event, again;
  engine.submit(streams[0], {[] {}, 100});
  engine.record(streams[0], event);
  engine.submit(streams[1], {[] {}, 30});
  engine.wait_event(streams[1], event);
  CHECK(engine.time(streams[1]) == 100);
  engine.submit(streams[1], {[] {}, 5});
  engine.record(streams[1], again);
  CHECK(event.record->time == 100 && again.record->time == 105);
  engine.wait_event(streams[0], again);
  engine.wait_event(streams[0], event);  // the past does not turn time back
  CHECK(engine.time(streams[0]) == 105);
  for (int id : {0, 1}) engine.wait(streams[id], never);
}

TEST("engine: in timing mode only callbacks run, at once") {
  Streams streams(1);
  Engine engine(1, true);
  int device = 0, host = 0;
  Event event;
  engine.submit(streams[0], {[&] { ++device; }, 10});
  engine.submit(streams[0], {[&] { ++host; }, 0, true});
  engine.record(streams[0], event);
  CHECK(device == 0 && host == 1 && engine.finished(event) && engine.finished(streams[0]));
  engine.submit(streams[0], {[] { throw Error("callback"); }, 0, true});
  CHECK_THROWS(engine.wait(streams[0], never), Error, "callback");
  engine.wait(streams[0], never);
}

TEST("engine: parallel_for calls each index once") {
  Deadline deadline(60);
  for (int threads : {1, 2, 4}) {
    Engine engine(threads, false);
    for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      engine.parallel_for(count, [&](int64_t i) { ++calls[i]; });
      CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; }));
    }
  }
}

TEST("engine: parallel_for uses idle workers, and nests") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(3, false);
  std::atomic<int> inside{0}, total{0};
  usleep(5000);  // longer than an idle worker looks out
  // Three bodies meet: the caller and two workers must be in them at the same time.
  engine.parallel_for(3, [&](int64_t) {
    ++inside;
    while (inside < 3) std::this_thread::yield();
  });
  CHECK(inside == 3);
  for (int round = 0; round < 50; ++round) {
    engine.submit(streams[0], {[&] {
                    engine.parallel_for(8, [&](int64_t) { engine.parallel_for(8, [&](int64_t) { ++total; }); });
                  }});
    engine.parallel_for(5, [&](int64_t) { ++total; });
  }
  engine.wait(streams[0], never);
  CHECK(total == 50 * (64 + 5));
}

TEST("engine: a thread that waits for a task takes part in its loop, if no worker does") {
  Deadline deadline(60);
  Streams streams(2);
  Engine engine(2, false);
  Gate gate;
  std::atomic<int> inside{0};
  std::atomic<bool> waiter_took_part{false};
  const std::thread::id waiter = std::this_thread::get_id();
  engine.submit(streams[0], {[&] { gate.pass(); }});
  engine.submit(streams[1], {[&] {
                  engine.parallel_for(2, [&](int64_t) {  // both at the same time
                    ++inside;
                    while (inside < 2) std::this_thread::yield();
                    if (std::this_thread::get_id() == waiter) waiter_took_part = true;
                  });
                }});
  engine.wait(streams[1], never);
  CHECK(waiter_took_part);
  gate.open();
  engine.wait(streams[0], never);
}

TEST("engine: no loop has more threads than the engine") {
  Deadline deadline(60);
  Streams streams(1);
  Engine engine(2, false);
  std::atomic<int> inside{0}, most{0};
  for (int round = 0; round < 20; ++round) {
    engine.submit(streams[0], {[&] {
                    engine.parallel_for(20, [&](int64_t) {
                      const int now = ++inside;
                      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) continue;
                      usleep(100);
                      --inside;
                    });
                  }});
    engine.wait(streams[0], never);
  }
  CHECK(most == 2);
}

TEST("engine: parallel_for waits for a slow helper") {
  Deadline deadline(60);
  Engine engine(2, false);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> inside{0}, over{0};
  engine.parallel_for(2, [&](int64_t) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
    if (std::this_thread::get_id() != caller) usleep(5000);  // longer than the caller looks out
    ++over;
  });
  CHECK(over == 2);
}

TEST("engine: parallel_for raises what a body throws") {
  Deadline deadline(60);
  for (int threads : {1, 4}) {
    Engine engine(threads, false);
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> calls{0};
      CHECK_THROWS(engine.parallel_for(100,
                                       [&](int64_t i) {
                                         ++calls;
                                         if (i == round % 100) throw Error("body");
                                       }),
                   Error, "body");
      CHECK(calls >= 1 && calls <= 100);
    }
  }
}

TEST("engine: stress, no lost wake-ups") {
  Deadline deadline(240);
  constexpr int kThreads = 8, kStreamsUsed = 32, kTasks = 2500;
  for (int threads : {1, 2, 3, 8, 1, 2, 3, 8}) {
    Streams streams(kStreamsUsed);
    Engine engine(threads, false);
    std::vector<int64_t> ran(kStreamsUsed, 0);  // each written by its own stream only
    std::atomic<int64_t> submitted[kStreamsUsed] = {};
    std::vector<std::thread> hosts;
    for (int t = 0; t < kThreads; ++t)
      hosts.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(t + 100 * threads));
        std::vector<Event> events(4);
        for (int i = 0; i < kTasks; ++i) {
          const int id = static_cast<int>(random() % kStreamsUsed);
          ++submitted[id];
          const auto body = [&ran, id] { ++ran[id]; };
          switch (random() % 8) {
            case 0: {  // a blocking caller
              const uint64_t sequence = engine.submit(streams[id], {body}, Engine::Wake::caller_waits);
              engine.wait(streams[id], sequence, never);
              break;
            }
            case 1:
              engine.submit(streams[id], {body});
              engine.wait(streams[id], never);
              break;
            case 2:
              engine.submit(streams[id], {body});
              engine.record(streams[id], events[random() % 4]);
              engine.wait_event(streams[static_cast<int>(random() % kStreamsUsed)], events[random() % 4]);
              break;
            case 3:
              engine.submit(streams[id], {body});
              engine.wait(events[random() % 4], never);
              break;
            case 4:
              engine.submit(streams[id], {[&, body] {
                              body();
                              std::atomic<int> sum{0};
                              engine.parallel_for(4, [&](int64_t n) { sum += static_cast<int>(n); });
                              if (sum != 6) std::abort();
                            }});
              if (random() % 50 == 0) usleep(random() % 300);  // let workers fall asleep
              break;
            default:
              engine.submit(streams[id], {body});
          }
        }
      });
    for (std::thread& host : hosts) host.join();
    for (int id = 0; id < kStreamsUsed; ++id) engine.wait(streams[id], never);
    for (int id = 0; id < kStreamsUsed; ++id) CHECK(ran[id] == submitted[id]);
  }
}
