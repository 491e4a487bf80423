// A barrier of the host that tells who has not come to it. It goes through the group's store, so that it works while
// members hang in collectives.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torch_spyre::distributed {

class MonitoredBarrier {
 public:
  // `names` are those of the members.
  MonitoredBarrier(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::vector<std::string> names)
      : store_(store->clone()), rank_(rank), names_(std::move(names)) {}

  // Throws CollectiveFailed, on all that have come, with the first member that has not within the time, or with all of
  // them. `interrupted` ends the wait.
  void wait(std::chrono::milliseconds timeout, bool names_all, const std::function<bool()>& interrupted);

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  static std::string key(uint64_t call, const std::string& of);
  void forget(uint64_t call);
  bool await(const std::string& key, Deadline deadline, const std::function<bool()>& interrupted);
  std::string missing(Deadline deadline, bool names_all, const std::function<bool()>& interrupted);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const std::vector<std::string> names_;
  uint64_t call_ = 0;
};

}  // namespace torch_spyre::distributed
