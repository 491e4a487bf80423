// A row on a card begins at the later of its launch on the host and the end of the row before it in its lane, which is
// its stream, and lasts its modelled time. Lanes are laid out in picoseconds and rounded to the nanoseconds of a trace,
// so that rows add up; what takes less than one gets one, from what follows. Two nanoseconds are left between rows:
// traces count microseconds from a moment up to three months ago, and readers that do so in floating point would see
// rows overlap.
#include "profiler/rows.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "profiler/step_facts.h"
#include "runtime/calls/origin.h"
#include "runtime/device/device.h"

namespace torch_spyre::profiler {

namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using spyre::Picoseconds;
using spyre::Transfer;
namespace py = pybind11;

// "file:line" of the Python code that submitted the work, each looked up once.
class Lines {
 public:
  const std::string* of(const spyre::Origin& origin) {
    const std::string*& line = known_[{origin.code, origin.offset}];
    if (line) return line;
    std::string text;
    if (origin.code && Py_IsInitialized()) {
      py::gil_scoped_acquire gil;
      auto* code = static_cast<PyCodeObject*>(const_cast<void*>(origin.code));
      text = py::str(py::handle(code->co_filename)).cast<std::string>() + ":" +
             std::to_string(PyCode_Addr2Line(code, origin.offset));
    }
    return line = interned(text);
  }

 private:
  std::map<std::pair<const void*, int>, const std::string*> known_;
};

using PlanFacts = std::shared_ptr<const std::vector<StepFacts>>;

// There may be a million rows: texts are put together when they are asked for.
struct Row : GenericTraceActivity {
  using GenericTraceActivity::GenericTraceActivity;

  const std::string metadataJson() const override;

  std::shared_ptr<const StepFacts> step;  // of kernels
  Picoseconds modelled = 0, duration = 0;
  int64_t bytes = -1;  // of transfers
  std::shared_ptr<const spyre::Exchange> exchange;
  const std::string* source = nullptr;  // of kernels and transfers: file:line
  const std::string* kernel = nullptr;  // of launches
};

std::string member(const char* name, const std::string& value) { return std::string(", \"") + name + "\": " + value; }

const std::string Row::metadataJson() const {
  const bool on_card = activityType != ActivityType::PRIVATEUSE1_RUNTIME;
  std::string text = "\"correlation\": " + std::to_string(id);
  if (kernel) text += member("kernel", quoted(*kernel));
  if (!on_card) return text;
  text += member("device", std::to_string(device)) + member("stream", std::to_string(resource)) +
          member("modelled_start_ns", nanoseconds(modelled)) + member("modelled_ns", nanoseconds(duration)) +
          member("source", quoted(*source));
  if (bytes >= 0)
    text +=
        member("bytes", std::to_string(bytes)) +
        member("memory bandwidth (GB/s)", decimal(1000.0 * static_cast<double>(bytes) / static_cast<double>(duration)));
  if (exchange)
    text += member("coll_group", quoted(exchange->group)) + member("coll_algo", quoted(exchange->algorithm)) +
            member("coll_bytes", std::to_string(exchange->bytes)) + member("waited_ns", nanoseconds(exchange->waited));
  if (step)
    text += member("pt_util", decimal(1000 * step->ideal_ns / static_cast<double>(duration))) + ", " + step->args;
  return text;
}

const char* name_of(Transfer::Kind kind) {
  switch (kind) {
    case Transfer::Kind::to_card:
      return "Memcpy (HtoD)";
    case Transfer::Kind::to_host:
      return "Memcpy (DtoH)";
    case Transfer::Kind::on_card:
      return "Memcpy (DtoD)";
    case Transfer::Kind::from_peer:
      return "Memcpy (DtoD, from another card)";
    case Transfer::Kind::fill:
      return "Memset (Device)";
  }
  return "";
}

constexpr int64_t kBetweenRows = 2;

// How far a lane is filled.
struct Lane {
  Picoseconds end = 0;  // by the modelled times alone
  int64_t end_ns = 0;   // of its last row
  int64_t owed_ns = 0;  // by which rows are longer than their times, since they last a nanosecond at least
};

class Rows {
 public:
  Rows(libkineto::CpuTraceBuffer& to, const std::set<ActivityType>& types,
       const std::function<int64_t(c10::approx_time_t)>& unix_time, const libkineto::getLinkedActivityCallback& host_op)
      : to_(to), types_(types), unix_time_(unix_time), host_op_(host_op) {}

