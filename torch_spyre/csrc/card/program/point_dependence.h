// Dependence between points of one step. Cores and host threads take points in any order, so no other point may write
// or read what a point writes: the result would depend on which came first. (fusion/step_dependence.h asks the same of
// two steps.)
#pragma once

#include <cstdint>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// A whole number between `low` and `high`, `factor` times which is added to a sum.
struct Term {
  int64_t factor, low, high;
};

// What the searches of a whole program may still try.
struct Tries {
  int64_t left;
};

// Whether some choice of the numbers makes the sum of all terms be in [low, high]. Exact, but for searches that would
// take too long, by themselves or with others (`shared`): those are answered with yes. Numbers of a layout, in which
// larger strides are beyond all that smaller ones reach, take a few steps.
bool can_sum(std::vector<Term> terms, int64_t low, int64_t high, Tries* shared = nullptr);

// Whether two points that differ in a dimension that is not folded write one byte.
bool writes_twice(const Step& step, Tries* shared = nullptr);
// Whether a point reads through this operand what another one writes. `same_memory`: they are operands of different
// arguments for which a launch gave the same memory.
bool reads_written(const Step& step, size_t operand, bool same_memory = false, Tries* shared = nullptr);

}  // namespace spyre
