// What profilers get of a collective or a message.
#pragma once

#include <memory>
#include <string>

#include "card/card.h"

namespace torch_spyre::distributed {

// Rows of one lane are drawn in one line; a group has one for collectives and one for messages.
int next_row_lane();

class ProfileRow {
 public:
  // What was asked for just now. Without a profile there is no row.
  static ProfileRow begin(const spyre::Card& card, int lane, const spyre::Event& done, std::string name,
                          std::string group);
  // Once it has ended well. `waited`: for other cards.
  void end(spyre::Picoseconds begin, spyre::Picoseconds waited, int64_t bytes, const char* algorithm,
           spyre::Picoseconds time) const;

 private:
  std::shared_ptr<spyre::Exchange> exchange_;
  std::shared_ptr<spyre::ModelledEnd> end_;
};

}  // namespace torch_spyre::distributed
