// One lock guards all queues. No task runs or is destroyed under it: destroying one may need other locks (Python's, an
// allocator's).
#include "card/engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "card/error.h"

namespace spyre {

namespace {

// Waking a sleeping thread costs its waker 5 to 10 us, more than most submissions; so one idle worker, and threads that
// wait, spin this long before they sleep, as long as that takes no core from a thread that computes.
constexpr std::chrono::microseconds kSpinTime{100};
constexpr std::chrono::milliseconds kInterruptPeriod{20};
// Tasks that take the card longer take this machine tens of milliseconds or more: too long without a check for Ctrl-C.
constexpr Picoseconds kShort = 50'000'000;
// Tasks check every millisecond or so whether they are to stop; one that does not is no longer waited for.
constexpr std::chrono::seconds kStopTimeout{1};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The stream whose task this thread carries out.
thread_local Stream* current_stream = nullptr;

// The interrupts that a thread knows of: all there were, unless it has submitted work and not waited since.
struct Known {
  uint64_t engine = 0, interrupts = 0;
  std::vector<const Stream*> unwaited{};  // with work of this thread
  void look(uint64_t id, uint64_t now) {
    if (engine != id || unwaited.empty()) *this = {id, now};
  }
};
thread_local Known known;
thread_local Origin origin_of_thread;

}  // namespace

Origin& current_origin() { return origin_of_thread; }

bool Engine::inside(const Stream& stream) { return current_stream == &stream; }

void end_if_stopped() {
  if (current_stream && current_stream->stop.load(std::memory_order_relaxed)) [[unlikely]]
    throw Stopped{};
}

struct Engine::Job {
  const std::function<void(int64_t)>& body;
  const int64_t count;
  Stream* stream;  // null: not part of a task
  std::atomic<int64_t> next{0};
  std::atomic<int> helpers{0};  // other threads inside; changed under the lock
  std::condition_variable done{};
  std::exception_ptr error{};
};

struct Engine::Waiter {
  const Use& use;
  const Stream* spins_for = nullptr;  // the stream whose next job this thread will help with
  std::condition_variable wake{};
};

uint64_t Engine::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Engine::Engine(int threads, bool immediate)
    : most_threads_(std::max(1, threads)),
      threads_(most_threads_),
      immediate_(immediate),
      cores_(static_cast<int>(std::thread::hardware_concurrency())),
      spin_time_(cores_ > 1 ? kSpinTime : std::chrono::microseconds{0}) {
  if (immediate_) return;
  for (int i = 0; i < most_threads_; ++i) add_worker();
}

Engine::~Engine() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    ++work_events_;
  }
  work_available_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// --- workers

void Engine::work() {
  Lock lock(mutex_);
  while (true) {
    if (Job* job = job_with_room(nullptr)) {
      help(lock, *job);
    } else if (Stream* stream = take_ready()) {
      step(lock, *stream);
    } else if (stopping_) {
      return;
    } else {
      rest(lock);
    }
  }
}

void Engine::rest(Lock& lock) {
  if (!worker_spins_ && may_spin()) {
    const uint64_t seen = work_events_;
    worker_spins_ = true;
    ++spinning_;
    lock.unlock();
    spin([&] { return work_events_.load(std::memory_order_relaxed) != seen; });
    lock.lock();
    --spinning_;
    worker_spins_ = false;
    if (work_events_ != seen) return;
  }
  ++sleeping_;
  work_available_.wait(lock);
  --sleeping_;
}

template <typename Done>
void Engine::spin(const Done& done) const {
  const auto end = std::chrono::steady_clock::now() + spin_time_;
  while (!done()) {
    for (int i = 0; i < 32 && !done(); ++i) pause();
    if (std::chrono::steady_clock::now() >= end) return;
    sched_yield();  // the core may be needed by the very thread that this one waits for
  }
}

Stream* Engine::take_ready() {
  for (auto* queue : {&ready_[1], &ready_[0]}) {
    if (queue->empty()) continue;
    Stream* stream = queue->front();
    queue->pop_front();
    return stream;
  }
  return nullptr;
}

