// The rules that a step has to keep. A check throws InvalidProgram with the program, the step and the field.
#pragma once

#include <string>

#include "card/numeric/tile_ops.h"
#include "card/program/point_dependence.h"
#include "card/program/program.h"
#include "card/program/validate.h"

namespace spyre {

struct StepCheck {
  const Program& program;
  const size_t index;
  const CardLimits& limits;
  Tries* const tries = nullptr;  // null: each search for dependent points has only its own limit
  const Step& step = program.steps[index];
  const size_t rank = step.extents.size();

  void all() const;
  // All that the clock needs of a step, which planners ask about before it is complete.
  void shape() const;
  // The numbers that a step has beside its operands, once they are known.
  void constants() const;
  [[noreturn]] void refuse(const std::string& field, const std::string& why) const;

  // step_check.cpp: what holds for every step.
  void sizes() const;
  void iteration_space() const;
  // No point depends on another one: the result would depend on which of them came first.
  void dependences() const;
  [[noreturn]] void refuse_dependence(size_t operand, const std::string& how) const;
  // Cores take whole sticks of what is written, and one folded dimension at most is shared.
  void division() const;
  void tile() const;
  // step_check_operation.cpp: what its operation asks for.
  void operation() const;
  const TileOp& tile_op() const;
  void tile_operation() const;
  void reduction() const;
  void matrix_product() const;
  void attention_operands() const;
  void count_operands(size_t wanted) const;
  bool moves(size_t index, size_t dimension) const;
  // step_check_operands.cpp: where its operands are.
  void indices() const;
  void constant(size_t index, const std::string& field) const;
  void operand(size_t index, const std::string& field) const;
  // An operand in sticks begins at one and moves by whole ones.
  void sticks(const Operand& operand, bool indexed, const std::string& field) const;
  void inside(size_t index, const std::string& field) const;
  // What a copy fetches over the ring is in the LX of existing cores, each stick in one of them.
  void other_cores(size_t index, const std::string& field) const;
  // A core's LX holds what that core wrote. What several cores work on together goes through device memory, or a copy
  // fetches it from where no core writes meanwhile.
  void scratchpad(size_t index, const std::string& field) const;
};

}  // namespace spyre
