// A group whose members are processes of one host: rings of messages in memory that they share.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "card/exchange/channels.h"
#include "card/exchange/shared_segment.h"

namespace spyre {

// Collectives and messages between two members do not wait for each other: each has channels of its own.
enum class Lane : uint8_t { collectives, messages };

struct SharedRing;

class SharedGroup {
 public:
  static int64_t segment_bytes(int size);

  SharedGroup(int rank, int size, SharedSegment own);
  ~SharedGroup();
  int rank() const { return rank_; }
  int size() const { return size_; }
  const SharedSegment::Address& own_address() const { return segments_[rank_]->address(); }
  // All others have to be joined before anything is sent.
  void join(int rank, SharedSegment segment);

  // The next message's room and the next message, or null where there is none at the moment.
  std::byte* try_reserve(Lane lane, int to);
  void send(Lane lane, int to);
  const std::byte* try_receive(Lane lane, int from);
  void release(Lane lane, int from);
  // Rings whenever something may have changed for this member.
  Doorbell& doorbell(Lane lane);

  // Tells all others that this member goes on no more. The first reason counts.
  void fail(const std::string& reason);
  // Why another member goes on no more.
  std::optional<std::string> failure(int rank) const;
  // Whether a message from another member waits to be received.
  bool has_message(Lane lane, int from) const;
  bool is_joined(int rank) const { return segments_[rank] != nullptr; }
  bool is_gone(int rank) const { return segments_[rank]->owner_is_gone(); }  // its process has ended
  // Why nothing more comes from a member than what waits to be received; null while something may.
  const char* departure(int rank) const;
  // Tells the others that this member asks for nothing more.
  void leave();

 private:
  SharedRing& ring(Lane lane, int from, int to);
  Doorbell& doorbell(Lane lane, int of);
  void ring_all();
  const int rank_, size_;
  std::vector<std::unique_ptr<SharedSegment>> segments_;
};

class SharedChannels final : public Channels {
 public:
  explicit SharedChannels(SharedGroup& group) : Channels(group.rank(), group.size()), group_(group) {}
  std::byte* reserve(int to, int64_t bytes) override;
  void send(int to, int64_t bytes) override;
  const std::byte* receive(int from, int64_t bytes) override;
  void release(int from) override;

 private:
  template <typename Try>
  auto wait_for(int peer, const Try& attempt);
  SharedGroup& group_;
};

}  // namespace spyre
