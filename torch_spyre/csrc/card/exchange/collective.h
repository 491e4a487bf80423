// The values of collectives: what every member sends, folds and keeps.
#pragma once

#include <string>
#include <vector>

#include "card/card.h"
#include "card/exchange/channels.h"

namespace spyre {

// Elements of a tensor on a card, in the order of the host: `count` of them from `first` on.
struct Segment {
  const DeviceView* view = nullptr;
  int64_t first = 0, count = 0;
};

// How the parts of all members become one: two-input tile operation `function`, from the part of the first rank to that
// of the last, rounded each time. Before it, every part is multiplied by `factor`; behind it, the result is divided by
// `divisor`. 1 leaves either out.
struct Folding {
  std::string function;
  double factor = 1;
  double divisor = 1;
  bool checked = false;  // an integer that its format cannot hold is an error
};

// Sends out[r] to every member r, and receives in[r] from it. Segments may be empty, and have as many elements as the
// other side's.
void exchange(Card& card, Channels& channels, const std::vector<Segment>& out, const std::vector<Segment>& in);

// Folds part[r] of all members on member r, each in the order of the ranks, so that every member that keeps a result
// has the same bits. `keep[r]` is where this member keeps part r of the result, an empty segment if it does not.
// `kept_by` says which members keep all parts: everyone, nobody but the owner, or one.
enum class KeptBy : uint8_t { all, owner, one };
struct Fold {
  std::vector<Segment> part, keep;
  Folding folding;
  KeptBy kept_by = KeptBy::all;
  int keeper = 0;
};
void fold(Card& card, Channels& channels, const Fold& fold);

// Where a tensor of so many elements is cut into parts for the members to fold, whole sticks each.
std::vector<int64_t> equal_parts(int64_t elements, int members, DataFormat format);

}  // namespace spyre
