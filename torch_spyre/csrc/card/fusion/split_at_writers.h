// Steps of a segment, cut along their sticks. What several steps have written side by side, as for a concatenation, and
// others read as a whole, is read in pieces: each can then follow its writer in one pass.
#pragma once

#include <vector>

#include "card/fusion/step_dependence.h"

namespace spyre {

// One piece of the members after the other; the members as they are, where there is nothing to cut, or where pieces
// could not go one after the other.
std::vector<Member> in_pieces(const std::vector<Member>& members);

}  // namespace spyre
