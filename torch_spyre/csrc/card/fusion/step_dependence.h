// Dependence between steps of a program: where one writes what the other touches, and whether that lets them run row by
// row. (program/point_dependence.h asks the same of the points of one step.)
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "card/program/program.h"

namespace spyre {

// The iteration space of a step as a fusion group goes over it.
struct StepShape {
  bool only_rows = false;  // one element per row, none of them in sticks
  int row = -1;            // the dimension whose points are rows, or its sticks where it is `lanes`; -1: a single row
  int lanes = -1;          // the dimension of sticks
  bool in_lx = false;      // some operand is
};

// A member of a fusion group: a step, or the part of one that split_at_writers() has made.
struct GroupStep {
  size_t index;  // in the program
  Step step;
  StepShape shape;
  std::vector<std::pair<int64_t, int64_t>> spans;  // bytes that each operand may touch; in LX, of one core
  size_t place = index;                            // in the order of execution
};

// None: the step runs by itself.
std::optional<StepShape> shape_of(const Step& step);
GroupStep group_step_of(size_t index, const Step& step, const StepShape& shape);
std::vector<std::pair<int64_t, int64_t>> spans_of(const Step& step);

int64_t rows_of(const GroupStep& member);
int64_t lanes_of(const GroupStep& member);  // of one that has some

// How many sticks operand j of b is behind operand i of a, where all but their sticks are at the same addresses.
std::optional<int64_t> sticks_between(const GroupStep& a, size_t i, const GroupStep& b, size_t j);

// Whether operand i of one step and j of the other are in the same memory and may touch the same bytes of it.
bool overlap(const GroupStep& a, size_t i, const GroupStep& b, size_t j);
// Whether they touch the same bytes at the same points, and nothing else does.
bool same_place(const Step& a, size_t i, const Step& b, size_t j);

// Which points of one step depend on which of the other: none; each on the same point; on points of the same row; on
// points of other rows. In this order.
enum class Dependence { none, same_point, same_row, other_rows };
Dependence dependence_between(const GroupStep& a, const GroupStep& b);

}  // namespace spyre
