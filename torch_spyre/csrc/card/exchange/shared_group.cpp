#include "card/exchange/shared_group.h"

#include <sched.h>

#include <chrono>
#include <cstring>

#include "card/error.h"

namespace spyre {

namespace {

constexpr uint32_t kRoom = 4;  // messages
constexpr int64_t kPage = 4096;
constexpr size_t kReasonBytes = 1024;
constexpr int kLanes = 2;
// Waking a thread of another process takes tens of microseconds.
constexpr std::chrono::microseconds kSpinTime{60};

// What every segment begins with, behind its label.
struct alignas(64) Front {
  std::byte label[64];
  std::array<Doorbell, kLanes> doorbells;
  std::atomic<uint32_t> failing, failed, left;
  char reason[kReasonBytes];
};

int64_t front_bytes() { return (static_cast<int64_t>(sizeof(Front)) + kPage - 1) / kPage * kPage; }

}  // namespace

// One writes and one reads; both only count up.
struct alignas(kPage) SharedRing {
  alignas(64) std::atomic<uint32_t> sent;
  alignas(64) std::atomic<uint32_t> taken;
  alignas(kPage) std::byte messages[kRoom][Channels::kMessageBytes];
};

int64_t SharedGroup::segment_bytes(int size) {
  return front_bytes() + static_cast<int64_t>(kLanes * size * sizeof(SharedRing));
}

SharedGroup::SharedGroup(int rank, int size, SharedSegment own) : rank_(rank), size_(size), segments_(size) {
  segments_[rank] = std::make_unique<SharedSegment>(std::move(own));
}

SharedGroup::~SharedGroup() { leave(); }

void SharedGroup::join(int rank, SharedSegment segment) {
  segments_[rank] = std::make_unique<SharedSegment>(std::move(segment));
}

SharedRing& SharedGroup::ring(Lane lane, int from, int to) {
  auto* rings = reinterpret_cast<SharedRing*>(segments_[from]->data() + front_bytes());
  return rings[static_cast<int>(lane) * size_ + to];
}

Doorbell& SharedGroup::doorbell(Lane lane, int of) {
  return reinterpret_cast<Front*>(segments_[of]->data())->doorbells[static_cast<size_t>(lane)];
}

Doorbell& SharedGroup::doorbell(Lane lane) { return doorbell(lane, rank_); }

std::byte* SharedGroup::try_reserve(Lane lane, int to) {
  SharedRing& ring = this->ring(lane, rank_, to);
  const uint32_t sent = ring.sent.load(std::memory_order_relaxed);
  if (sent - ring.taken.load(std::memory_order_acquire) >= kRoom) return nullptr;
  return ring.messages[sent % kRoom];
}

void SharedGroup::send(Lane lane, int to) {
  ring(lane, rank_, to).sent.fetch_add(1, std::memory_order_release);
  doorbell(lane, to).ring();
}

const std::byte* SharedGroup::try_receive(Lane lane, int from) {
  SharedRing& ring = this->ring(lane, from, rank_);
  const uint32_t taken = ring.taken.load(std::memory_order_relaxed);
  if (ring.sent.load(std::memory_order_acquire) == taken) return nullptr;
  return ring.messages[taken % kRoom];
}

bool SharedGroup::has_message(Lane lane, int from) const {
  return const_cast<SharedGroup*>(this)->try_receive(lane, from) != nullptr;
}

void SharedGroup::release(Lane lane, int from) {
  ring(lane, from, rank_).taken.fetch_add(1, std::memory_order_release);
  doorbell(lane, from).ring();
}

void SharedGroup::fail(const std::string& reason) {
  auto* front = reinterpret_cast<Front*>(segments_[rank_]->data());
  if (front->failing.exchange(1)) return;
  std::strncpy(front->reason, reason.c_str(), kReasonBytes - 1);
  front->failed.store(1, std::memory_order_release);
  ring_all();
}

void SharedGroup::ring_all() {
  for (int rank = 0; rank < size_; ++rank)
    if (segments_[rank])
      for (const Lane lane : {Lane::collectives, Lane::messages}) doorbell(lane, rank).ring();
}

void SharedGroup::leave() {
  auto* front = reinterpret_cast<Front*>(segments_[rank_]->data());
  if (!front->left.exchange(1, std::memory_order_release)) ring_all();
}

const char* SharedGroup::departure(int rank) const {
  const auto* front = reinterpret_cast<const Front*>(segments_[rank]->data());
  if (front->left.load(std::memory_order_acquire)) return "has destroyed the group";
  return segments_[rank]->owner_is_gone() ? "has ended" : nullptr;
}

std::optional<std::string> SharedGroup::failure(int rank) const {
  const auto* front = reinterpret_cast<const Front*>(segments_[rank]->data());
  if (!front->failed.load(std::memory_order_acquire)) return std::nullopt;
  return std::string(front->reason, strnlen(front->reason, kReasonBytes));
}

template <typename Try>
auto SharedChannels::wait_for(int peer, const Try& attempt) {
  Doorbell& doorbell = group_.doorbell(Lane::collectives);
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  while (true) {
    const uint32_t seen = doorbell.rings();
    if (auto* found = attempt()) return found;
    if (std::chrono::steady_clock::now() < end) {
      sched_yield();  // the core may be needed by the very process that this one waits for
      continue;
    }
    if (check) check(peer);
    doorbell.wait(seen);
  }
}

std::byte* SharedChannels::reserve(int to, int64_t bytes) {
  if (bytes > kMessageBytes) throw Error("a message of " + std::to_string(bytes) + " bytes is too long");
  return wait_for(to, [&] { return group_.try_reserve(Lane::collectives, to); });
}

void SharedChannels::send(int to, int64_t) { group_.send(Lane::collectives, to); }

const std::byte* SharedChannels::receive(int from, int64_t) {
  return wait_for(from, [&] { return group_.try_receive(Lane::collectives, from); });
}

void SharedChannels::release(int from) { group_.release(Lane::collectives, from); }

}  // namespace spyre
