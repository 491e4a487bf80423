// Streams, events and the thread pool that carries their work out.
//
// A stream is a FIFO of tasks. Modelled time is settled when a task is submitted: it follows from stream order and
// event edges alone, never from when the host's threads got round to the work.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "clock.h"
#include "memory.h"

namespace spyre {

struct Stream;

struct Task {
  std::function<void()> run;
  Picoseconds duration = 0;
  bool on_host = false;  // a host callback: runs in every mode, and behind a failed task too
};

// One recording of an event.
struct Record {
  Picoseconds time = 0;
  Stream* stream = nullptr;
  std::vector<Stream*> waiters;
  std::exception_ptr error;  // the stream had failed when it got here
  std::atomic<bool> done{false};
};

struct Event {
  std::shared_ptr<Record> record;  // null until recorded
};

struct Stream {
  int card, id;
  bool high_priority;
  Progress* progress;
  Picoseconds time = 0;

  struct Item {
    Task task;
    std::shared_ptr<Record> record;  // to be marked done
    std::shared_ptr<Record> awaited;  // to be waited for
  };
  std::deque<Item> items;
  enum class State { idle, ready, running, blocked } state = State::idle;
  std::exception_ptr error;
};

// Returns true when the host wants to stop waiting.
using InterruptCheck = std::function<bool()>;

class Engine {
 public:
  // `immediate`: nothing is computed; tasks count as done when submitted (timing mode).
  Engine(int threads, bool immediate);
  ~Engine();

  enum class Wake { worker, caller_waits };
  // Appends work to the stream; returns its sequence number. With caller_waits no worker is woken: the caller's
  // wait carries the work out, which saves two thread switches.
  uint64_t submit(Stream& stream, Task task, Wake wake = Wake::worker);
  void record(Stream& stream, Event& event);
  void wait_event(Stream& stream, const Event& event);

  bool finished(const Stream& stream) const;
  bool finished(const Event& event) const;
  // Wait, helping with this stream's work. A failed task's error is raised here, once, and cleared.
  void wait(Stream& stream, uint64_t sequence, const InterruptCheck& interrupted);
  void wait(Stream& stream, const InterruptCheck& interrupted);
  void wait(const Event& event, const InterruptCheck& interrupted);
  void set_error(Stream& stream, std::exception_ptr error);

  Picoseconds time(const Stream& stream) const;

  // Calls body(i) for 0 <= i < count on this thread and whichever pool threads are idle; returns when all are done.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body);
  int threads() const { return threads_; }
  bool immediate() const { return immediate_; }

 private:
  struct Job;
  using Lock = std::unique_lock<std::mutex>;
  void work();
  uint64_t append(Lock& lock, Stream& stream, Stream::Item item, Wake wake);
  void make_ready(Stream& stream);
  void step(Lock& lock, Stream& stream);  // carries out the stream's first item
  void help(Job& job);
  template <typename Done>
  void wait_until(Lock& lock, Stream* stream, const Done& done, const InterruptCheck& interrupted);

  const int threads_;
  const bool immediate_;
  mutable std::mutex mutex_;
  std::condition_variable work_available_, progress_made_;
  std::deque<Stream*> ready_[2];  // low, high
  std::vector<Job*> jobs_;
  int sleeping_ = 0, waiting_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace spyre
