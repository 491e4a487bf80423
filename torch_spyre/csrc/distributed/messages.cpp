#include "distributed/messages.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <sstream>

#include "distributed/gloo_messages.h"
#include "distributed/message_item.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"

namespace torch_spyre::distributed {

using spyre::CollectiveFailed;
using SharedLane = spyre::Lane;

constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(MessageHeader));

struct Messages::Incoming {
  bool begun = false;
  MessageHeader header{};
  std::vector<std::byte> data{};
  int64_t filled = 0;
};

struct Messages::Arrived {
  int from;
  MessageHeader header;
  std::vector<std::byte> data;
};

Messages::Messages(std::shared_ptr<Members> members)
    : members_(std::move(members)), incoming_(members_->size()), thread_([this] { work(); }) {}

Messages::~Messages() {
  if (spyre::Runtime::forked()) {  // a child has a copy of this, and none of the threads
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (busy_ || !asked_.empty()) members_->fail("its process group was destroyed while messages were under way");
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Pending> Messages::send(c10::DeviceIndex device, const at::Tensor& tensor, int to, int tag,
                                        milliseconds timeout) {
  auto item = std::make_unique<MessageItem>();
  item->sends = true;
  item->peer = to;
  item->tag = tag;
  item->timeout = timeout;
  item->operand = reads(tensor);
  return start(std::move(item), device);
}

std::shared_ptr<Pending> Messages::receive(c10::DeviceIndex device, const at::Tensor& tensor, int from, int tag,
                                           milliseconds timeout) {
  auto item = std::make_unique<MessageItem>();
  item->sends = false;
  item->peer = from;
  item->tag = tag;
  item->timeout = timeout;
  item->operand = writes(tensor);
  return start(std::move(item), device);
}

std::shared_ptr<Pending> Messages::start(std::unique_ptr<MessageItem> item, c10::DeviceIndex device) {
  spyre::Card& on = card(device);
  spyre::Engine& engine = on.engine();
  item->card = &on;
  item->interrupts = engine.interrupts();
  item->deadline = std::chrono::steady_clock::now() + item->timeout;
  engine.record(on.stream(current_stream(device)), item->ready);
  item->done = engine.expect(*outside_);
  item->pending = std::make_shared<Pending>();
  item->pending->done = item->done;
  item->pending->title =
      std::string(item->sends ? "send" : "recv") + " of " + described(item->operand.dtype, item->operand.elements());
  if (const spyre::Held& held = item->operand.view.held; held.block)
    held.memory->note_use(held.block, outside_->progress, 0, item->done.record->sequence, item->operand.effect);
  const auto pending = item->pending;
  const spyre::Event ready = item->ready;
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(std::move(item));
  }
  changed_.notify_all();
  engine.when_done(ready, [members = std::weak_ptr<Members>(members_)] {
    if (const auto still = members.lock()) still->connection->wake(SharedLane::messages);
  });
  return pending;
}

void Messages::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return asked_.empty() && !busy_; });
}

void Messages::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !asked_.empty(); });
    if (asked_.empty()) return;
    busy_ = true;
    while (!asked_.empty() || !items_.empty()) {
      items_.splice(items_.end(), asked_);
      lock.unlock();
      const uint32_t seen = members_->connection->rings(SharedLane::messages);
      if (!progress() && !items_.empty()) members_->connection->wait(SharedLane::messages, seen);
      lock.lock();
    }
    busy_ = false;
    changed_.notify_all();
  }
}