// Whether this thread may go on with the stream; it is in no queue then.
bool Engine::take(Stream& stream) {
  if (stream.state == Stream::State::claimed) return true;
  if (stream.state != Stream::State::ready) return false;
  auto& queue = ready_[stream.high_priority];
  queue.erase(std::find(queue.begin(), queue.end(), &stream));
  return true;
}

void Engine::make_ready(Stream& stream) {
  stream.state = Stream::State::ready;
  ready_[stream.high_priority].push_back(&stream);
}

// Says that there are ready streams; returns how many sleeping workers are to be notified.
int Engine::announce() {
  ++work_events_;
  const size_t ready = ready_[0].size() + ready_[1].size();
  return std::min(sleeping_, static_cast<int>(ready) - (worker_spins_ ? 1 : 0));
}

void Engine::announce_and_wake() {
  for (int left = announce(); left > 0; --left) work_available_.notify_one();
  if (sleeping_ > 0) return;
  for (Waiter* waiter : waiters_) waiter->wake.notify_one();  // no worker is free, but a waiting thread may help
}

// --- submitting

uint64_t Engine::append(Lock& lock, Stream& stream, Stream::Item& item, Wake wake) {
  item.task.origin = current_origin();
  known.look(id_, interrupts_);
  if (std::find(known.unwaited.begin(), known.unwaited.end(), &stream) == known.unwaited.end())
    known.unwaited.push_back(&stream);
  if (!stream.listed) streams_.push_back(&stream), stream.listed = true;
  const uint64_t sequence = stream.progress->issued[stream.id].fetch_add(1, std::memory_order_acq_rel) + 1;
  if (item.record) item.record->sequence = sequence;
  if (item.awaited && !item.awaited->settled) stream.settled = false;
  item.settled = stream.settled;
  if (item.settled) settle_time(stream, item, sequence);
  if (immediate_ && item.settled) {
    if (item.task.run) carry_out(lock, stream, item.task);
    if (item.record) {
      item.record->failed = stream.error != nullptr;
      item.record->done = true;
    }
    complete(stream);
    return sequence;
  }
  stream.items.push_back(std::move(item));
  if (workers_.empty()) add_worker();  // who computes nothing needs none until work outside has to be waited for
  int notify = 0;
  if (stream.state == Stream::State::idle) {
    if (wake == Wake::caller_waits && for_waiters(stream.items.front().task)) {
      stream.state = Stream::State::claimed;
    } else {
      make_ready(stream);
      notify = announce();
    }
  }
  lock.unlock();
  if (notify > 0) work_available_.notify_one();
  return sequence;
}

// Modelled time behind an item, once it is known before it.
void Engine::settle_time(Stream& stream, Stream::Item& item, uint64_t sequence) {
  stream.time += item.task.duration;
  if (item.task.end) item.task.end->time.store(stream.time, std::memory_order_release);
  if (item.awaited && item.awaited->time > stream.time) {
    if (!item.awaited->stream) stream.outside += item.awaited->time - stream.time;
    stream.time = item.awaited->time;
  }
  if (stream.meter) stream.meter->submitted(stream.id, sequence, stream.time, item.task.duration, item.task.usage);
  if (item.record) {
    item.record->time = stream.time;
    item.record->settled = true;
  }
}

uint64_t Engine::submit(Stream& stream, Task task, Wake wake) {
  Stream::Item item{std::move(task), nullptr, nullptr};
  Lock lock(mutex_);
  return append(lock, stream, item, wake);
}

uint64_t Engine::submit(Stream& stream, Task task, Wake wake, uint64_t interrupts) {
  Stream::Item item{std::move(task), nullptr, nullptr};
  Lock lock(mutex_);
  if (interrupts != interrupts_) throw Dropped("not launched: the main thread was interrupted meanwhile");
  return append(lock, stream, item, wake);
}

void Engine::record(Stream& stream, Event& event) {
  auto record = std::make_shared<Record>();
  record->engine = id_;
  record->stream = &stream;
  Stream::Item item{{}, record, nullptr};
  Lock lock(mutex_);
  event.record = std::move(record);
  append(lock, stream, item, Wake::worker);
}

void Engine::wait_event(Stream& stream, const Event& event) {
  Stream::Item item;
  Lock lock(mutex_);
  if (!pending_here(event)) return;
  item.awaited = event.record;
  append(lock, stream, item, Wake::worker);
}

// --- carrying out

