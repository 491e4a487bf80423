// The collectives and messages of one process group on this process's card. Streams wait for them, the host need not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "card/exchange.h"
#include "distributed/announcement.h"
#include "distributed/connection.h"
#include "distributed/profile_row.h"

namespace torch_spyre::distributed {

using std::chrono::milliseconds;

// A tensor that a collective reads or writes, as it is when the collective is asked for: its storage may change later,
// and its memory stays until the collective has ended.
struct Operand {
  spyre::DeviceView view;
  std::shared_ptr<const spyre::Layout> layout;
  spyre::Memory::Effect effect;
  at::ScalarType dtype;

  int64_t elements() const { return spyre::product(view.size); }
  int64_t bytes() const { return elements() * spyre::element_bytes(layout->format); }
};
Operand reads(const at::Tensor& tensor);
Operand writes(const at::Tensor& tensor);

// One collective as this member asks for it.
struct Request {
  Announcement announcement;
  std::vector<Operand> operands{};
  std::string group{};  // its name
  // Moves the values.
  std::function<void(spyre::Card&, spyre::Channels&, const std::vector<Operand>&)> run{};
  milliseconds timeout{};
};

// What was asked for: the event is done when it has ended.
struct Pending {
  spyre::Event done;
  std::string title;
  std::atomic<int> source{-1};  // of a message from any member: who sent it
};

// The members of a group and why it cannot go on, if it cannot.
class Members {
 public:
  Members(std::unique_ptr<Connection> connection, int rank, std::vector<std::string> names)
      : connection(std::move(connection)), rank(rank), names(std::move(names)) {}

  const std::unique_ptr<Connection> connection;
  const int rank;
  const std::vector<std::string> names;
  int size() const { return static_cast<int>(names.size()); }

  // The first reason counts; the other members are told.
  void fail(const std::string& reason);
  // Of this member or another; empty while all go on.
  std::string failure() const;

 private:
  mutable std::mutex mutex_;
  std::string failure_;
};

// Carries out collectives one after the other, in a thread of its own.
class CollectiveQueue {
 public:
  explicit CollectiveQueue(std::shared_ptr<Members> members);
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  // Asks for a collective behind what is on the card's current stream, and returns at once.
  std::shared_ptr<Pending> start(c10::DeviceIndex device, Request request);
  // Waits for all that was asked for.
  void drain();
  uint64_t sequence() const { return next_.load(); }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Item {
    Request request;
    spyre::Card* card;
    spyre::Event ready, done;
    uint64_t interrupts;
    ProfileRow row;
    Deadline deadline{};
    Deadline warning{};  // when a member that has not come is named
  };
  void work();
  void carry_out(const Item& item);
  spyre::Picoseconds collective(const Item& item);
  void connect(const Item& item);
  std::vector<Announcement> announce(const Item& item, bool failed);
  void check(const Item& item, int peer);
  void check_alive(const Item& item, int rank) const;
  void warn_of_stragglers(const Item& item, int peer);
  [[noreturn]] void time_out(const Item& item, int peer) const;
  // Whom the collective waits for, `peer` among them, and the others.
  struct Absence {
    std::vector<std::string> missing, present;
  };
  Absence absence(int peer) const;
  std::string call(const Item& item) const;

  const std::shared_ptr<Members> members_;
  const int row_lane_;
  const std::shared_ptr<spyre::OutsideWork> outside_ = std::make_shared<spyre::OutsideWork>();
  spyre::Picoseconds time_ = 0;  // modelled, behind the last collective
  bool connected_ = false;
  bool announcing_ = false;
  bool has_warned_ = false;     // of the collective under way
  std::vector<bool> has_come_;  // to it

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Item>> items_;
  bool stopping_ = false, busy_ = false;
  std::atomic<uint64_t> next_{0};
  std::thread thread_;
};

}  // namespace torch_spyre::distributed
