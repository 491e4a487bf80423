// How much of the card steps make use of.
#pragma once

#include <cstdint>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// Multiply-adds on the matrix units of all cores.
double matrix_multiplications(const Step& step);
// Bytes of one core's scratchpad that hold something while each step runs: from the step that writes it until the last
// that reads it.
std::vector<int64_t> live_lx_bytes(const Program& program);

}  // namespace spyre
