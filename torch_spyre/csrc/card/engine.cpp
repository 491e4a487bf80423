#include "engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace spyre {

struct Engine::Job {
  const std::function<void(int64_t)>* body;
  int64_t count;
  std::atomic<int64_t> next{0};
  int helpers = 0;  // pool threads inside, guarded by the engine's mutex
  std::exception_ptr error;
};

Engine::Engine(int threads, bool immediate) : threads_(std::max(1, threads)), immediate_(immediate) {
  if (immediate_) return;
  for (int i = 0; i < threads_; ++i) workers_.emplace_back([this] { work(); });
}

Engine::~Engine() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  work_available_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Engine::work() {
  Lock lock(mutex_);
  while (true) {
    if (!jobs_.empty()) {
      Job& job = *jobs_.back();
      if (job.next.load(std::memory_order_relaxed) >= job.count) {
        jobs_.pop_back();
        continue;
      }
      ++job.helpers;
      lock.unlock();
      help(job);
      lock.lock();
      if (--job.helpers == 0) progress_made_.notify_all();
      continue;
    }
    Stream* stream = nullptr;
    for (int priority : {1, 0})
      if (!stream && !ready_[priority].empty()) {
        stream = ready_[priority].front();
        ready_[priority].pop_front();
      }
    if (stream) {
      step(lock, *stream);
      continue;
    }
    if (stopping_) return;
    ++sleeping_;
    work_available_.wait(lock);
    --sleeping_;
  }
}

void Engine::make_ready(Stream& stream) {
  stream.state = Stream::State::ready;
  ready_[stream.high_priority].push_back(&stream);
}

uint64_t Engine::append(Lock& lock, Stream& stream, Stream::Item item, Wake wake) {
  const uint64_t sequence = stream.progress->issued[stream.id].fetch_add(1) + 1;
  stream.time += item.task.duration;
  if (item.awaited) stream.time = std::max(stream.time, item.awaited->time);
  if (item.record) item.record->time = stream.time;
  if (immediate_) {
    // Device work is not computed; what the host asked to be called is called, outside the lock.
    if (item.record) item.record->done = true;
    if (item.task.on_host) {
      lock.unlock();
      item.task.run();
      lock.lock();
    }
    stream.progress->completed[stream.id].fetch_add(1);
    return sequence;
  }
  stream.items.push_back(std::move(item));
  if (stream.state == Stream::State::idle) {
    make_ready(stream);
    if (wake == Wake::worker && sleeping_ > 0) work_available_.notify_one();
  }
  return sequence;
}

uint64_t Engine::submit(Stream& stream, Task task, Wake wake) {
  Lock lock(mutex_);
  return append(lock, stream, {std::move(task), nullptr, nullptr}, wake);
}

void Engine::record(Stream& stream, Event& event) {
  Lock lock(mutex_);
  auto record = std::make_shared<Record>();
  record->stream = &stream;
  event.record = record;
  append(lock, stream, {{}, record, nullptr}, Wake::worker);
}

void Engine::wait_event(Stream& stream, const Event& event) {
  Lock lock(mutex_);
  if (event.record) append(lock, stream, {{}, nullptr, event.record}, Wake::worker);
}

void Engine::step(Lock& lock, Stream& stream) {
  stream.state = Stream::State::running;
  Stream::Item& item = stream.items.front();  // a deque keeps references valid while the host appends
  if (item.awaited && !item.awaited->done) {
    stream.state = Stream::State::blocked;
    item.awaited->waiters.push_back(&stream);
    return;
  }
  if (item.task.run && (!stream.error || item.task.on_host)) {
    lock.unlock();
    std::exception_ptr error;
    try {
      item.task.run();
    } catch (...) {
      error = std::current_exception();
    }
    item.task.run = nullptr;  // what the closure holds is let go without the lock
    lock.lock();
    if (error && !stream.error) stream.error = error;
  }
  if (Record* record = item.record.get()) {
    record->error = stream.error;
    record->done = true;
    for (Stream* waiter : record->waiters) make_ready(*waiter);
    if (!record->waiters.empty()) work_available_.notify_all();
    record->waiters.clear();
  }
  stream.items.pop_front();
  stream.progress->completed[stream.id].fetch_add(1, std::memory_order_release);
  if (stream.items.empty()) {
    stream.state = Stream::State::idle;
  } else {
    make_ready(stream);
  }
  if (waiting_ > 0) progress_made_.notify_all();
}