// Whether anything went on.
bool Messages::progress() {
  bool any = false;
  if (!connected_ && !items_.empty()) {
    const MessageItem& first = *items_.front();
    try {
      members_->connection->connect([&] { check(first); }, [](int) {});
      connected_ = true;
      if (!members_->connection->shared()) gloo_ = std::make_unique<GlooMessages>(members_->connection->gloo());
    } catch (const std::exception& failed) {
      members_->fail(failed.what());
    }
  }
  if (connected_)
    for (int from = 0; from < members_->size(); ++from)
      while (from != members_->rank && take_in(from)) any = true;
  std::vector<bool> taken(members_->size());  // an earlier message goes to this member
  for (auto at = items_.begin(); at != items_.end();) {
    MessageItem& item = **at;
    bool ended = false;
    try {
      check(item);
      if (!item.sends) {
        ended = deliver(item);
      } else if (!taken[item.peer]) {
        const int64_t before = item.sent;
        ended = go_on_sending(item);
        any |= item.sent > before;
        taken[item.peer] = !ended;
      }
    } catch (const std::exception& failed) {
      end(item, item.ready.record->time,
          std::make_exception_ptr(
              CollectiveFailed(item.pending->title + " on " + members_->names[members_->rank] + ": " + failed.what())));
      ended = true;
    }
    any |= ended;
    at = ended ? items_.erase(at) : std::next(at);
  }
  return any;
}

void Messages::end(MessageItem& item, spyre::Picoseconds time, std::exception_ptr error) {
  item.card->engine().fulfil(*outside_, item.done, time, std::move(error));
}

// Throws where there is no point in going on.
void Messages::check(const MessageItem& item) const {
  if (item.card->engine().interrupts() != item.interrupts) throw CollectiveFailed("interrupted");
  if (const std::string reason = members_->failure(); !reason.empty()) throw CollectiveFailed(reason);
  const std::string peer = item.peer == kAnySource ? "any member" : members_->names[item.peer];
  const spyre::SharedGroup* shared = members_->connection->shared();
  if (connected_ && shared && item.peer >= 0 && item.peer != members_->rank && shared->is_gone(item.peer) &&
      (item.sends || !shared->has_message(SharedLane::messages, item.peer)))
    throw CollectiveFailed("the process of " + peer + " has ended");
  if (std::chrono::steady_clock::now() < item.deadline) return;
  std::ostringstream out;
  out << "Timed out after " << static_cast<double>(item.timeout.count()) / 1000 << " s: " << peer << " did not "
      << (item.sends ? "take it" : "send it") << " (tag " << item.tag << ")";
  throw CollectiveFailed(out.str());
}

MessageHeader Messages::header_of(const MessageItem& item) {
  const auto& cards = members_->connection->cards();
  const spyre::CollectiveShape shape{
      spyre::CollectiveKind::message, item.operand.bytes(), {cards[members_->rank], cards[item.peer]}};
  sent_until_ =
      std::max(sent_until_, item.ready.record->time) + std::llround(1000 * item.card->links().fastest(shape).ns);
  return {item.tag, static_cast<int32_t>(item.operand.dtype), item.operand.elements(), item.value_bytes(), sent_until_};
}

// A message to this very member goes through no channel.
void Messages::keep(MessageItem& item) {
  std::vector<std::byte> data(item.value_bytes());
  item.card->pack(data.data(), item.operand.view, 0, item.values());
  const MessageHeader header{item.tag, static_cast<int32_t>(item.operand.dtype), item.operand.elements(),
                             item.value_bytes(), item.ready.record->time};
  arrived_.push_back({members_->rank, header, std::move(data)});
  end(item, item.ready.record->time, nullptr);
}

// True when all of the message is on its way.
bool Messages::go_on_sending(MessageItem& item) {
  if (!item.card->engine().finished(item.ready)) return false;
  if (item.ready.record->failed) throw CollectiveFailed("earlier work failed, whose values it needs");
  if (item.peer == members_->rank) {
    keep(item);
    return true;
  }
  if (gloo_) {
    const at::Tensor message = at::empty({kHeaderBytes + item.value_bytes()}, at::kByte);
    auto* const bytes = static_cast<std::byte*>(message.data_ptr());
    const MessageHeader header = header_of(item);
    std::memcpy(bytes, &header, sizeof(header));
    item.card->pack(bytes + sizeof(header), item.operand.view, 0, item.values());
    gloo_->send(message, item.peer, item.tag);
    end(item, sent_until_, nullptr);
    return true;
  }
  spyre::SharedGroup& shared = *members_->connection->shared();
  while (!item.begun || item.sent < item.values()) {
    std::byte* room = shared.try_reserve(SharedLane::messages, item.peer);
    if (!room) return false;
    int64_t left = spyre::Channels::kMessageBytes;
    if (!item.begun) {
      const MessageHeader header = header_of(item);
      std::memcpy(room, &header, sizeof(header));
      room += sizeof(header);
      left -= sizeof(header);
      item.begun = true;
    }
    const int64_t count = std::min(item.values() - item.sent, left / item.width());
    item.card->pack(room, item.operand.view, item.sent, count);
    shared.send(SharedLane::messages, item.peer);
    item.sent += count;
  }
  end(item, sent_until_, nullptr);
  return true;
}