void Engine::step(Lock& lock, Stream& stream) {
  stream.state = Stream::State::running;
  Stream::Item& item = stream.items.front();  // a deque keeps references valid while the host appends
  if (item.awaited) {
    const uint64_t sequence = stream.progress->completed[stream.id].load(std::memory_order_relaxed) + 1;
    const bool skipped = sequence <= std::max(stream.dropped_sequence, stream.skipped_sequence);
    const bool outside = !item.awaited->stream;
    if (!item.awaited->done && !(outside && sequence <= stream.dropped_sequence)) {
      stream.state = Stream::State::blocked;
      item.awaited->waiters.push_back(&stream);
      return;
    }
    if (item.awaited->error && !skipped && !stream.error) {
      stream.error = item.awaited->error;
      stream.failed_sequence = sequence;
    }
  }
  if (item.task.run) carry_out(lock, stream, item.task);
  finish(stream, item);
}

void Engine::carry_out(Lock& lock, Stream& stream, Task& task) {
  const uint64_t sequence = stream.progress->completed[stream.id].load(std::memory_order_relaxed) + 1;
  const bool dropped = sequence <= stream.dropped_sequence;
  const bool skipped = dropped || stream.error || sequence <= stream.skipped_sequence;
  const bool in_callback = task.on_host && !dropped;
  // A callback may take as long as it likes: there is a worker for the rest.
  if (in_callback && ++in_callbacks_ >= workers_.size() && !immediate_ && !stopping_) add_worker();
  Meter* const meter = task.on_host || skipped || immediate_ ? nullptr : stream.meter;
  if (meter) meter->begin();
  ++computing_;
  lock.unlock();
  Stream* const outer = std::exchange(current_stream, &stream);
  std::exception_ptr error;
  try {
    if (in_callback || !(skipped || immediate_)) task.run();
    if (task.ran && !skipped) *task.ran = true;
  } catch (const Stopped&) {  // an interrupt, of which the host knows
  } catch (Error& failed) {
    failed.origin = task.origin;
    error = std::current_exception();
  } catch (...) {
    error = std::current_exception();
  }
  task.run = nullptr;
  current_stream = outer;
  lock.lock();
  --computing_;
  if (meter) meter->end();
  if (in_callback) --in_callbacks_;
  if (stream.stop.exchange(false)) stopped_.notify_all();
  if (!error) return;
  if (!stream.error) {
    stream.error = std::move(error);
    stream.failed_sequence = sequence;
    return;
  }
  lock.unlock();
  error = nullptr;  // the first one counts
  lock.lock();
}

void Engine::complete(Stream& stream) {
  const uint64_t completed = stream.progress->completed[stream.id].fetch_add(1, std::memory_order_release) + 1;
  if (stream.meter) stream.meter->completed(stream.id, completed);
}

void Engine::finish(Stream& stream, Stream::Item& item) {
  bool others = false;
  const uint64_t sequence = stream.progress->completed[stream.id].load(std::memory_order_relaxed) + 1;
  if (!item.settled) settle_time(stream, item, sequence);
  if (item.record) {
    item.record->failed = stream.error || sequence <= std::max(stream.dropped_sequence, stream.skipped_sequence);
    item.record->done = true;
    if (item.record->then) item.record->then();
    for (Stream* waiter : item.record->waiters) make_ready(*waiter);
    others = !item.record->waiters.empty();
    item.record->waiters.clear();
  }
  stream.items.pop_front();
  complete(stream);
  if (stream.items.empty()) {
    stream.state = Stream::State::idle;
    stream.settled = true;
  } else {
    others |= !(ready_[0].empty() && ready_[1].empty() && jobs_.empty());  // else this thread goes on with the stream
    make_ready(stream);
  }
  wake_waiters(stream);
  if (others) announce_and_wake();
}

void Engine::wake_waiters(const Stream& stream) {
  for (Waiter* waiter : waiters_) {
    const Use& use = waiter->use;
    if (use.progress == stream.progress && use.stream == stream.id && use.progress->finished(use.stream, use.sequence))
      waiter->wake.notify_one();
  }
}

// --- waiting

bool Engine::finished(const Stream& stream) const {
  return stream.progress->finished(stream.id, stream.progress->issued[stream.id].load(std::memory_order_acquire));
}

