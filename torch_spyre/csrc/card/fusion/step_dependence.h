// Where steps of a program meet in memory, and whether they can run row by row.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// How a step looks to a segment.
struct Shape {
  bool only_rows = false;  // one element per row, none of them in sticks
  int row = -1;            // the dimension whose points are rows, or its sticks where it is `lanes`; -1: a single row
  int lanes = -1;          // the dimension of sticks
  bool in_lx = false;      // some operand is
};

struct Member {
  size_t index;  // in the program
  Step step;     // or a piece of it
  Shape shape;
  std::vector<std::pair<int64_t, int64_t>> spans;  // bytes that each operand may touch; in LX, of one core
  size_t place = index;                            // in the order of execution
};

// None: the step runs by itself.
std::optional<Shape> shape_of(const Step& step);
Member member_of(size_t index, const Step& step, const Shape& shape);
std::vector<std::pair<int64_t, int64_t>> spans_of(const Step& step);

int64_t rows_of(const Member& member);
int64_t lanes_of(const Member& member);  // of one that has some

// How many sticks operand j of b lies behind operand i of a, where all but their sticks are at the same places.
std::optional<int64_t> sticks_between(const Member& a, size_t i, const Member& b, size_t j);

// Whether operand i of one step and j of the other are in the same memory and may touch the same bytes of it.
bool overlap(const Member& a, size_t i, const Member& b, size_t j);
// Whether they touch the same bytes at the same points, and nothing else does.
bool same_place(const Step& a, size_t i, const Step& b, size_t j);

// How close steps come where one writes: not at all; at the same points only; in the same rows only; or anyhow.
enum class Meeting { none, same_place, same_row, apart };
Meeting meeting(const Member& a, const Member& b);

}  // namespace spyre