// Takes one piece of a message in, if there is one.
bool Messages::take_in(int from) {
  spyre::SharedGroup* shared = members_->connection->shared();
  if (!shared) return false;
  const std::byte* piece = shared->try_receive(SharedLane::messages, from);
  if (!piece) return false;
  Incoming& incoming = incoming_[from];
  int64_t room = spyre::Channels::kMessageBytes;
  if (!incoming.begun) {
    std::memcpy(&incoming.header, piece, sizeof(MessageHeader));
    piece += sizeof(MessageHeader);
    room -= sizeof(MessageHeader);
    incoming.data.resize(incoming.header.bytes);
    incoming.filled = 0;
    incoming.begun = true;
  }
  const int64_t width =
      incoming.header.elements ? std::max<int64_t>(incoming.header.bytes / incoming.header.elements, 1) : 1;
  const int64_t bytes = std::min(incoming.header.bytes - incoming.filled, room / width * width);
  std::memcpy(incoming.data.data() + incoming.filled, piece, bytes);
  incoming.filled += bytes;
  shared->release(SharedLane::messages, from);
  if (incoming.filled == incoming.header.bytes) {
    arrived_.push_back({from, incoming.header, std::move(incoming.data)});
    incoming = {};
  }
  return true;
}

// Gives an item the first message that fits it, if it is there.
bool Messages::deliver(MessageItem& item) {
  if (gloo_ && item.peer != members_->rank) return deliver_from_gloo(item);
  if (!item.card->engine().finished(item.ready)) return false;
  for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
    if (at->header.tag != item.tag || (item.peer != kAnySource && at->from != item.peer)) continue;
    const Arrived message = std::move(*at);
    arrived_.erase(at);
    accept(item, message.from, message.header, message.data.data());
    return true;
  }
  return false;
}

bool Messages::deliver_from_gloo(MessageItem& item) {
  if (!item.begun) {
    item.begun = true;
    gloo_->receive(kHeaderBytes + item.value_bytes(), item.peer, item.tag,
                   [arrival = item.arrival, connection = members_->connection.get()](int from, at::Tensor message,
                                                                                     std::exception_ptr error) {
                     arrival->from = from;
                     arrival->message = std::move(message);
                     arrival->error = std::move(error);
                     arrival->done = true;
                     connection->wake(SharedLane::messages);
                   });
  }
  GlooArrival& arrival = *item.arrival;
  if (!arrival.done || !item.card->engine().finished(item.ready)) return false;
  if (arrival.error) std::rethrow_exception(arrival.error);
  MessageHeader header;
  const auto* const bytes = static_cast<const std::byte*>(arrival.message.data_ptr());
  std::memcpy(&header, bytes, sizeof(header));
  accept(item, arrival.from, header, bytes + sizeof(header));
  return true;
}

void Messages::accept(MessageItem& item, int from, const MessageHeader& header, const std::byte* values) {
  const auto dtype = static_cast<at::ScalarType>(header.dtype);
  if (dtype != item.operand.dtype || header.elements != item.operand.elements())
    throw CollectiveFailed(members_->names[from] + " sends " + described(dtype, header.elements) +
                           ", this side expects " + described(item.operand.dtype, item.operand.elements()));
  item.card->unpack(item.operand.view, values, 0, item.values());
  item.pending->source = from;
  end(item, std::max(item.ready.record->time, header.clock), nullptr);
}

}  // namespace torch_spyre::distributed
