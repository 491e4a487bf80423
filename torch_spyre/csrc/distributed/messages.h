// Messages from one member of a group to another, matched by sender and tag. They wait neither for each other nor for
// collectives.
#pragma once

#include <list>

#include "distributed/group.h"

namespace torch_spyre::distributed {

constexpr int kAnySource = -1;

class Messages {
 public:
  explicit Messages(std::shared_ptr<Members> members);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  enum class Kind { send, receive };
  // Sends a tensor to a member, or receives it from one, behind what is on the card's current stream; returns at once.
  // `group` is its name.
  std::shared_ptr<Pending> start(Kind kind, const at::Tensor& tensor, int peer, int tag, milliseconds timeout,
                                 const std::string& group);
  void drain();

 private:
  struct Item;
  struct Arrived;
  struct Incoming;
  void work();
  bool progress();
  bool go_on_sending(Item& item);
  void keep(Item& item);
  bool has_arrived(const Item& item) const;
  bool go_on_remotely(Item& item);
  bool is_behind_another(const Item& item) const;
  spyre::Picoseconds arrival(Item& item);
  void finish(Item& item, const Arrived& message);
  bool take_in(int from);
  bool deliver(Item& item);
  void check(const Item& item) const;
  // `waited`: for the other side.
  void end(Item& item, spyre::Picoseconds begin, spyre::Picoseconds waited, spyre::Picoseconds time);

  const std::shared_ptr<Members> members_;
  const int row_lane_;
  const std::shared_ptr<spyre::OutsideWork> outside_ = std::make_shared<spyre::OutsideWork>();
  std::vector<Incoming> incoming_;          // by member
  std::list<Arrived> arrived_;              // and not asked for yet
  spyre::Picoseconds sent_until_ = 0;       // modelled: the link is taken up to here
  std::list<std::unique_ptr<Item>> items_;  // under way, in the order in which they were asked for; the thread's own
  bool connected_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::unique_ptr<Item>> asked_;
  bool stopping_ = false, busy_ = false;
  std::thread thread_;
};

}  // namespace torch_spyre::distributed
