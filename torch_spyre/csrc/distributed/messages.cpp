#include "distributed/messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "distributed/remote_transfer.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"

namespace torch_spyre::distributed {

using spyre::CollectiveFailed;
using SharedLane = spyre::Lane;

namespace {

// Before the elements of a message.
struct Header {
  int32_t tag, dtype;
  int64_t elements, bytes;
  spyre::Picoseconds clock;  // when it is there, by the sender's clock
};

std::string described(at::ScalarType dtype, int64_t elements) {
  return std::to_string(elements) + " elements of " + c10::toString(dtype);
}

}  // namespace

struct Messages::Item {
  bool sends;
  int peer, tag;
  spyre::Card* card;
  Operand operand;
  spyre::Event ready, done;
  uint64_t interrupts;
  milliseconds timeout;
  std::chrono::steady_clock::time_point deadline;
  std::shared_ptr<Pending> pending;
  bool begun = false;
  int64_t sent = 0;                            // elements
  spyre::Picoseconds begins = 0, arrives = 0;  // modelled, of one that is sent
  ProfileRow row;
  std::unique_ptr<RemoteTransfer> transfer;

  bool has_values() const { return card->mode() != spyre::Mode::timing; }
  int64_t elements() const { return has_values() ? operand.elements() : 0; }
};

struct Messages::Incoming {
  bool begun = false;
  Header header{};
  std::vector<std::byte> data{};
  int64_t filled = 0;
};

struct Messages::Arrived {
  int from;
  Header header;
  std::vector<std::byte> data;
};

Messages::Messages(std::shared_ptr<Members> members)
    : members_(std::move(members)),
      row_lane_(next_row_lane()),
      incoming_(members_->size()),
      thread_([this] { work(); }) {}

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

std::shared_ptr<Pending> Messages::start(Kind kind, const at::Tensor& tensor, int peer, int tag, milliseconds timeout,
                                         const std::string& group) {
  const c10::DeviceIndex device = tensor.device().index();
  spyre::Card& on = card(device);
  spyre::Engine& engine = on.engine();
  auto item = std::make_unique<Item>();
  item->sends = kind == Kind::send;
  item->peer = peer;
  item->tag = tag;
  item->card = &on;
  item->operand = item->sends ? reads(tensor) : writes(tensor);
  item->timeout = timeout;
  item->deadline = std::chrono::steady_clock::now() + timeout;
  item->pending = std::make_shared<Pending>();
  item->pending->title =
      std::string(item->sends ? "send" : "recv") + " of " + described(item->operand.dtype, item->operand.elements());
  const auto pending = item->pending;
  spyre::Event ready;
  {
    const std::lock_guard lock(mutex_);
    item->interrupts = engine.interrupts();
    engine.record(on.stream(current_stream(device)), item->ready);
    ready = item->ready;
    item->done = pending->done = engine.expect(*outside_);
    if (const spyre::Held& held = item->operand.view.held; held.block)
      held.memory->note_use(held.block, outside_->progress, 0, item->done.record->sequence, item->operand.effect);
    item->row = ProfileRow::begin(on, row_lane_, item->done, item->sends ? "send" : "recv", group);
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
    const Item& first = *items_.front();
    try {
      members_->connection->connect([&] { check(first); }, [](int) {});
      connected_ = true;
    } catch (const std::exception& failed) {
      members_->fail(failed.what());
    }
  }
  if (connected_)
    for (int from = 0; from < members_->size(); ++from)
      while (from != members_->rank && take_in(from)) any = true;
  std::vector<bool> taken(members_->size());  // an earlier message goes to this member
  for (auto at = items_.begin(); at != items_.end();) {
    Item& item = **at;
    bool ended = false;
    try {
      if (connected_ && item.peer != members_->rank && !members_->connection->shared()) {
        ended = go_on_remotely(item);
        if (!ended) check(item);
        any |= ended;
        at = ended ? items_.erase(at) : std::next(at);
        continue;
      }
      // What has arrived is delivered even if its sender has gone.
      if (!item.sends) ended = deliver(item);
      if (!ended) check(item);
      if (item.sends && !taken[item.peer]) {
        const int64_t before = item.sent;
        ended = go_on_sending(item);
        any |= item.sent > before;
        taken[item.peer] = !ended;
      }
    } catch (const std::exception& failed) {
      const CollectiveFailed error(item.pending->title + " on " + members_->names[members_->rank] + ": " +
                                   failed.what());
      item.card->engine().fulfil(*outside_, item.done, item.ready.record->time, std::make_exception_ptr(error));
      ended = true;
    }
    any |= ended;
    at = ended ? items_.erase(at) : std::next(at);
  }
  return any;
}

void Messages::end(Item& item, spyre::Picoseconds begin, spyre::Picoseconds waited, spyre::Picoseconds time) {
  item.row.end(begin, waited, item.operand.bytes(), "direct", time);
  item.card->engine().fulfil(*outside_, item.done, time, nullptr);
}

// Throws where there is no point in going on.
void Messages::check(const Item& item) const {
  if (item.card->engine().interrupts() != item.interrupts) throw CollectiveFailed("interrupted");
  if (const std::string reason = members_->failure(); !reason.empty()) throw CollectiveFailed(reason);
  const std::string peer = item.peer == kAnySource ? "any member" : members_->names[item.peer];
  const spyre::SharedGroup* shared = members_->connection->shared();
  if (connected_ && shared && item.peer >= 0)
    if (const std::string gone = members_->connection->departure(item.peer);
        !gone.empty() && (item.sends || !(has_arrived(item) || shared->has_message(SharedLane::messages, item.peer)))) {
      if (shared->is_gone(item.peer)) members_->fail(gone);  // others may wait for this member, and not for that one
      throw CollectiveFailed(gone);
    }
  if (std::chrono::steady_clock::now() < item.deadline) return;
  std::ostringstream out;
  out << "Timed out after " << static_cast<double>(item.timeout.count()) / 1000 << " s: " << peer << " did not "
      << (item.sends ? "take it" : "send it") << " (tag " << item.tag << ")";
  throw CollectiveFailed(out.str());
}

// Whether the message for an item waits for the stream that it is received on.
bool Messages::has_arrived(const Item& item) const {
  return std::any_of(arrived_.begin(), arrived_.end(),
                     [&](const Arrived& each) { return each.header.tag == item.tag && each.from == item.peer; });
}

// A message to this very member goes through no channel.
void Messages::keep(Item& item) {
  const int64_t width = spyre::element_bytes(item.operand.layout->format), elements = item.elements();
  std::vector<std::byte> data(elements * width);
  if (elements > 0) item.card->pack(data.data(), item.operand.view, 0, elements);
  const Header header{item.tag, static_cast<int32_t>(item.operand.dtype), item.operand.elements(), elements * width,
                      item.ready.record->time};
  arrived_.push_back({members_->rank, header, std::move(data)});
  end(item, item.ready.record->time, 0, item.ready.record->time);
}

// When a message that is sent now is there, as modelled.
spyre::Picoseconds Messages::arrival(Item& item) {
  const std::vector<int>& cards = members_->connection->cards();
  const spyre::CollectiveShape shape{
      spyre::CollectiveKind::message, item.operand.bytes(), {cards[members_->rank], cards[item.peer]}};
  item.begins = std::max(sent_until_, item.ready.record->time);
  item.arrives = sent_until_ = item.begins + std::llround(1000 * item.card->links().fastest(shape).ns);
  return item.arrives;
}

// Gloo gives messages of one tag in the order in which they are asked for: one is received after the other.
bool Messages::is_behind_another(const Item& item) const {
  for (const auto& other : items_) {
    if (other.get() == &item) return false;
    const bool from_same = other->peer == item.peer || other->peer == kAnySource || item.peer == kAnySource;
    if (!other->sends && other->tag == item.tag && from_same) return true;
  }
  return false;
}

// Between hosts. True when it has ended.
bool Messages::go_on_remotely(Item& item) {
  if (!item.card->engine().finished(item.ready)) return false;
  const int64_t width = spyre::element_bytes(item.operand.layout->format), elements = item.elements();
  const c10::intrusive_ptr<c10d::Backend>& gloo = members_->connection->gloo();
  if (!item.transfer && item.sends) {
    if (item.ready.record->failed) throw CollectiveFailed("earlier work failed, whose values it needs");
    const Header header{item.tag, static_cast<int32_t>(item.operand.dtype), item.operand.elements(), elements * width,
                        arrival(item)};
    RemoteTransfer::Message message;
    message.header.resize(sizeof(header));
    std::memcpy(message.header.data(), &header, sizeof(header));
    message.data.resize(elements * width);
    if (elements > 0) item.card->pack(message.data.data(), item.operand.view, 0, elements);
    item.transfer = RemoteTransfer::send(gloo, item.peer, item.tag, message);
  } else if (!item.transfer) {
    if (is_behind_another(item)) return false;
    item.transfer = RemoteTransfer::receive(gloo, item.peer, item.tag, sizeof(Header), [](const std::byte* bytes) {
      Header header;
      std::memcpy(&header, bytes, sizeof(header));
      return header.bytes;
    });
  }
  if (!item.transfer->done()) return false;
  RemoteTransfer::Message message = item.transfer->take();
  if (item.sends) {
    end(item, item.begins, 0, item.arrives);
    return true;
  }
  Arrived arrived{message.from, {}, std::move(message.data)};
  std::memcpy(&arrived.header, message.header.data(), sizeof(Header));
  finish(item, arrived);
  return true;
}

// True when all of the message is on its way.
bool Messages::go_on_sending(Item& item) {
  spyre::Engine& engine = item.card->engine();
  if (!engine.finished(item.ready)) return false;
  if (item.ready.record->failed) throw CollectiveFailed("earlier work failed, whose values it needs");
  if (item.peer == members_->rank) {
    keep(item);
    return true;
  }
  const int64_t width = spyre::element_bytes(item.operand.layout->format), elements = item.elements();
  spyre::SharedGroup& shared = *members_->connection->shared();
  while (!item.begun || item.sent < elements) {
    std::byte* room = shared.try_reserve(SharedLane::messages, item.peer);
    if (!room) return false;
    int64_t left = spyre::Channels::kMessageBytes;
    if (!item.begun) {
      const Header header{item.tag, static_cast<int32_t>(item.operand.dtype), item.operand.elements(), elements * width,
                          arrival(item)};
      std::memcpy(room, &header, sizeof(header));
      room += sizeof(header);
      left -= sizeof(header);
      item.begun = true;
    }
    const int64_t count = std::min(elements - item.sent, left / width);
    if (count > 0) item.card->pack(room, item.operand.view, item.sent, count);
    shared.send(SharedLane::messages, item.peer);
    item.sent += count;
  }
  end(item, item.begins, 0, item.arrives);
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
    std::memcpy(&incoming.header, piece, sizeof(Header));
    piece += sizeof(Header);
    room -= sizeof(Header);
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

// Gives an item the first message that fits it.
bool Messages::deliver(Item& item) {
  if (!item.card->engine().finished(item.ready)) return false;
  for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
    if (at->header.tag != item.tag || (item.peer != kAnySource && at->from != item.peer)) continue;
    const Arrived message = std::move(*at);
    arrived_.erase(at);
    finish(item, message);
    return true;
  }
  return false;
}

void Messages::finish(Item& item, const Arrived& message) {
  const auto dtype = static_cast<at::ScalarType>(message.header.dtype);
  if (dtype != item.operand.dtype || message.header.elements != item.operand.elements())
    throw CollectiveFailed(members_->names[message.from] + " sends " + described(dtype, message.header.elements) +
                           ", this side expects " + described(item.operand.dtype, item.operand.elements()));
  if (item.has_values()) item.card->unpack(item.operand.view, message.data.data(), 0, item.operand.elements());
  item.pending->source = message.from;
  const spyre::Picoseconds ready = item.ready.record->time, there = std::max(ready, message.header.clock);
  end(item, ready, there - ready, there);
}

}  // namespace torch_spyre::distributed