bool Engine::finished(const Stream& stream) const {
  return stream.progress->finished(stream.id, stream.progress->issued[stream.id].load());
}

bool Engine::finished(const Event& event) const {
  Lock lock(mutex_);
  return !event.record || event.record->done;
}

template <typename Done>
void Engine::wait_until(Lock& lock, Stream* stream, const Done& done, const InterruptCheck& interrupted) {
  auto last_check = std::chrono::steady_clock::now();
  while (!done()) {
    if (stream && stream->state == Stream::State::ready) {
      auto& queue = ready_[stream->high_priority];
      queue.erase(std::find(queue.begin(), queue.end(), stream));
      step(lock, *stream);
    } else {
      ++waiting_;
      progress_made_.wait_for(lock, std::chrono::milliseconds(20));
      --waiting_;
    }
    const auto now = std::chrono::steady_clock::now();
    if (interrupted && now - last_check > std::chrono::milliseconds(20)) {
      last_check = now;
      lock.unlock();
      const bool stop = interrupted();
      lock.lock();
      if (stop) {
        // Work that this wait would have carried out goes back to the pool.
        work_available_.notify_all();
        throw Interrupted("interrupted while waiting for the card");
      }
    }
  }
  // This thread may have left work that others submitted meanwhile, counting on it to carry on.
  if (sleeping_ > 0 && (!ready_[0].empty() || !ready_[1].empty())) work_available_.notify_one();
}

void Engine::set_error(Stream& stream, std::exception_ptr error) {
  Lock lock(mutex_);
  if (!stream.error) stream.error = std::move(error);
}

void Engine::wait(Stream& stream, uint64_t sequence, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  wait_until(lock, &stream, [&] { return stream.progress->finished(stream.id, sequence); }, interrupted);
  if (std::exception_ptr error = std::exchange(stream.error, nullptr)) std::rethrow_exception(error);
}

void Engine::wait(Stream& stream, const InterruptCheck& interrupted) {
  wait(stream, stream.progress->issued[stream.id].load(), interrupted);
}

void Engine::wait(const Event& event, const InterruptCheck& interrupted) {
  Lock lock(mutex_);
  const std::shared_ptr<Record> record = event.record;
  if (!record) return;
  wait_until(lock, record->stream, [&] { return record->done.load(); }, interrupted);
  if (std::exception_ptr error = std::exchange(record->error, nullptr)) {
    if (record->stream->error == error) record->stream->error = nullptr;
    std::rethrow_exception(error);
  }
}

Picoseconds Engine::time(const Stream& stream) const {
  Lock lock(mutex_);
  return stream.time;
}

void Engine::help(Job& job) {
  try {
    for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) (*job.body)(i);
  } catch (...) {
    job.next.store(job.count);
    Lock lock(mutex_);
    job.error = std::current_exception();
  }
}

void Engine::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 0) return;
  if (count == 1 || threads_ == 1 || immediate_) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Job job{&body, count};
  {
    Lock lock(mutex_);
    jobs_.push_back(&job);
    // This thread takes part itself, so one fewer than all threads is woken.
    for (int i = 0; i < std::min<int64_t>({sleeping_, threads_ - 1, count - 1}); ++i) work_available_.notify_one();
  }
  help(job);
  Lock lock(mutex_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
  ++waiting_;
  progress_made_.wait(lock, [&] { return job.helpers == 0; });
  --waiting_;
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace spyre
