// Where operands are: sticks, addresses, arguments, the scratchpad, and the cores that reach them.
#include <algorithm>

#include "card/program/attention_step.h"
#include "card/program/core_split.h"
#include "card/program/index_step.h"
#include "card/program/limits.h"
#include "card/program/step_check.h"
#include "card/text.h"

namespace spyre {

using limits::kAddresses;

void StepCheck::indices() const {
  if (indexed_operand(step) < 0 && step.op != OpCode::paged_attention && !step.indirect.empty())
    refuse("indirect", std::string(name(step.op)) + " takes no indices");
  for (const Indirect& indirect : step.indirect) {
    if (indirect.operand < 2 || indirect.operand >= static_cast<int>(step.operands.size()))
      refuse("indirect", "operand " + text(indirect.operand) + " of " + text(step.operands.size()) + " is no index");
    if (indirect.extent < 1) refuse("indirect", "an extent of " + text(indirect.extent));
    const __int128 way = __int128{indirect.extent - 1} * indirect.stride;
    if (way > kAddresses || way < -kAddresses)
      refuse("indirect", "extent and stride lead beyond the card's address space");
  }
}

void StepCheck::constant(size_t index, const std::string& field) const {
  const Operand& operand = step.operands[index];
  if (index == 0) refuse(field, "a constant cannot be written");
  const bool mask = step.op == OpCode::attention && index == attention::kMask;
  if (step.op != OpCode::elementwise && step.op != OpCode::paged_attention && !mask && !is_indexed(step.op))
    refuse(field, std::string(name(step.op)) + " reads memory, not a constant");
  if (operand.stick != -1) refuse(field, "a constant has no stick dimension");
  if (!value_fits(operand)) refuse(field, std::to_string(operand.value) + " is no integer");
}

void StepCheck::operand(size_t index, const std::string& field) const {
  const Operand& operand = step.operands[index];
  const int64_t bytes = element_bytes(operand.format);
  if (operand.strides.size() != rank)
    refuse(field, "needs one stride per extent, has " + text(operand.strides.size()) + " for " + text(rank));
  if (operand.offset < 0 || operand.offset > kAddresses)
    refuse(field, "offset " + text(operand.offset) + " is no address");
  if (operand.offset % bytes) refuse(field, "offset is not a multiple of the element's " + text(bytes) + " bytes");
  for (size_t i = 0; i < rank; ++i) {
    const __int128 way = __int128{step.extents[i] - 1} * operand.strides[i];
    if (operand.strides[i] % bytes)
      refuse(field, "a stride is not a multiple of the element's " + text(bytes) + " bytes");
    if (way > kAddresses || way < -kAddresses) refuse(field, "extent and stride lead beyond the card's address space");
  }
  sticks(operand, !indices_of(step, index).empty(), field);
  if (operand.across_cores() && operand.core_strides.size() != rank)
    refuse(field, "needs one core stride per extent, has " + text(operand.core_strides.size()) + " for " + text(rank));
}

void StepCheck::sticks(const Operand& operand, bool indexed, const std::string& field) const {
  if (operand.stick < -1 || operand.stick >= static_cast<int>(rank))
    refuse(field, "stick dimension " + text(operand.stick) + ", there are " + text(rank));
  const auto along = [](const Indirect& indirect) { return indirect.stick; };
  if (operand.stick == -1 && !(indexed && std::any_of(step.indirect.begin(), step.indirect.end(), along))) return;
  if (operand.offset % kStickBytes)
    refuse(field, "has sticks, but its offset " + text(operand.offset) + " is not a multiple of their " +
                      text(kStickBytes) + " bytes");
  for (size_t i = 0; i < rank; ++i) {
    const int64_t first = operand.stick == static_cast<int>(i) ? elements_per_stick(operand.format) : 1;
    if (step.extents[i] > first && operand.strides[i] % kStickBytes)
      refuse(field, "has sticks, but its stride " + text(operand.strides[i]) + " is not a multiple of their " +
                        text(kStickBytes) + " bytes");
  }
}

void StepCheck::inside(size_t index, const std::string& field) const {
  const Operand& operand = step.operands[index];
  if (operand.across_cores()) other_cores(index, field);
  if (operand.in_lx()) return scratchpad(index, field);
  if (operand.argument < 0 || operand.argument >= static_cast<int>(program.argument_bytes.size()))
    refuse(field, "argument " + text(operand.argument) + ", there are " + text(program.argument_bytes.size()));
  const auto [low, high] = reach(step, index, step.extents);
  const int64_t size = program.argument_bytes[operand.argument];
  if (low < 0 || high > size)
    refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of argument " + text(operand.argument) +
                      ", which has " + text(size));
  const auto [from, to] = reach(step, index, points_per_core(step));
  if (to - from > limits.span_bytes)
    refuse(field, "one core spans " + text(to - from) + " bytes, the limit is " + text(limits.span_bytes) +
                      "; divide the work over more cores");
}

void StepCheck::other_cores(size_t index, const std::string& field) const {
  const Operand& operand = step.operands[index];
  if (!operand.in_lx()) refuse(field, "core_strides lead to LX, this is device memory");
  if (step.op != OpCode::copy || index == 0)
    refuse(field, "only the operand that a copy reads may be in the LX of other cores");
  __int128 first = 0, last = 0;
  for (size_t i = 0; i < rank; ++i) {
    if (operand.core_strides[i] && operand.stick == static_cast<int>(i))
      refuse(field, "dimension " + text(i) + " runs along sticks and cannot have a core stride");
    const __int128 way = __int128{step.extents[i] - 1} * operand.core_strides[i];
    (way < 0 ? first : last) += way;
  }
  if (first < 0 || last >= limits.cores)
    refuse(field, "core_strides lead outside the " + text(limits.cores) + " cores of this card");
}

void StepCheck::scratchpad(size_t index, const std::string& field) const {
  const auto [low, high] = reach(step, index, points_in_lx(step, index));
  if (low < 0 || high > limits.lx_bytes)
    refuse(field, "reaches bytes [" + text(low) + ", " + text(high) + ") of LX, which has " + text(limits.lx_bytes));
  if (!indices_of(step, index).empty()) refuse(field, "the table of indices must be in device memory, not in LX");
  const Operand &operand = step.operands[index], &written = step.operands[0];
  if (index && written.in_lx() &&
      (operand.across_cores() || operand.offset != written.offset || operand.strides != written.strides)) {
    const auto [begin, end] = reach(step, 0, points_per_core(step));
    if (begin < high && end > low) refuse(field, "overlaps operand 0 in LX, where other points write");
  }
  for (size_t i = rank - folded_dimensions(step); i < rank; ++i)
    if (step.slices[i] > 1)
      refuse(field, "cannot be in LX while the folded dimension " + text(i) + " is divided over cores");
}

}  // namespace spyre