  void add(const Record& record) {
    ++correlation_;
    const spyre::Submission& work = record.work;
    linked_ = record.op ? host_op_(static_cast<int32_t>(record.op)) : nullptr;
    settle_host_times(record);
    flow_started_ = false;
    if (work.duration > 0) add_host_row(record);
    if (work.exchange) {
      Row* row = add_device_row(ActivityType::CONCURRENT_KERNEL, "spyreccl_" + work.exchange->name, work, work.start(),
                                work.duration);
      if (row) row->exchange = work.exchange;
      return;
    }
    if (!work.plan) {
      const Transfer& moved = work.transfer;
      const bool fills = moved.kind == Transfer::Kind::fill;
      Row* row = add_device_row(fills ? ActivityType::GPU_MEMSET : ActivityType::GPU_MEMCPY, name_of(moved.kind), work,
                                work.start(), work.duration);
      if (row) row->bytes = std::max(moved.bytes_read, moved.bytes_written);
      return;
    }
    add_steps(work);
  }

 private:
  // A call is inside of its op. PyTorch converts the counter of the processor with measurements of its own, and the two
  // may differ by some tens of nanoseconds. It ends before its op does, for readers in floating point.
  void settle_host_times(const Record& record) {
    begin_ns_ = unix_time_(record.begin);
    end_ns_ = std::max(unix_time_(record.end), begin_ns_ + 1);
    if (!linked_ || linked_->duration() < 1) return;
    const int64_t first = linked_->timestamp();
    const int64_t last = first + std::max<int64_t>(linked_->duration() - kBetweenRows, 1);
    begin_ns_ = std::clamp(begin_ns_, first, last - 1);
    end_ns_ = std::clamp(end_ns_, begin_ns_ + 1, last);
  }

  void add_steps(const spyre::Submission& work) {
    const PlanFacts facts = facts_for(work);
    Picoseconds start = work.start(), waited = work.waited;
    for (const StepFacts& step : *facts) {
      const bool is_kernel = step.kind == StepFacts::Kind::kernel;
      // What a launch waits for, its first step waits for.
      const Picoseconds duration = step.duration + (is_kernel ? std::exchange(waited, 0) : 0);
      if (is_kernel) {
        if (Row* row = add_device_row(ActivityType::CONCURRENT_KERNEL, step.name, work, start, duration)) {
          row->step = {facts, &step};
          if (step.source) row->source = step.source;
        }
      } else {
        const auto kind = step.kind == StepFacts::Kind::to_card ? Transfer::Kind::to_card : Transfer::Kind::to_host;
        Row* row = add_device_row(ActivityType::GPU_MEMCPY, name_of(kind), work, start, duration);
        if (row) row->bytes = step.bytes;
      }
      start += duration;
    }
  }

  PlanFacts facts_for(const spyre::Submission& work) {
    PlanFacts& facts = facts_[work.plan.get()];
    if (!facts)
      facts = std::make_shared<const std::vector<StepFacts>>(
          facts_of(*work.plan, card(static_cast<c10::DeviceIndex>(work.card))));
    return facts;
  }

