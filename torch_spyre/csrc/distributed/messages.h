// Messages from one member of a group to another, matched by sender and tag. They wait neither for each other nor for
// collectives.
#pragma once

#include <list>

#include "distributed/group.h"

namespace torch_spyre::distributed {

constexpr int kAnySource = -1;

struct MessageHeader;
struct MessageItem;
class GlooMessages;

class Messages {
 public:
  explicit Messages(std::shared_ptr<Members> members);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Behind what is on the card's current stream; both return at once.
  std::shared_ptr<Pending> send(c10::DeviceIndex device, const at::Tensor& tensor, int to, int tag,
                                milliseconds timeout);
  std::shared_ptr<Pending> receive(c10::DeviceIndex device, const at::Tensor& tensor, int from, int tag,
                                   milliseconds timeout);
  void drain();

 private:
  struct Arrived;
  struct Incoming;
  std::shared_ptr<Pending> start(std::unique_ptr<MessageItem> item, c10::DeviceIndex device);
  void work();
  bool progress();
  bool go_on_sending(MessageItem& item);
  void keep(MessageItem& item);
  bool take_in(int from);
  MessageHeader header_of(const MessageItem& item);
  bool deliver(MessageItem& item);
  bool deliver_from_gloo(MessageItem& item);
  void accept(MessageItem& item, int from, const MessageHeader& header, const std::byte* values);
  void check(const MessageItem& item) const;
  void end(MessageItem& item, spyre::Picoseconds time, std::exception_ptr error);

  const std::shared_ptr<Members> members_;
  const std::shared_ptr<spyre::OutsideWork> outside_ = std::make_shared<spyre::OutsideWork>();
  std::vector<Incoming> incoming_;     // by member
  std::list<Arrived> arrived_;         // and not asked for yet
  spyre::Picoseconds sent_until_ = 0;  // modelled: the link is taken up to here
  std::list<std::unique_ptr<MessageItem>>
      items_;  // under way, in the order in which they were asked for; the thread's own
  bool connected_ = false;
  std::unique_ptr<GlooMessages> gloo_;  // carries them where the members share no memory

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::unique_ptr<MessageItem>> asked_;
  bool stopping_ = false, busy_ = false;
  std::thread thread_;
};

}  // namespace torch_spyre::distributed
