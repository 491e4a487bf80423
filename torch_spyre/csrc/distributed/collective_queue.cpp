#include <iostream>
#include <sstream>

#include "distributed/group.h"
#include "runtime/calls/blocking.h"
#include "runtime/device/device.h"
#include "runtime/device/streams.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre::distributed {

using spyre::CollectiveFailed;

namespace {

Operand operand_of(const at::Tensor& tensor, spyre::Memory::Effect effect) {
  Operand operand{device_view(tensor), nullptr, effect, tensor.scalar_type()};
  operand.layout = std::make_shared<const spyre::Layout>(*operand.view.layout);
  operand.view.layout = operand.layout.get();
  return operand;
}

constexpr milliseconds kStragglerTime{30'000};  // at most, until a member that has not come is named

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "no other member" : text;
}

}  // namespace

Operand reads(const at::Tensor& tensor) { return operand_of(tensor, spyre::Memory::Effect::reads); }
Operand writes(const at::Tensor& tensor) { return operand_of(tensor, spyre::Memory::Effect::writes); }

void Members::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = reason;
  connection->fail(reason);
}

std::string Members::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_.empty() ? connection->failure() : failure_;
}

CollectiveQueue::CollectiveQueue(std::shared_ptr<Members> members)
    : members_(std::move(members)),
      row_lane_(next_row_lane()),
      has_come_(members_->size()),
      thread_([this] { work(); }) {}

CollectiveQueue::~CollectiveQueue() {
  if (spyre::Runtime::forked()) {  // a child has a copy of this, and none of the threads
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (busy_ || !items_.empty()) members_->fail("its process group was destroyed while collectives were under way");
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Pending> CollectiveQueue::start(c10::DeviceIndex device, Request request) {
  spyre::Card& on = card(device);
  spyre::Engine& engine = on.engine();
  auto item = std::make_unique<Item>();
  item->card = &on;
  auto pending = std::make_shared<Pending>();
  pending->title = request.announcement.title;
  {
    // One step: in a group that several threads use, collectives are carried out in the order of their numbers.
    const std::lock_guard lock(mutex_);
    item->interrupts = engine.interrupts();
    request.announcement.sequence = ++next_;
    engine.record(on.stream(current_stream(device)), item->ready);
    item->done = pending->done = engine.expect(*outside_);
    for (const Operand& operand : request.operands)
      if (const spyre::Held& held = operand.view.held; held.block)
        held.memory->note_use(held.block, outside_->progress, 0, item->done.record->sequence, operand.effect);
    item->row = ProfileRow::begin(on, row_lane_, item->done, spyre::name(request.announcement.kind), request.group);
    item->request = std::move(request);
    items_.push_back(std::move(item));
  }
  changed_.notify_all();
  return pending;
}

void CollectiveQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return items_.empty() && !busy_; });
}

void CollectiveQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !items_.empty(); });
    if (items_.empty()) return;
    std::unique_ptr<Item> item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    const auto now = std::chrono::steady_clock::now();
    item->deadline = now + item->request.timeout;
    item->warning = now + std::min(kStragglerTime, item->request.timeout / 4);
    has_warned_ = false;
    carry_out(*item);
    item.reset();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

std::string CollectiveQueue::call(const Item& item) const {
  return item.request.announcement.title + ", collective " + std::to_string(item.request.announcement.sequence) +
         " of its group, on " + members_->names[members_->rank];
}

void CollectiveQueue::carry_out(const Item& item) {
  spyre::Engine& engine = item.card->engine();
  std::exception_ptr error;
  try {
    time_ = collective(item);
  } catch (const CollectiveFailed&) {
    error = std::current_exception();
  } catch (const std::exception& failed) {
    members_->fail(failed.what());
    error = std::make_exception_ptr(CollectiveFailed(call(item) + ": " + failed.what()));
  }
  engine.fulfil(*outside_, item.done, time_, error);
}

// Returns the modelled time at its end.
spyre::Picoseconds CollectiveQueue::collective(const Item& item) {
  const Request& request = item.request;
  if (const std::string reason = members_->failure(); !reason.empty())
    throw CollectiveFailed(call(item) + ": not carried out, as " + reason);
  spyre::Engine& engine = item.card->engine();
  const auto go_on = [&] { return engine.interrupts() == item.interrupts && members_->failure().empty(); };
  const bool carried_out = engine.await(item.ready, go_on);
  if (!connected_) connect(item);
  const std::vector<Announcement> all = announce(item, !carried_out);
  if (const std::string why = members_->connection->is_lone() ? "" : mismatch(all, members_->names); !why.empty())
    throw CollectiveFailed(call(item) + ": " + why);
  for (int rank = 0; rank < members_->size(); ++rank)
    if (all[rank].failed)
      throw CollectiveFailed(call(item) + ": not carried out, as earlier work of " + members_->names[rank] +
                             " failed, whose values it needs");
  if (item.card->mode() != spyre::Mode::timing && request.run) {
    spyre::Channels& channels = members_->connection->channels();
    channels.check = [&](int peer) { check(item, peer); };
    try {
      request.run(*item.card, channels, request.operands);
    } catch (const CollectiveFailed&) {
      throw;
    } catch (const std::exception& failed) {
      // The others wait for messages that will not come.
      members_->fail(failed.what());
      throw CollectiveFailed(call(item) + ": " + failed.what());
    }
  }
  spyre::Picoseconds latest = 0;
  spyre::CollectiveShape shape{request.announcement.kind, 0, members_->connection->cards()};
  for (const Announcement& each : all) {
    latest = std::max(latest, each.clock);
    shape.bytes = std::max(shape.bytes, each.load);
  }
  const spyre::CollectiveTime takes = item.card->links().fastest(shape);
  const spyre::Picoseconds end = latest + std::llround(1000 * takes.ns);
  const spyre::Picoseconds begin = all[members_->rank].clock;
  item.row.end(begin, latest - begin, shape.bytes, takes.algorithm, end);
  return end;
}

