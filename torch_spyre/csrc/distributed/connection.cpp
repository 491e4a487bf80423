#include "distributed/connection.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "distributed/gloo_channels.h"
#include "distributed/identity.h"
#include "runtime/device/device.h"

namespace torch_spyre::distributed {

namespace {

std::string key_of(int rank) { return "spyreccl/member/" + std::to_string(rank); }
std::string shares_key_of(int rank) { return "spyreccl/shares/" + std::to_string(rank); }

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Waits for a key without holding on to the store, which others may want to ask meanwhile.
std::string get(c10d::Store& store, const std::string& key, const Patience& patience) {
  while (!store.check({key})) {
    patience();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return text(store.get(key));
}

void set(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

std::unique_ptr<spyre::SharedGroup> own_segment(int rank, int size) {
  std::random_device random;
  const uint64_t token = (uint64_t{random()} << 32) | random();
  return std::make_unique<spyre::SharedGroup>(
      rank, size, spyre::SharedSegment::create(spyre::SharedGroup::segment_bytes(size), token));
}

// Where the members' cards are, as the hardware description counts places. Software cards that all have one index are
// counted as their members are.
std::vector<int> places(const std::vector<Identity>& members) {
  constexpr int kHostStride = 1024;
  std::vector<std::string> hosts;
  std::set<std::pair<std::string, int>> physical;
  for (const Identity& member : members) physical.emplace(member.address.host, member.card.physical);
  const bool distinct = physical.size() == members.size();
  std::vector<int> result;
  for (const Identity& member : members) {
    auto host = std::find(hosts.begin(), hosts.end(), member.address.host);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), member.address.host);
    const int index = static_cast<int>(host - hosts.begin());
    result.push_back(index * kHostStride + (distinct ? member.card.physical : member.card.global_rank));
  }
  return result;
}

}  // namespace

Connection::Connection(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int global_rank,
                       std::vector<std::string> names, const std::string& version, MakeGloo make_gloo)
    : store_(store->clone()),
      rank_(rank),
      size_(size),
      names_(std::move(names)),
      make_gloo_(std::move(make_gloo)),
      shared_(own_segment(rank, size)) {
  const Identity identity{this_card_identity(global_rank, version), shared_->own_address()};
  set(*store_, key_of(rank), identity.text());
}

Connection::Connection(int rank, std::vector<std::string> names)
    : rank_(rank), size_(static_cast<int>(names.size())), names_(std::move(names)), cards_(size_) {
  const spyre::Card& here = card(current_device());
  TORCH_CHECK(here.mode() == spyre::Mode::timing,
              "one process stands for several cards only where there are no values: SPYRE_CARD=timing");
  here.links().wanted();  // refuses what is none
  std::iota(cards_.begin(), cards_.end(), 0);
}

Connection::~Connection() = default;

void Connection::connect(const Patience& patience, const std::function<void(int peer)>& waits_for) {
  const std::lock_guard lock(connecting_);
  if (connected_ || is_lone()) return;
  std::vector<Identity> members(size_);
  for (int rank = 0; rank < size_; ++rank) {
    waits_for(rank);
    members[rank] = Identity::from(get(*store_, key_of(rank), patience));
  }
  for (int rank = 1; rank < size_; ++rank)
    if (const std::string why = difference(members[0].card, members[rank].card); !why.empty())
      throw spyre::CollectiveFailed(names_[0] + " and " + names_[rank] + " do not fit together: " + why);
  cards_ = places(members);
  std::string shares = "yes";
  for (int rank = 0; rank < size_ && shares == "yes"; ++rank) {
    if (rank == rank_) continue;
    if (members[rank].address.host.empty() || members[rank].address.host != members[rank_].address.host) {
      shares = "no";
      break;
    }
    try {
      shared_->join(rank, spyre::SharedSegment::open(members[rank].address, spyre::SharedGroup::segment_bytes(size_)));
    } catch (const spyre::Error&) {
      shares = "no";  // processes that may not see each other's memory are as if on other hosts
    }
  }
  // Shared memory serves a group only if all of its members see that of all others.
  set(*store_, shares_key_of(rank_), shares);
  for (int rank = 0; rank < size_; ++rank) {
    waits_for(rank);
    const Patience alive = [&] {
      patience();
      if (const std::string gone = departure(rank); !gone.empty()) throw spyre::CollectiveFailed(gone);
    };
    if (get(*store_, shares_key_of(rank), alive) != "yes") shares = "no";
  }
  if (shares == "yes") {
    channels_ = std::make_unique<spyre::SharedChannels>(*shared_);
  } else {
    gloo_ = make_gloo_();
    channels_ = std::make_unique<GlooChannels>(gloo_, rank_, size_);
  }
  shares_ = shares == "yes";
  connected_ = true;
}

bool Connection::has_come(int rank) { return !is_lone() && store_->check({shares_key_of(rank)}); }

uint32_t Connection::rings(spyre::Lane lane) { return shared_->doorbell(lane).rings(); }
void Connection::wait(spyre::Lane lane, uint32_t seen) { shared_->doorbell(lane).wait(seen); }
void Connection::wake(spyre::Lane lane) {
  if (shared_) shared_->doorbell(lane).ring();
}

std::string Connection::departure(int rank) const {
  if (!shared_ || (connected_ && !shares_) || rank == rank_ || !shared_->is_joined(rank)) return "";
  const char* why = shared_->departure(rank);
  return why ? "the process of " + names_[rank] + " " + why : "";
}

void Connection::leave() {
  if (shared_) shared_->leave();
}

void Connection::fail(const std::string& reason) {
  if (shared_) shared_->fail(reason);
}

std::string Connection::failure() const {
  if (!shares_) return "";
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    if (const auto reason = shared_->failure(rank)) return names_[rank] + " has given up: " + *reason;
  }
  return "";
}

}  // namespace torch_spyre::distributed
