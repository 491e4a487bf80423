// What operations ask of their operands and constants. Indexed ones are in index_step.cpp.
#include "card/program/attention_step.h"
#include "card/program/paged_step.h"
#include "card/program/step_check.h"
#include "card/program/step_ops.h"
#include "card/text.h"

namespace spyre {

void StepCheck::operation() const {
  switch (step.op) {
    case OpCode::copy:
    case OpCode::restickify:
      if (step.operands[0].format != step.operands[1].format)
        refuse("operands", std::string(name(step.op)) + " does not convert, the formats are " +
                               name(step.operands[0].format) + " and " + name(step.operands[1].format));
      return;
    case OpCode::fill:
      return;
    case OpCode::elementwise:
      return tile_operation();
    case OpCode::reduce:
      return reduction();
    case OpCode::matmul:
      return matrix_product();
    case OpCode::attention:
      return attention_operands();
    case OpCode::paged_attention:
      if (const auto wrong = paged::check(step)) refuse(wrong->first, wrong->second);
      return;
    default:  // check_indexed() does these
      return;
  }
}

const TileOp& StepCheck::tile_op() const {
  const TileOp* op = tile_op_of(step);
  if (op) return *op;
  refuse("function", "the card has no tile operation '" + step.function.substr(0, 80) + "'" +
                         (step.operands.size() < 2 ? "" : std::string(" on ") + name(step.operands.back().format)));
}

void StepCheck::tile_operation() const {
  const TileOp& op = tile_op();
  count_operands(op.arity + 1);
  if (static_cast<int>(step.constants.size()) != op.constants)
    refuse("constants", step.function + " takes " + text(op.constants) + ", has " + text(step.constants.size()));
  for (size_t i = 1; i < step.operands.size(); ++i) {
    const bool condition = step.function == "where" && i == 1;
    if (domain_of(step.operands[i].format) != (condition ? Domain::real : op.in))
      refuse("operand " + text(i), step.function + " does not take " + name(step.operands[i].format) + " here");
  }
  if (domain_of(step.operands[0].format) != op.out)
    refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
}

void StepCheck::reduction() const {
  const TileOp& op = tile_op();
  if (op.arity != 2 || op.in != op.out || op.constants)
    refuse("function", step.function + " does not fold two values into one");
  if (domain_of(step.operands[0].format) != op.out)
    refuse("operand 0", step.function + " does not give " + name(step.operands[0].format));
  if (step.constants.empty() || step.constants.size() > 2)
    refuse("constants", "needs the start value, and may have a factor for the result");
  if (step.constants.size() == 2 && op.in != Domain::real) refuse("constants", "only a real result takes a factor");
  for (size_t i = rank - step.reduced; i < rank; ++i)
    if (moves(0, i)) refuse("operand 0", "moves along dimension " + text(i) + ", which is folded");
}

void StepCheck::matrix_product() const {
  const bool integers = domain_of(step.operands[0].format) == Domain::integer;
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const DataFormat format = step.operands[i].format;
    const bool real =
        i == 2 ? is_weight_format(format) : format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32;
    if (integers ? domain_of(format) != Domain::integer : !real)
      refuse("operands", std::string("matmul takes SEN169_FP16 and IEEE_FP32 (operand 2 also formats of one byte), "
                                     "or integers only, not ") +
                             name(format));
  }
  if (moves(0, rank - 1)) refuse("operand 0", "must have stride 0 along k, which is folded");
  if (moves(1, rank - 2)) refuse("operand 1", "must have stride 0 along n");
  if (moves(2, rank - 3)) refuse("operand 2", "must have stride 0 along m");
  const auto n = static_cast<int>(rank) - 2, k = n + 1;
  if (step.operands[0].stick != n) refuse("operand 0", "C must have its sticks along n, dimension " + text(n));
  if (step.operands[1].stick != k) refuse("operand 1", "A must have its sticks along k, dimension " + text(k));
  if (step.operands[2].stick != n && step.operands[2].stick != k)
    refuse("operand 2", "B must have its sticks along n or k, dimension " + text(n) + " or " + text(k));
}

void StepCheck::attention_operands() const {
  using namespace attention;
  const size_t q = rank - kRows, e = rank - kWidth, l = rank - kLength, d = rank - kDepth;
  constexpr const char* kNames[] = {"O", "Q", "K", "V", "the mask"};
  const std::vector<size_t> still[] = {{l, d}, {e, l}, {q, e}, {q, d}, {e, d}};
  const size_t along[] = {e, d, d, e};
  for (size_t i = 0; i < kOperands; ++i) {
    const DataFormat format = step.operands[i].format;
    const std::string field = "operand " + text(i);
    if (i == kMask ? domain_of(format) != Domain::real
                   : format != DataFormat::SEN169_FP16 && format != DataFormat::IEEE_FP32)
      refuse(field, std::string(kNames[i]) + " must be SEN169_FP16 or IEEE_FP32" +
                        (i == kMask ? ", or another real format" : "") + ", not " + name(format));
    for (const size_t dimension : still[i])
      if (moves(i, dimension))
        refuse(field, std::string(kNames[i]) + " must have stride 0 along dimension " + text(dimension));
    if (i != kMask && step.operands[i].stick != static_cast<int>(along[i]))
      refuse(field, std::string(kNames[i]) + " must have its sticks along dimension " + text(along[i]));
  }
  for (const size_t dimension : {e, l, d})
    if (step.slices[dimension] > 1) refuse("slices", "dimension " + text(dimension) + " cannot be divided over cores");
}

void StepCheck::count_operands(size_t wanted) const {
  if (step.operands.size() != wanted)
    refuse("operands", std::string(name(step.op)) + " takes " + text(wanted) + ", has " + text(step.operands.size()));
}

bool StepCheck::moves(size_t index, size_t dimension) const {
  const Operand& operand = step.operands[index];
  return operand.stick == static_cast<int>(dimension) ||
         (dimension < operand.strides.size() && operand.strides[dimension] != 0);
}

}  // namespace spyre
