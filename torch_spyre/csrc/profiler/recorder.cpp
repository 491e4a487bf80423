#include "profiler/recorder.h"

#include <ThreadUtil.h>
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "runtime/calls/blocking.h"

namespace torch_spyre::profiler {

namespace {

// A row takes about a kilobyte in PyTorch's profiler.
constexpr int64_t kRowLimit = 1'000'000;

std::atomic<int64_t> limit{kRowLimit}, rows{0}, dropped{0};
std::atomic<uint64_t> session{0};  // counts profiles

struct Buffer {
  std::mutex mutex;  // against the thread that stops the profile; nobody else waits for it
  std::vector<Record> records;
  size_t first_open = 0;  // records from here on belong to the call under way
};

struct Buffers {
  std::mutex mutex;
  std::vector<std::shared_ptr<Buffer>> all;
};

Buffers& buffers() {
  static auto* all = new Buffers;  // threads may outlive static objects
  return *all;
}

std::shared_ptr<Buffer> new_buffer() {
  auto buffer = std::make_shared<Buffer>();
  const std::lock_guard lock(buffers().mutex);
  buffers().all.push_back(buffer);
  return buffer;
}

// What a thread is in the middle of. What an earlier profile has left behind does not count.
struct Thread {
  std::shared_ptr<Buffer> buffer = new_buffer();
  const int32_t id = libkineto::systemThreadId();
  uint64_t session = 0;
  std::vector<uint64_t> ops, annotations;
  int calls = 0;  // nested
  c10::approx_time_t begin = 0;
};

Thread& this_thread() {
  thread_local Thread thread;
  if (const uint64_t now = session.load(std::memory_order_relaxed); thread.session != now) {
    thread.session = now;
    thread.ops.clear();
    thread.annotations.clear();
  }
  return thread;
}

int64_t rows_of(const spyre::Submission& work) {
  if (!work.plan) return 1;
  int64_t steps = 0;
  for (const spyre::JobStep& step : work.plan->steps)
    steps += step.program ? static_cast<int64_t>(step.program->steps.size()) : 1;
  return steps;
}

// Collectives and work behind them have their time when the other cards have come there. What was dropped never has
// one.
void settle(std::vector<Record>& records) {
  for (Record& record : records) {
    spyre::Submission& work = record.work;
    if (work.end->time < 0) {
      spyre::Card& card = spyre::Runtime::get().card(work.card);
      try {
        run_blocking([&] {
          if (work.exchange)
            card.engine().time(work.exchange->done, spyre::Runtime::interrupted);
          else
            card.engine().time(card.stream(work.stream), spyre::Runtime::interrupted);
        });
      } catch (const std::exception&) {  // an interrupt; what it dropped has no row
      }
    }
    if (work.exchange && work.end->time >= 0) work.duration = work.end->time - work.exchange->begin;
  }
  std::erase_if(records, [](const Record& record) { return record.work.end->time < 0; });
}

// Nothing is freed under a lock: a plan may hold Python objects, and whoever holds the GIL may wait for the lock.
std::vector<Record> taken_records() {
  std::vector<Record> all;
  const std::lock_guard lock(buffers().mutex);
  for (const auto& buffer : buffers().all) {
    const std::lock_guard own(buffer->mutex);
    std::move(buffer->records.begin(), buffer->records.end(), std::back_inserter(all));
    std::vector<Record>().swap(buffer->records);
    buffer->first_open = 0;
  }
  // Of threads that are gone.
  std::erase_if(buffers().all, [](const auto& buffer) { return buffer.use_count() == 1; });
  return all;
}

void pop(std::vector<uint64_t>& stack) {
  if (!stack.empty()) stack.pop_back();
}

void record(spyre::Submission&& work) {
  if (!is_recording()) return;
  const int64_t more = rows_of(work);
  if (rows.fetch_add(more, std::memory_order_relaxed) + more > limit.load(std::memory_order_relaxed)) {
    dropped.fetch_add(more, std::memory_order_relaxed);
    return;
  }
  Thread& thread = this_thread();
  const uint64_t op = !thread.ops.empty()           ? thread.ops.back()
                      : !thread.annotations.empty() ? thread.annotations.back()
                                                    : 0;
  const auto now = c10::getApproximateTime();
  const std::lock_guard lock(thread.buffer->mutex);
  thread.buffer->records.push_back({std::move(work), op, thread.id, thread.calls ? thread.begin : now, now});
}

}  // namespace

int64_t row_limit() { return limit; }
void set_row_limit(int64_t most) { limit = most; }

void start_recording() {
  stop_recording();  // what a thread has noted too late for the profile before
  rows = 0;
  dropped = 0;
  session.fetch_add(1);
  static std::once_flag once;
  std::call_once(once, [] {
    // The child of a fork has no cards, and its parent's profile is not its own.
    pthread_atfork(nullptr, nullptr, [] { recording = false, spyre::submission_observer = nullptr; });
  });
  recording = true;
  spyre::submission_observer = record;
}

Records stop_recording() {
  recording = false;
  spyre::submission_observer = nullptr;
  Records found;
  found.all = taken_records();
  settle(found.all);
  found.dropped_rows = dropped;
  return found;
}

void push_op(uint64_t correlation) { this_thread().ops.push_back(correlation); }
void pop_op() { pop(this_thread().ops); }
void push_annotation(uint64_t correlation) { this_thread().annotations.push_back(correlation); }
void pop_annotation() { pop(this_thread().annotations); }

void HostCall::begin() {
  Thread& thread = this_thread();
  begun_ = true;
  if (thread.calls++) return;
  thread.begin = c10::getApproximateTime();
  const std::lock_guard lock(thread.buffer->mutex);
  thread.buffer->first_open = thread.buffer->records.size();
}

void HostCall::end() {
  Thread& thread = this_thread();
  if (--thread.calls) return;
  const auto now = c10::getApproximateTime();
  const std::lock_guard lock(thread.buffer->mutex);
  auto& records = thread.buffer->records;
  for (size_t i = thread.buffer->first_open; i < records.size(); ++i) records[i].end = now;
}

}  // namespace torch_spyre::profiler
