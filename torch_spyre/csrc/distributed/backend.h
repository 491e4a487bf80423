// spyreccl: torch.distributed on cards.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/group.h"
#include "distributed/messages.h"
#include "distributed/monitored_barrier.h"
#include "distributed/work.h"

namespace torch_spyre::distributed {

constexpr const char* kBackendName = "spyreccl";

class SpyreCCL final : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(milliseconds timeout) : c10d::Backend::Options(kBackendName, timeout) {}
  };
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  // Makes a Gloo backend for a group, and for the groups that it is split into.
  using GlooFactory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>&, int rank,
                                                                      int size, milliseconds timeout)>;

  // `global_ranks` are the members' ranks in the whole program, for messages. Without `make_gloo` the group is lone: in
  // timing mode, this process stands for all of its members.
  SpyreCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout,
           const std::vector<int64_t>& global_ranks, const std::string& version, GlooFactory make_gloo);
  ~SpyreCCL() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override { options_->timeout = timeout; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  int64_t calls() const { return calls_; }  // of any kind, since the beginning

 private:
  struct Call;
  WorkPointer start(Call call);
  void check_not_lone(const char* what) const;
  WorkPointer message(std::shared_ptr<Pending> pending, c10d::OpType op, const at::Tensor& tensor);
  milliseconds timeout_of(milliseconds asked) const { return asked.count() < 0 ? options_->timeout : asked; }

  const c10::intrusive_ptr<Options> options_;
  const std::string version_;
  const GlooFactory make_gloo_;
  const std::shared_ptr<Members> members_;
  std::unique_ptr<CollectiveQueue> collectives_;
  std::unique_ptr<Messages> messages_;
  MonitoredBarrier monitored_barrier_;
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<SpyreWork>> coalesced_;
  std::atomic<int64_t> calls_{0};
};

}  // namespace torch_spyre::distributed
