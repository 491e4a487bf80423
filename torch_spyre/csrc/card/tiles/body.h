// Evaluates the body of an instruction over its iteration space.
#pragma once

#include <span>

#include "card/tiles/core.h"
#include "card/tiles/tile_program.h"

namespace spyre::tiles {

void run_compute(Core& core, const Instruction& at);   // same shapes, or scalars
void run_generic(Core& core, const Instruction& at);   // any linear maps, folds
void run_contract(Core& core, const Instruction& at);  // C + A B

}  // namespace spyre::tiles
