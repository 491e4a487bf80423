// Dependence between points of one step. Cores and host threads take points in any order, so no other point may write
// or read what a point writes: the result would depend on which came first. (fusion/step_dependence.h asks the same of
// two steps.)
#pragma once

#include <cstdint>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// One term of a sum: `factor` times a whole number in [low, high] that may be chosen.
struct Term {
  int64_t factor, low, high;
};

// How many more tries all searches of a program together may take, and whether one was given up before it was done.
struct Tries {
  int64_t left;
  bool exceeded = false;
};

// Whether some choice of the numbers puts the sum of all terms into [low, high]. The answer is exact, unless the search
// exceeds its own limit or the limit that it shares with others (`shared`): then it is yes. Strides of layouts take a
// few tries, because each stride is larger than everything that the smaller ones add up to.
bool can_sum(std::vector<Term> terms, int64_t low, int64_t high, Tries* shared = nullptr);

// Whether two points that differ in a dimension that is not folded write one byte.
bool writes_twice(const Step& step, Tries* shared = nullptr);
// Whether a point reads through this operand what another point writes. `same_memory`: the launch gave the same memory
// for the arguments of the two operands.
bool reads_written(const Step& step, size_t operand, bool same_memory = false, Tries* shared = nullptr);

}  // namespace spyre