  void add_host_row(const Record& record) {
    if (!types_.count(ActivityType::PRIVATEUSE1_RUNTIME)) return;
    const spyre::Submission& work = record.work;
    const char* name = work.exchange                                ? "spyreCollective"
                       : work.plan                                  ? "spyreLaunchKernel"
                       : work.transfer.kind == Transfer::Kind::fill ? "spyreMemset"
                                                                    : "spyreMemcpy";
    Row* row = add_row(ActivityType::PRIVATEUSE1_RUNTIME, name);
    row->startTime = begin_ns_;
    row->endTime = end_ns_;
    row->device = libkineto::processId();
    row->resource = record.thread;
    row->threadId = record.thread;
    row->flow.start = true;
    row->flow.id = static_cast<uint32_t>(correlation_);
    row->flow.type = libkineto::kLinkAsyncCpuGpu;
    if (work.plan) row->kernel = interned(work.plan->name);
  }

  // Null where it takes no time, or where no such rows are wanted: its time passes in the lane all the same.
  Row* add_device_row(ActivityType type, const std::string& name, const spyre::Submission& work, Picoseconds modelled,
                      Picoseconds duration) {
    if (duration <= 0) return nullptr;
    Lane& lane = lanes_[{work.card, work.stream}];
    const Picoseconds start = std::max(lane.end, 1000 * (begin_ns_ - kEpoch));
    lane.end = start + duration;
    const int64_t start_ns = std::max(kEpoch + rounded(start), lane.end_ns + kBetweenRows);
    const int64_t asked_ns = rounded(lane.end) - rounded(start) - lane.owed_ns;
    const int64_t end_ns = start_ns + std::max<int64_t>(asked_ns, 1);
    lane.owed_ns = end_ns - start_ns - asked_ns;
    lane.end_ns = end_ns;
    if (!types_.count(type)) return nullptr;
    Row* row = add_row(type, name);
    row->startTime = start_ns;
    row->endTime = end_ns;
    row->device = work.card;
    row->resource = work.stream;
    if (!std::exchange(flow_started_, true)) {
      row->flow.id = static_cast<uint32_t>(correlation_);
      row->flow.type = libkineto::kLinkAsyncCpuGpu;
    }
    row->modelled = modelled;
    row->duration = duration;
    row->source = lines_.of(work.origin);
    return row;
  }

  Row* add_row(ActivityType type, const std::string& name) {
    auto row = std::make_unique<Row>(to_.span, type, name);
    row->id = static_cast<int32_t>(correlation_);
    row->linked = linked_;
    Row* added = row.get();
    to_.activities.push_back(std::move(row));
    return added;
  }

  static int64_t rounded(Picoseconds time) { return (time + 500) / 1000; }

  // Picoseconds since 1970 do not fit 64 bits: those of a lane count from a moment in the recent past.
  const int64_t kEpoch = c10::getTimeSinceEpoch() - int64_t{30} * 86400 * 1'000'000'000;

  libkineto::CpuTraceBuffer& to_;
  const std::set<ActivityType>& types_;
  const std::function<int64_t(c10::approx_time_t)>& unix_time_;
  const libkineto::getLinkedActivityCallback& host_op_;
  std::map<std::pair<int, int>, Lane> lanes_;  // by card and stream
  std::unordered_map<const spyre::JobPlan*, PlanFacts> facts_;
  Lines lines_;
  // Of the record at hand.
  int64_t correlation_ = 0;
  const libkineto::ITraceActivity* linked_ = nullptr;
  int64_t begin_ns_ = 0, end_ns_ = 0;  // on the host
  bool flow_started_ = false;
};

}  // namespace

void add_rows(libkineto::CpuTraceBuffer& to, Records records, const std::set<ActivityType>& types,
              const std::function<int64_t(c10::approx_time_t)>& unix_time,
              const libkineto::getLinkedActivityCallback& host_op) {
  // In the order of the modelled clock, which is that of submission within a lane.
  std::stable_sort(records.all.begin(), records.all.end(),
                   [](const Record& a, const Record& b) { return a.lane_and_start() < b.lane_and_start(); });
  Rows rows(to, types, unix_time, host_op);
  for (const Record& record : records.all) rows.add(record);
}

}  // namespace torch_spyre::profiler
