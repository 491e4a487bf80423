// What a collective takes on real cards: an estimate for each algorithm, from the links between the cards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/clock/clock.h"

namespace spyre {

enum class CollectiveKind : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  message,
};
const char* name(CollectiveKind kind);

// What is exchanged. `bytes` is what one card has of it: of all_reduce, reduce and broadcast the tensor, of all_gather
// and gather what each card gives, of scatter and reduce_scatter what each one gets, of all_to_all what a card sends,
// of a message its size. Where cards differ, the most counts.
struct CollectiveShape {
  CollectiveKind kind = CollectiveKind::barrier;
  int64_t bytes = 0;
  std::vector<int> cards;  // their physical indices, by rank
};

struct CollectiveTime {
  const char* algorithm;
  double ns;
};

// Of a topology (torch_spyre/card/spyre.toml, "links between cards"). A card sends to one other card and receives from
// one at a time.
class Links {
 public:
  explicit Links(const Hardware& hardware);

  // Every algorithm that can do it, the fastest first; of equal ones the first of a fixed order.
  std::vector<CollectiveTime> candidates(const CollectiveShape& shape) const;
  // The fastest; of all_reduce the one that COLL_ALLREDUCE_ALGO names, as on the public stack.
  CollectiveTime fastest(const CollectiveShape& shape) const;
  // That algorithm, in our words; null: the fastest. Throws ConfigurationError where the variable names none.
  const char* wanted() const;

 private:
  double hop(const CollectiveShape& shape, double bytes) const;
  double multicast(const CollectiveShape& shape, double bytes) const;
  double fold(double bytes, int others = 1) const;
  double doubling(const CollectiveShape& shape, double part, bool folds) const;
  int tier(const std::vector<int>& cards) const;
  const Hardware hardware_;
  const Clock clock_;
  const std::string wanted_;  // what the variable says
};

}  // namespace spyre
