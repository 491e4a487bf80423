// Who a member of a group is: what has to be the same for all of them, and where its memory is.
#pragma once

#include <string>

#include "card/exchange.h"

namespace torch_spyre::distributed {

struct CardIdentity {
  std::string version;    // of this package
  std::string hardware;   // a digest of the card's description
  std::string mode;       // run, timing, strict
  std::string algorithm;  // that is wanted for all_reduce; -: the fastest
  int cores = 0;
  int cards = 0;     // that the process sees
  int physical = 0;  // index of the card
  int global_rank = 0;
};
CardIdentity this_card_identity(int global_rank, const std::string& version);
// What two members disagree about; empty if they fit together.
std::string difference(const CardIdentity& a, const CardIdentity& b);

struct Identity {
  CardIdentity card;
  spyre::SharedSegment::Address address;
  std::string text() const;
  static Identity from(const std::string& text);
};

}  // namespace torch_spyre::distributed
