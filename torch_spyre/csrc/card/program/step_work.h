// The work of a step: what it asks of the card's units and memories.
#pragma once

#include "card/clock/work.h"
#include "card/program/program.h"

namespace spyre {

// `before`: the step that ran last, or null.
Work work_of(const Step& step, const Step* before);

}  // namespace spyre