bool Engine::finished(const Event& event) const {
  Lock lock(mutex_);
  return !pending_here(event) || event.record->done;
}

bool Engine::for_waiters(const Task& task) const { return waiters_compute && !task.on_host && task.duration <= kShort; }

namespace {

// What a stream itself waits for comes first; events only point backwards, so this ends.
Stream* first_of(Stream* stream) {
  while (stream && stream->state == Stream::State::blocked) stream = stream->items.front().awaited->stream;
  return stream;
}

}  // namespace

void Engine::refuse_deadlock(const Use& use, Stream* helped) const {
  if (!current_stream) return;
  bool itself = use.progress == current_stream->progress && use.stream == current_stream->id;
  Stream* stream = first_of(helped);
  // Other streams may be in a cycle without this one, for a moment.
  for (size_t i = 0; stream && !itself && i <= streams_.size(); ++i, stream = first_of(stream->waits_for))
    itself = stream == current_stream;
  if (itself)
    throw Error("a callback waits for work on stream " + std::to_string(use.stream) +
                ", which goes on only when the callback returns: let the callback wait for other streams, or wait "
                "outside of it");
}

void Engine::wait_until(Lock& lock, const Use& use, Stream* helped, const InterruptCheck& interrupted) {
  if (wait_while(lock, use, helped, interrupted)) return;
  drop_all(lock);
  throw Interrupted("interrupted while waiting for the card");
}

