// Splits steps of a fusion group along their sticks, where different steps have written the parts of what they read. A
// concatenation is read as a whole, for instance: split, each part follows its writer in one fused loop.
#pragma once

#include <vector>

#include "card/fusion/step_dependence.h"

namespace spyre {

// All members for the first part, then all for the next; the members as they are where there is nothing to split, or
// where dependences forbid that order.
std::vector<GroupStep> split_at_writers(const std::vector<GroupStep>& members);

}  // namespace spyre