void CollectiveQueue::connect(const Item& item) {
  int awaited = -1;
  members_->connection->connect(
      [&] {
        check(item, -1);
        warn_of_stragglers(item, awaited);
        if (std::chrono::steady_clock::now() > item.deadline) time_out(item, awaited);
      },
      [&](int peer) { awaited = peer; });
  connected_ = true;
}

std::vector<Announcement> CollectiveQueue::announce(const Item& item, bool failed) {
  const int size = members_->size(), rank = members_->rank;
  Announcement mine = item.request.announcement;
  mine.failed = failed;
  mine.clock = std::max(time_, item.ready.record->time);
  if (members_->connection->is_lone()) return std::vector<Announcement>(size, mine);
  spyre::Channels& channels = members_->connection->channels();
  channels.check = [&](int peer) { check(item, peer); };
  const std::vector<std::byte> bytes = mine.bytes(size);
  const auto length = static_cast<int64_t>(bytes.size());
  announcing_ = true;
  has_come_.assign(size, false);
  has_come_[rank] = true;
  for (int turn = 1; turn < size; ++turn) {
    const int to = (rank + turn) % size;
    std::copy(bytes.begin(), bytes.end(), channels.reserve(to, length));
    channels.send(to, length);
  }
  std::vector<Announcement> all(size);
  all[rank] = Announcement::from(bytes.data(), size);  // as the others see it
  for (int turn = 1; turn < size; ++turn) {
    const int from = (rank + turn) % size;
    all[from] = Announcement::from(channels.receive(from, length), size);
    channels.release(from);
    has_come_[from] = true;
  }
  announcing_ = false;
  return all;
}

// Throws where waiting for a member, or any, has no point.
void CollectiveQueue::check(const Item& item, int peer) {
  if (item.card->engine().interrupts() != item.interrupts) {
    members_->fail("it was interrupted");
    throw CollectiveFailed(call(item) + ": interrupted");
  }
  if (const std::string reason = members_->failure(); !reason.empty())
    throw CollectiveFailed(call(item) + ": given up, as " + reason);
  if (peer < 0) return;
  for (int rank = 0; rank < members_->size(); ++rank)
    if (rank == peer || (announcing_ && !has_come_[rank])) check_alive(item, rank);
  warn_of_stragglers(item, peer);
  if (std::chrono::steady_clock::now() > item.deadline) time_out(item, peer);
}

void CollectiveQueue::check_alive(const Item& item, int rank) const {
  const std::string reason = members_->connection->departure(rank);
  if (reason.empty() || members_->connection->shared()->has_message(spyre::Lane::collectives, rank)) return;
  members_->fail(reason);
  throw CollectiveFailed(call(item) + ": " + reason);
}

CollectiveQueue::Absence CollectiveQueue::absence(int peer) const {
  const spyre::SharedGroup* shared = members_->connection->shared();
  Absence result;
  for (int rank = 0; rank < members_->size(); ++rank) {
    if (rank == members_->rank) continue;
    const bool here =
        connected_ ? !announcing_ || has_come_[rank] || (shared && shared->has_message(spyre::Lane::collectives, rank))
                   : members_->connection->has_come(rank);
    const bool is_here = here && (!connected_ || rank != peer);
    (is_here ? result.present : result.missing).push_back(members_->names[rank]);
  }
  return result;
}

void CollectiveQueue::warn_of_stragglers(const Item& item, int peer) {
  if (has_warned_ || std::chrono::steady_clock::now() < item.warning) return;
  has_warned_ = true;
  const auto waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - item.deadline) +
                      std::chrono::duration<double>(item.request.timeout);
  std::ostringstream out;
  out << "spyreccl: " << call(item) << " waits for " << listed(absence(peer).missing) << " since "
      << std::lround(waited.count()) << " s; it times out after "
      << std::chrono::duration<double>(item.request.timeout).count() << " s\n";
  std::cerr << out.str() << std::flush;
}

void CollectiveQueue::time_out(const Item& item, int peer) const {
  const auto [missing, present] = absence(peer);
  std::ostringstream out;
  out << call(item) << ": Timed out after " << static_cast<double>(item.request.timeout.count()) / 1000
      << " s: " << listed(missing) << (announcing_ || !connected_ ? " did not join" : " did not go on") << "; "
      << listed(present) << " did";
  members_->fail(listed(missing) + " did not join " + item.request.announcement.title + " in time");
  throw CollectiveFailed(out.str());
}

}  // namespace torch_spyre::distributed
