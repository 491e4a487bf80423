// Elementwise and reduce steps, one core's part at a time: elements are decoded into tiles that fit the host's L1
// cache, the operation runs on them in fp32 (or int64), and the result is rounded once, where it is written.
#pragma once

#include <cstddef>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// `bases[i]` is where the argument of operand i begins. Throws ValueRange where a checked result does not fit.
void run_elementwise(const Step& step, int core, const std::vector<std::byte*>& bases);
void run_reduce(const Step& step, int core, const std::vector<std::byte*>& bases);

}  // namespace spyre
