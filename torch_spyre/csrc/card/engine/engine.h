// Streams, events and the thread pool that carries their work out.
//
// A stream is a FIFO of tasks. Modelled time is settled when a task is submitted: it follows from stream order and
// event edges alone, never from when the host's threads do the work. Behind work outside of the engine (a collective,
// whose time follows from clocks of other processes) it is settled when a task is carried out, by the same rules.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "card/clock/clock.h"
#include "card/memory/memory.h"
#include "card/telemetry/meter.h"

namespace spyre {

struct Stream;

// The modelled time at which a task ends; negative until it is settled.
struct ModelledEnd {
  std::atomic<Picoseconds> time{-1};
};

struct Task {
  std::function<void()> run;
  Picoseconds duration = 0;
  bool on_host = false;          // a host callback: runs in every mode, and behind a failed task too
  bool* ran = nullptr;           // set when the task is carried out, and not when it is skipped behind a failed one
  Origin origin{};               // set by submit()
  const Usage* usage = nullptr;  // for the counters; looked at by submit() alone
  std::shared_ptr<ModelledEnd> end{};  // set to the modelled time at its end as soon as that is settled
};

// One that takes as long as its use of the card's parts says; `usage` outlives the call of submit().
inline Task task_of(std::function<void()> run, const Usage& usage) {
  return {.run = std::move(run), .duration = usage.busy_ps, .usage = &usage};
}

// Of what this thread submits.
Origin& current_origin();

// One recording of an event, or the end of work outside of the engine.
struct Record {
  uint64_t engine = 0;           // which engine it belongs to: those of one that is gone count as done
  Picoseconds time = 0;          // once it is settled
  Stream* stream = nullptr;      // null: of work outside of the engine
  uint64_t sequence = 0;         // its place in the stream
  std::vector<Stream*> waiters;  // streams that go on when it is done
  bool settled = false;          // `time` is known; at the latest when it is done
  bool failed = false;           // once it is done: the stream did not carry out all that is before it
  std::exception_ptr error;      // once it is done, of work outside: streams that wait for it fail with it
  std::function<void()> then;    // called when it is done
  std::atomic<bool> done{false};
};

struct Event {
  std::shared_ptr<Record> record;  // null until recorded
};

// Work that other threads than the engine's carry out (collectives), numbered in the order in which it was asked for.
// It may end in another order. Memory that it uses notes `progress`, stream 0.
struct OutsideWork {
  Progress progress;
  std::vector<uint64_t> early{};  // done before others that were asked for earlier; under the engine's lock
};

// Everything below `progress` belongs to the engine and its lock, but for `stop`.
struct Stream {
  int card, id;
  bool high_priority;
  Progress* progress;
  Meter* meter = nullptr;  // null: nobody counts
  Picoseconds time = 0;
  Picoseconds outside = 0;  // part of it: waits for work outside of the engine

  struct Item {
    Task task;
    std::shared_ptr<Record> record;   // to be marked done
    std::shared_ptr<Record> awaited;  // to be waited for
    bool settled = true;              // its modelled time is
  };
  std::deque<Item> items;
  bool settled = true;  // the time of all items is: `time` is that behind the last one, else that before the first
  // ready: queued for any thread; claimed: kept for the caller of submit(), which is about to wait.
  enum class State { idle, ready, claimed, running, blocked } state = State::idle;

  std::exception_ptr error;       // of the task that failed, until a wait raises it
  uint64_t failed_sequence = 0;   // that task
  uint64_t skipped_sequence = 0;  // work up to here was queued before the host learnt of a failure: not carried out
  uint64_t dropped_sequence = 0;  // work up to here was queued before an interrupt: not carried out, nor are callbacks
  uint64_t drops = 0;             // which interrupt that was
  std::atomic<bool> stop{false};  // the task under way is to end as soon as it can
  Stream* waits_for = nullptr;    // what the callback under way waits for
  bool listed = false;            // among the engine's streams
};

// Returns true when the host wants to stop waiting.
using InterruptCheck = std::function<bool()>;

// For tasks, once per tile or so: ends this one, with an exception, if an interrupt has dropped it.
void end_if_stopped();

class Engine {
 public:
  // `immediate`: nothing is computed; tasks count as done when submitted (timing mode).
  Engine(int threads, bool immediate);
  ~Engine();  // after all submitted work is done

  enum class Wake { worker, caller_waits };
  // Appends work to the stream; returns its sequence number. With caller_waits no worker is woken for short work: the
  // caller must wait next, and that wait carries the work out, which saves two thread switches. `interrupts`: how many
  // the caller knew of when it looked at what the work uses; raises Dropped if there was one since.
  uint64_t submit(Stream& stream, Task task, Wake wake = Wake::worker);
  uint64_t submit(Stream& stream, Task task, Wake wake, uint64_t interrupts);
  void record(Stream& stream, Event& event);
  void wait_event(Stream& stream, const Event& event);

