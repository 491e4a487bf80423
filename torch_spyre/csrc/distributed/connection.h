// How the processes of a group find each other, and what carries their bytes: shared memory within a host, Gloo between
// hosts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "card/exchange.h"

namespace torch_spyre::distributed {

// Asked now and then while a member waits; throws to end the wait.
using Patience = std::function<void()>;

// Makes a Gloo backend for the group; called when one of its members is on another host.
using MakeGloo = std::function<c10::intrusive_ptr<c10d::Backend>()>;

class Connection {
 public:
  // Publishes where this member is; waits for nobody.
  Connection(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int global_rank,
             std::vector<std::string> names, const std::string& version, MakeGloo make_gloo);
  // Of a lone group: this process stands for all members, which do what it does, on cards side by side. Nobody is
  // waited for, and nothing is sent.
  Connection(int rank, std::vector<std::string> names);
  ~Connection();
  bool is_lone() const { return !store_; }

  // Waits until all others have published, and connects to them, once. `waits_for` is told whom it waits for.
  void connect(const Patience& patience, const std::function<void(int peer)>& waits_for);

  // Whether a member is about to connect, or has.
  bool has_come(int rank);

  // Once connected.
  spyre::Channels& channels() { return *channels_; }
  const std::vector<int>& cards() const { return cards_; }                    // their places, by rank
  spyre::SharedGroup* shared() { return shares_ ? shared_.get() : nullptr; }  // null: not all are on this host
  const c10::intrusive_ptr<c10d::Backend>& gloo() const { return gloo_; }

  // How often this member was woken, by itself or by another, and waiting for the next time, or a while.
  uint32_t rings(spyre::Lane lane);
  void wait(spyre::Lane lane, uint32_t seen);
  void wake(spyre::Lane lane);

  // Why nothing more comes from another member, with its name; empty while something may, or where nobody knows.
  std::string departure(int rank) const;
  // Tells the others that this member asks for nothing more.
  void leave();
  // Tells the others that this member goes on no more.
  void fail(const std::string& reason);
  // Why another member goes on no more, with its name; empty where all do.
  std::string failure() const;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::vector<std::string> names_;
  const MakeGloo make_gloo_;
  std::mutex connecting_;
  std::atomic<bool> connected_{false}, shares_{false};
  const std::unique_ptr<spyre::SharedGroup> shared_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::unique_ptr<spyre::Channels> channels_;
  std::vector<int> cards_;
};

}  // namespace torch_spyre::distributed
