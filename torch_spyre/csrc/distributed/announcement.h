// What every member of a group says before a collective: that all ask for the same, and where their clocks are.
#pragma once

#include <string>
#include <vector>

#include "card/card.h"
#include "card/exchange.h"

namespace torch_spyre::distributed {

constexpr int kMostMembers = 64;

struct Announcement {
  uint64_t sequence = 0;  // of the group's collectives
  spyre::CollectiveKind kind = spyre::CollectiveKind::barrier;
  int32_t dtype = 0;    // PyTorch's
  int32_t folding = 0;  // PyTorch's reduction
  int32_t root = -1;
  bool failed = false;  // earlier work of this member failed, on which the collective depends
  double factor = 1;    // of the folding
  spyre::Picoseconds clock = 0;
  int64_t load = 0;              // bytes, as CollectiveShape counts them
  std::string title;             // the call, for messages
  std::vector<int64_t> shape;    // where it has to be the same for all
  std::vector<int64_t> out, in;  // elements for and from each member

  std::vector<std::byte> bytes(int members) const;
  static Announcement from(const std::byte* bytes, int members);
  static int64_t size(int members);
};

// Why the announcements do not fit together, naming both sides; empty where they do. `names` are those of the members.
std::string mismatch(const std::vector<Announcement>& all, const std::vector<std::string>& names);

}  // namespace torch_spyre::distributed