  bool finished(const Stream& stream) const;
  bool finished(const Event& event) const;
  // Wait, taking part in the work that is waited for as long as it is short. The error of a task up to there is raised
  // here, once, and cleared; what was queued behind it until now is skipped. An interrupted wait drops everything that
  // is queued on any stream, and raises Interrupted; other threads learn of it, once, at their next wait for a stream
  // that lost work. A wait inside a callback that cannot end before the callback does is an error.
  void wait(Stream& stream, uint64_t sequence, const InterruptCheck& interrupted);
  void wait(Stream& stream, const InterruptCheck& interrupted);
  void wait(const Event& event, const InterruptCheck& interrupted);
  // Waits for the use of a block to be over; errors stay with the stream.
  void settle(const Use& use, const InterruptCheck& interrupted);
  // Takes back a task whose wait was interrupted, so that its memory can go: afterwards it is not, or no longer, run.
  void withdraw(Stream& stream, uint64_t sequence);
  // Drops what is queued, as an interrupted wait does. Tasks under way are stopped; callbacks under way go on.
  void drop_all();
  uint64_t interrupts() const { return interrupts_.load(std::memory_order_acquire); }
  // Whether this thread is in a callback of the stream.
  static bool inside(const Stream& stream);
  // Whether waiting threads may run short tasks themselves, during which they notice no interrupt.
  bool waiters_compute = true;

  // Modelled time behind all that was submitted, for which it waits where that is not settled.
  Picoseconds time(Stream& stream, const InterruptCheck& interrupted = {});
  // Of that, what passed in waits for work outside, once all is settled.
  Picoseconds outside(Stream& stream, const InterruptCheck& interrupted = {});
  // Modelled time of a recorded event.
  Picoseconds time(const Event& event, const InterruptCheck& interrupted = {});

  // Work outside of the engine begins: streams may wait for the event, and go on when it ends. With an error they fail.
  Event expect(OutsideWork& work);
  void fulfil(OutsideWork& work, const Event& event, Picoseconds time, std::exception_ptr error);
  // Calls `then` once the event is done, or at once where it is; not to block, as it may hold the engine's lock.
  void when_done(const Event& event, std::function<void()> then);
  // For threads that carry out such work: waits for an event, without raising errors of its stream, while `go_on`.
  // True if all before the event was carried out.
  bool await(const Event& event, const std::function<bool()>& go_on);

  // Calls body(i) for 0 <= i < count on this thread and on idle ones, which are pool threads and those that wait for
  // the task this is part of, `threads` together at most; returns when all are done.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body);
  int threads() const { return threads_; }
  // From now on loops use at most so many threads, of those that the engine was made with: ranks share a machine.
  void limit_threads(int threads) { threads_ = std::clamp(threads, 1, most_threads_); }
  bool immediate() const { return immediate_; }

 private:
  struct Job;
  struct Waiter;
  using Lock = std::unique_lock<std::mutex>;
  void work();
  void rest(Lock& lock);
  Stream* take_ready();
  bool take(Stream& stream);
  void make_ready(Stream& stream);
  void step(Lock& lock, Stream& stream);  // carries out the stream's first item
  void carry_out(Lock& lock, Stream& stream, Task& task);
  static void complete(Stream& stream);
  static void settle_time(Stream& stream, Stream::Item& item, uint64_t sequence);
  void finish(Stream& stream, Stream::Item& item);
  void wake_waiters(const Stream& stream);

  uint64_t append(Lock& lock, Stream& stream, Stream::Item& item, Wake wake);
  int announce();
  void announce_and_wake();
  void wait_until(Lock& lock, const Use& use, Stream* helped, const InterruptCheck& interrupted);
  // False where `stop`, asked now and then, ended the wait.
  bool wait_while(Lock& lock, const Use& use, Stream* helped, const InterruptCheck& stop);
  void wait_outside(Lock& lock, const Record& record, const InterruptCheck& interrupted);
  bool for_waiters(const Task& task) const;
  bool may_help(const Stream& stream) const { return !stream.items.empty() && for_waiters(stream.items.front().task); }
  void refuse_deadlock(const Use& use, Stream* helped) const;
  void drop_all(Lock& lock);
  void add_worker() {
    workers_.emplace_back([this] { work(); });
  }
  void raise_error(Lock& lock, Stream& stream, uint64_t sequence);
  Job* job_with_room(const Stream* stream);
  void help(Lock& lock, Job& job);
  void run_bodies(Job& job);
  bool may_spin() const { return spin_time_.count() > 0 && computing_ + spinning_ < cores_; }
  template <typename Done>
  void spin(const Done& done) const;

  // Whether the event's record is one of this engine's; an engine that is gone has left no work behind.
  bool pending_here(const Event& event) const { return event.record && event.record->engine == id_; }

  static uint64_t next_id();
  const uint64_t id_ = next_id();
  const int most_threads_;
  std::atomic<int> threads_;
  const bool immediate_;
  const int cores_;                            // of the host
  const std::chrono::microseconds spin_time_;  // how long an idle thread spins before it sleeps
  mutable std::mutex mutex_;
  std::condition_variable work_available_;
  std::deque<Stream*> ready_[2];  // low, high
  std::vector<Stream*> streams_;  // that ever had work
  std::atomic<uint64_t> interrupts_{0};
  std::condition_variable stopped_;    // a task that was to stop has
  std::condition_variable fulfilled_;  // work outside of the engine has ended
  size_t in_callbacks_ = 0;            // workers
  std::vector<Job*> jobs_;
  std::vector<Waiter*> waiters_;
  std::atomic<uint64_t> work_events_{0};  // counts up when there is work for spinning threads
  int computing_ = 0;                     // threads with a task, or with a part of one
  int spinning_ = 0;                      // workers, of which one does, and threads that wait
  bool worker_spins_ = false;
  int sleeping_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace spyre
