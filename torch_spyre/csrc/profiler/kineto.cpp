// The cards as PyTorch's profiler sees them: an activity profiler of kineto, ProfilerActivity.PrivateUse1.
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <torch/csrc/utils/pybind.h>

#include "profiler/recorder.h"
#include "profiler/rows.h"
#include "runtime/device/device.h"

namespace torch_spyre::profiler {

namespace {

using libkineto::ActivityType;

const std::set<ActivityType> kTypes = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                       ActivityType::GPU_MEMSET, ActivityType::PRIVATEUSE1_RUNTIME};

// In Python: this is called without the GIL, and with no handler for PyTorch's own warnings.
void warn(const std::string& message) {
  if (!Py_IsInitialized()) return;
  pybind11::gil_scoped_acquire gil;
  if (PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}
  ~Session() override {
    if (status_ == libkineto::TraceStatus::RECORDING) stop_recording();
  }

  void start() override {
    start_recording();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    records_ = stop_recording();
    status_ = libkineto::TraceStatus::PROCESSING;
    dropped_rows_ = records_.dropped_rows;
    if (dropped_rows_)
      warn("the profile keeps at most " + std::to_string(row_limit()) + " rows of the card and lacks " +
           std::to_string(dropped_rows_) +
           " more; profile fewer steps, or raise the limit with torch_spyre.profiler.set_row_limit");
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback host_op, int64_t from,
                    int64_t until) override {
    rows_->span = {from, until, "spyre"};
    rows_->gpuOpCount = 0;
    add_rows(*rows_, std::move(records_), types_, clock_.makeConverter(), host_op);
    // Not handleGenericActivity, which keeps a copy without the args.
    std::set<int64_t> cards;
    for (const auto& row : rows_->activities) {
      logger.handleActivity(*row);
      // kineto asks for one device; the others are named here.
      const bool on_card = row->activityType != ActivityType::PRIVATEUSE1_RUNTIME;
      if (on_card && row->device != 0 && cards.insert(row->device).second)
        logger.handleDeviceInfo(*device_info(row->device), from);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return device_info(0); }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> lanes;
    std::set<std::pair<int64_t, int64_t>> named;
    for (const auto& row : rows_->activities)
      if (row->activityType != ActivityType::PRIVATEUSE1_RUNTIME && named.emplace(row->device, row->resource).second)
        lanes.push_back({row->resource, row->resource, row->device, "stream " + std::to_string(row->resource)});
    return lanes;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(rows_); }

  void pushCorrelationId(uint64_t id) override { push_op(id); }
  void popCorrelationId() override { pop_op(); }
  void pushUserCorrelationId(uint64_t id) override { push_annotation(id); }
  void popUserCorrelationId() override { pop_annotation(); }

  std::string getDeviceProperties() override {
    std::string text;
    if (!spyre::Runtime::started() || spyre::Runtime::forked()) return text;
    spyre::Runtime& runtime = spyre::Runtime::get();
    for (int i = 0; i < runtime.count(); ++i)
      text += std::string(i ? ", " : "") + "{\"id\": " + std::to_string(i) +
              ", \"name\": \"IBM Spyre (software card)\", \"type\": \"AIU\", \"cores\": " +
              std::to_string(runtime.card(i).cores()) +
              ", \"totalGlobalMem\": " + std::to_string(runtime.card(i).memory().capacity()) + "}";
    return text;
  }
  std::unordered_map<std::string, std::string> getMetadata() override {
    if (!dropped_rows_) return {};
    return {{"spyre_rows_dropped", std::to_string(dropped_rows_)}};
  }

 private:
  static std::unique_ptr<libkineto::DeviceInfo> device_info(int64_t card) {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{card, libkineto::kExceedMaxPid + card, "spyre:" + std::to_string(card), "IBM Spyre"});
  }

  const std::set<ActivityType> types_;
  c10::ApproximateClockToUnixTimeConverter clock_;
  Records records_;
  int64_t dropped_rows_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> rows_ = std::make_unique<libkineto::CpuTraceBuffer>();
};

class SpyreProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string kName = "spyre";
    return kName;
  }
  const std::set<ActivityType>& availableActivities() const override { return kTypes; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    std::set<ActivityType> types;
    for (const ActivityType type : kTypes)
      if (wanted.count(type)) types.insert(type);
    if (types.empty()) return nullptr;
    return std::make_unique<Session>(std::move(types));
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

}  // namespace

REGISTER_PRIVATEUSE1_PROFILER(SpyreProfiler);

}  // namespace torch_spyre::profiler
