// What c10d gets back for a collective that was asked for.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/group.h"

namespace torch_spyre::distributed {

class SpyreWork final : public c10d::Work {
 public:
  // With `blocks`, wait() returns when the collective has ended; otherwise the current stream waits, and not the host.
  SpyreWork(int rank, c10d::OpType op, c10::DeviceIndex device, std::vector<std::shared_ptr<Pending>> pending,
            std::vector<at::Tensor> outputs, bool blocks);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const std::vector<std::shared_ptr<Pending>>& pending() const { return pending_; }
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  const c10::DeviceIndex device_;
  const std::vector<std::shared_ptr<Pending>> pending_;
  const std::vector<at::Tensor> outputs_;
  const bool blocks_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_spyre::distributed