bool Engine::wait_while(Lock& lock, const Use& use, Stream* helped, const InterruptCheck& stop) {
  const auto done = [&] { return use.progress->finished(use.stream, use.sequence); };
  Waiter waiter{use};
  bool helped_out = false;
  bool spun = false;
  auto next_check = std::chrono::steady_clock::now() + kInterruptPeriod;
  // Others see, as long as this lasts, what the callback that this thread may be in waits for.
  struct Waiting {
    Stream* const stream = current_stream;
    Stream* const outer;
    explicit Waiting(Stream* awaited) : outer(stream ? std::exchange(stream->waits_for, awaited) : nullptr) {}
    ~Waiting() {
      if (stream) stream->waits_for = outer;
    }
  };
  std::optional<Waiting> in_callback;
  while (!done()) {
    refuse_deadlock(use, helped);
    if (!in_callback) in_callback.emplace(helped);
    Stream* const stream = first_of(helped);
    const bool helps = stream && may_help(*stream);
    if (helps && take(*stream)) {
      step(lock, *stream);
      helped_out = true;
      // What this thread does not go on with is for a worker.
      if (stream->state == Stream::State::ready && !may_help(*stream)) announce_and_wake();
    } else if (Job* job = helps ? job_with_room(stream) : nullptr) {
      help(lock, *job);
      spun = false;  // the task may have more of the kind
    } else if (helps && !spun && may_spin()) {
      const uint64_t seen = work_events_;
      ++spinning_;
      waiter.spins_for = stream;
      waiters_.push_back(&waiter);
      lock.unlock();
      spin([&] { return done() || work_events_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      std::erase(waiters_, &waiter);
      waiter.spins_for = nullptr;
      --spinning_;
      spun = work_events_ == seen;
      continue;
    } else {
      waiters_.push_back(&waiter);
      if (stop)
        waiter.wake.wait_until(lock, next_check);
      else
        waiter.wake.wait(lock);
      std::erase(waiters_, &waiter);
    }
    if (!stop || std::chrono::steady_clock::now() < next_check) continue;
    lock.unlock();
    const bool stopped = stop();
    lock.lock();
    next_check = std::chrono::steady_clock::now() + kInterruptPeriod;
    if (stopped) return false;
  }
  // Others may have submitted behind this work, counting on this thread to carry on.
  if (helped_out && !(ready_[0].empty() && ready_[1].empty())) announce_and_wake();
  return true;
}

void Engine::raise_error(Lock& lock, Stream& stream, uint64_t sequence) {
  if (!stream.error || stream.failed_sequence > sequence) return;
  const std::exception_ptr error = std::exchange(stream.error, nullptr);
  stream.skipped_sequence = stream.progress->issued[stream.id].load(std::memory_order_relaxed);
  lock.unlock();
  std::rethrow_exception(error);
}

void Engine::drop_all(Lock& lock) {
  known = {id_, ++interrupts_};
  for (Stream* stream : streams_) {
    const uint64_t issued = stream->progress->issued[stream->id].load(std::memory_order_relaxed);
    uint64_t completed = stream->progress->completed[stream->id].load(std::memory_order_relaxed);
    if (stream->state == Stream::State::running) {
      if (stream->items.front().task.on_host)
        ++completed;  // goes on
      else
        stream->stop = true;
    }
    if (completed >= issued) continue;
    stream->progress->drop(stream->id, completed, issued);
    stream->dropped_sequence = issued;
    stream->drops = interrupts_;
    if (stream->state == Stream::State::claimed) make_ready(*stream);
    if (stream->state == Stream::State::blocked && !stream->items.front().awaited->stream) {
      std::erase(stream->items.front().awaited->waiters, stream);  // other processes may never end it
      make_ready(*stream);
    }
  }
  announce_and_wake();
  const auto stopping = [](const Stream* stream) { return stream != current_stream && stream->stop; };
  stopped_.wait_for(lock, kStopTimeout, [&] { return std::none_of(streams_.begin(), streams_.end(), stopping); });
}

void Engine::drop_all() {
  Lock lock(mutex_);
  drop_all(lock);
}

void Engine::wait(Stream& stream, uint64_t sequence, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  known.look(id_, interrupts_);
  wait_until(lock, {stream.progress, stream.id, sequence}, &stream, interrupted);
  raise_error(lock, stream, sequence);
  const bool dropped = stream.drops > known.interrupts;
  std::erase(known.unwaited, &stream);
  if (!dropped) return;
  known = {id_, interrupts_};
  throw Dropped("work on stream " + std::to_string(stream.id) +
                " was not carried out: the main thread was interrupted, which drops what is queued");
}

void Engine::wait(Stream& stream, const InterruptCheck& interrupted) {
  wait(stream, stream.progress->issued[stream.id].load(std::memory_order_acquire), interrupted);
}

void Engine::wait(const Event& event, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  if (!pending_here(event)) return;
  const std::shared_ptr<Record> record = event.record;
  if (!record->stream) {
    wait_outside(lock, *record, interrupted);
    if (record->error) std::rethrow_exception(record->error);
    return;
  }
  lock.unlock();
  wait(*record->stream, record->sequence, interrupted);
}

void Engine::wait_outside(Lock& lock, const Record& record, const InterruptCheck& interrupted) {
  while (!record.done) {
    fulfilled_.wait_for(lock, kInterruptPeriod);
    if (record.done || !interrupted) continue;
    lock.unlock();
    const bool stop = interrupted();
    lock.lock();
    if (!stop) continue;
    drop_all(lock);
    throw Interrupted("interrupted while waiting for other cards");
  }
}

void Engine::settle(const Use& use, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  wait_until(lock, use, nullptr, interrupted);
}

void Engine::withdraw(Stream& stream, uint64_t sequence) {
  std::function<void()> taken_back;  // let go of after the lock
  Lock lock(mutex_);
  const uint64_t completed = stream.progress->completed[stream.id].load(std::memory_order_relaxed);
  if (sequence <= completed) return;
  if (sequence == completed + 1 && stream.state == Stream::State::running)
    return wait_until(lock, {stream.progress, stream.id, sequence}, nullptr, nullptr);
  taken_back.swap(stream.items[sequence - completed - 1].task.run);
}

Picoseconds Engine::time(Stream& stream, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  if (!stream.settled)
    wait_until(lock, {stream.progress, stream.id, stream.progress->issued[stream.id]}, &stream, interrupted);
  return stream.time;
}

Picoseconds Engine::outside(Stream& stream, const InterruptCheck& interrupted) {
  time(stream, interrupted);
  const Lock lock(mutex_);
  return stream.outside;
}

Picoseconds Engine::time(const Event& event, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  const std::shared_ptr<Record> record = event.record;
  if (!pending_here(event) || record->settled) return record->time;
  if (record->stream)
    wait_until(lock, {record->stream->progress, record->stream->id, record->sequence}, record->stream, interrupted);
  else
    wait_outside(lock, *record, interrupted);
  return record->time;
}

// --- work outside of the engine

Event Engine::expect(OutsideWork& work) {
  Event event;
  event.record = std::make_shared<Record>();
  event.record->engine = id_;
  Lock lock(mutex_);
  event.record->sequence = work.progress.issued[0].fetch_add(1, std::memory_order_acq_rel) + 1;
  return event;
}

void Engine::fulfil(OutsideWork& work, const Event& event, Picoseconds time, std::exception_ptr error) {
  Record& record = *event.record;
  Lock lock(mutex_);
  record.time = time;
  record.settled = true;
  record.failed = error != nullptr;
  record.error = std::move(error);
  record.done = true;
  if (record.then) record.then();
  for (Stream* waiter : record.waiters) make_ready(*waiter);
  const bool others = !record.waiters.empty();
  record.waiters.clear();
  // Completed is what has ended together with all before it.
  uint64_t completed = work.progress.completed[0].load(std::memory_order_relaxed);
  work.early.push_back(record.sequence);
  for (bool found = true; found;) found = std::erase(work.early, completed + 1) > 0 && ++completed;
  work.progress.completed[0].store(completed, std::memory_order_release);
  fulfilled_.notify_all();
  for (Waiter* waiter : waiters_)
    if (waiter->use.progress == &work.progress) waiter->wake.notify_one();
  if (others) announce_and_wake();
}

void Engine::when_done(const Event& event, std::function<void()> then) {
  Lock lock(mutex_);
  if (pending_here(event) && !event.record->done)
    event.record->then = std::move(then);
  else
    then();
}

bool Engine::await(const Event& event, const std::function<bool()>& go_on) {
  Lock lock(mutex_);
  if (!pending_here(event)) return true;
  const std::shared_ptr<Record> record = event.record;
  const auto stop = [&] { return !go_on(); };
  if (record->stream) {
    const Use use{record->stream->progress, record->stream->id, record->sequence};
    wait_while(lock, use, record->stream, stop);
  } else {
    while (!record->done && go_on()) fulfilled_.wait_for(lock, kInterruptPeriod);
  }
  return record->done && !record->failed;
}

// --- loops in parallel

// One that has parts left, and too few threads on them; of a stream, or of any.
Engine::Job* Engine::job_with_room(const Stream* stream) {
  for (size_t i = jobs_.size(); i-- > 0;) {
    Job* job = jobs_[i];
    if (job->next.load(std::memory_order_relaxed) >= job->count)
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    else if (job->helpers + 1 < threads_ && (!stream || job->stream == stream))
      return job;
  }
  return nullptr;
}

void Engine::help(Lock& lock, Job& job) {
  ++job.helpers;
  ++computing_;
  lock.unlock();
  Stream* const outer = std::exchange(current_stream, job.stream);
  run_bodies(job);
  current_stream = outer;
  lock.lock();
  --computing_;
  if (--job.helpers == 0) job.done.notify_one();
}

void Engine::run_bodies(Job& job) {
  try {
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) {
      end_if_stopped();
      job.body(i);
    }
  } catch (...) {
    job.next.store(job.count);
    Lock lock(mutex_);
    if (!job.error) job.error = std::current_exception();
  }
}

void Engine::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 1 || threads_ == 1 || immediate_) {
    for (int64_t i = 0; i < count; ++i) {
      end_if_stopped();
      body(i);
    }
    return;
  }
  Job job{body, count, current_stream};
  Lock lock(mutex_);
  jobs_.push_back(&job);
  ++work_events_;
  // This thread takes part itself, so one fewer than all threads is wanted; some may be spinning.
  const auto spins = [&](const Waiter* waiter) { return job.stream && waiter->spins_for == job.stream; };
  const int64_t awake = worker_spins_ + std::count_if(waiters_.begin(), waiters_.end(), spins);
  const int64_t wanted = std::min<int64_t>({sleeping_, threads_ - 1 - awake, count - 1});
  lock.unlock();
  for (int64_t i = 0; i < wanted; ++i) work_available_.notify_one();
  run_bodies(job);
  lock.lock();
  std::erase(jobs_, &job);
  if (job.helpers > 0) {
    lock.unlock();
    spin([&] { return job.helpers == 0; });
    lock.lock();
    job.done.wait(lock, [&] { return job.helpers == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace spyre
