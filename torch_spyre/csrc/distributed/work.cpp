#include "distributed/work.h"

#include <c10/core/StreamGuard.h>

#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"

namespace torch_spyre::distributed {

namespace {

// PyTorch's profiler names collectives by backend and call.
const char* title_of(c10d::OpType op) {
  using c10d::OpType;
  switch (op) {
    case OpType::BROADCAST:
      return "spyreccl:broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "spyreccl:all_reduce";
    case OpType::REDUCE:
      return "spyreccl:reduce";
    case OpType::ALLGATHER:
      return "spyreccl:all_gather";
    case OpType::_ALLGATHER_BASE:
      return "spyreccl:_all_gather_base";
    case OpType::GATHER:
      return "spyreccl:gather";
    case OpType::SCATTER:
      return "spyreccl:scatter";
    case OpType::REDUCE_SCATTER:
      return "spyreccl:reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "spyreccl:_reduce_scatter_base";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "spyreccl:all_to_all";
    case OpType::SEND:
      return "spyreccl:send";
    case OpType::RECV:
      return "spyreccl:recv";
    case OpType::RECVANYSOURCE:
      return "spyreccl:recvAnySource";
    case OpType::BARRIER:
      return "spyreccl:barrier";
    default:
      return nullptr;
  }
}

}  // namespace

SpyreWork::SpyreWork(int rank, c10d::OpType op, c10::DeviceIndex device, std::vector<std::shared_ptr<Pending>> pending,
                     std::vector<at::Tensor> outputs, bool blocks)
    : Work(rank, op, title_of(op), outputs),
      device_(device),
      pending_(std::move(pending)),
      outputs_(std::move(outputs)),
      blocks_(blocks) {
  // The profiler's row of the host ends here: what the card does has rows of its own.
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  recordFunctionEndCallback_ = nullptr;
}

bool SpyreWork::isCompleted() {
  spyre::Engine& engine = card(device_).engine();
  for (const auto& each : pending_)
    if (!engine.finished(each->done)) return false;
  return true;
}

std::exception_ptr SpyreWork::exception() const {
  for (const auto& each : pending_)
    if (each->done.record->done && each->done.record->error) return each->done.record->error;
  return nullptr;
}

bool SpyreWork::isSuccess() const { return !exception(); }

int SpyreWork::sourceRank() const { return pending_.empty() ? -1 : pending_.front()->source.load(); }

// Work that is submitted from now on to the current stream comes behind the collective.
void SpyreWork::synchronize() {
  spyre::Card& on = card(device_);
  for (const auto& each : pending_) on.engine().wait_event(on.stream(current_stream(device_)), each->done);
}

bool SpyreWork::wait(std::chrono::milliseconds timeout) {
  const bool waits = blocks_ || timeout > kNoTimeout;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  run_blocking([&] {
    spyre::Engine& engine = card(device_).engine();
    for (const auto& each : pending_) {
      if (!waits && !engine.finished(each->done)) continue;
      if (timeout > kNoTimeout) {
        const bool ended = engine.await(each->done, [&] {
          return std::chrono::steady_clock::now() < deadline &&
                 !(spyre::Runtime::interrupted && spyre::Runtime::interrupted());
        });
        if (!ended && !engine.finished(each->done))
          throw spyre::CollectiveFailed(each->title + " has not ended within " + std::to_string(timeout.count()) +
                                        " ms, for which its wait() was asked");
      }
      engine.wait(each->done, spyre::Runtime::interrupted);
    }
  });
  synchronize();
  return true;
}

// Complete at once, as other accelerators have it: what follows the future runs on streams that wait for the
// collective.
c10::intrusive_ptr<c10::ivalue::Future> SpyreWork::getFuture() {
  if (future_) return future_;
  const c10::Device device(kSpyre, device_);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device});
  const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, device, stream_from_pool(device_, true)));
  synchronize();
  future_->markCompleted(c10::IValue(outputs_));
  return future_;
}

}  // namespace torch_spyre::distributed
