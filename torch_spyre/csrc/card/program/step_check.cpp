#include "card/program/step_check.h"

#include <algorithm>
#include <cmath>

#include "card/error.h"
#include "card/program/attention_step.h"
#include "card/program/core_split.h"
#include "card/program/index_step.h"
#include "card/program/limits.h"
#include "card/program/paged_step.h"
#include "card/program/step_ops.h"
#include "card/text.h"

namespace spyre {

void StepCheck::refuse(const std::string& field, const std::string& why) const {
  throw InvalidProgram("program '" + program.name + "', step " + text(index) + " (" + name(step.op) +
                       (step.source.empty() ? "" : ", " + step.source) + "), " + field + ": " + why);
}

void StepCheck::all() const {
  shape();
  operation();
  if (const Operand& mask = step.operands.back();
      step.op == OpCode::attention && mask.is_constant() && (mask.value != 0 || mask.number >= 0))
    refuse("operand " + text(attention::kMask), "a constant mask must be 0");
  for (size_t i = 0; i < step.operands.size(); ++i)
    step.operands[i].is_constant() ? constant(i, "operand " + text(i)) : inside(i, "operand " + text(i));
  constants();
  division();
  dependences();
  if (!step.tile.empty()) tile();
}

void StepCheck::shape() const {
  sizes();
  iteration_space();
  if (operand_count(step.op)) count_operands(operand_count(step.op));
  if (step.operands.empty()) refuse("operands", std::string(name(step.op)) + " needs an operand to write to");
  if (step.op == OpCode::matmul && rank < 3) refuse("extents", "needs m, n and k");
  if (step.op == OpCode::paged_attention)
    if (const auto wrong = paged::check_sizes(step)) refuse(wrong->first, wrong->second);
  if (step.op == OpCode::attention && rank < attention::kRows) refuse("extents", "needs q, e, l and d");
  if (step.op == OpCode::attention && step.constants.size() != attention::kConstants)
    refuse("constants", "needs the scale, 1 for causal rows and 1 for a mask of bools (otherwise 0), has " +
                            text(step.constants.size()));
  for (size_t i = 0; i < step.operands.size(); ++i)
    if (element_bytes(step.operands[i].format) == 0)
      refuse("operand " + text(i), std::string("the card does not store format ") + name(step.operands[i].format));
  if (step.operands[0].is_constant()) refuse("operand 0", "a constant cannot be written");
  indices();
  for (size_t i = 0; i < step.operands.size(); ++i)
    if (!step.operands[i].is_constant()) operand(i, "operand " + text(i));
  if (!step.tile.empty() && step.tile.size() != rank)
    refuse("tile", "needs one entry per extent, has " + text(step.tile.size()) + " for " + text(rank));
  for (size_t i = 0; i < step.tile.size(); ++i)
    if (step.tile[i] < 1 || step.tile[i] > step.extents[i])
      refuse("tile", text(step.tile[i]) + " points of an extent of " + text(step.extents[i]));
}

void StepCheck::sizes() const {
  const auto few = [&](const char* field, size_t count, size_t most) {
    if (count > most) refuse(field, text(count) + ", the limit is " + text(most));
  };
  few("extents", rank, limits::kDimensions);
  few("operands", step.operands.size(), limits::kOperands);
  few("indirect", step.indirect.size(), limits::kOperands);
  const bool of_requests = step.op == OpCode::paged_attention;
  few("constants", step.constants.size(), of_requests ? size_t{limits::kNumbers} : limits::kDimensions + 1);
}

void StepCheck::iteration_space() const {
  __int128 points = 1;
  for (int64_t extent : step.extents) {
    if (extent < 1) refuse("extents", "every extent must be at least 1, one is " + text(extent));
    points *= extent;
    if (points > (__int128{1} << 62)) refuse("extents", "the step has more than 2^62 points");
  }
  if (step.slices.size() != rank)
    refuse("slices", "needs one entry per extent, has " + text(step.slices.size()) + " for " + text(rank));
  const bool counted = step.op == OpCode::reduce || step.op == OpCode::argreduce;
  if (counted ? step.reduced < 1 || step.reduced > static_cast<int>(rank) : folded_dimensions(step) > rank)
    refuse("reduced", text(step.reduced) + " of " + text(rank) + " dimensions");
  int64_t cores = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (step.slices[i] < 1 || step.slices[i] > step.extents[i])
      refuse("slices", text(step.slices[i]) + " slices for an extent of " + text(step.extents[i]));
    cores *= step.slices[i];
    if (cores > limits.cores) refuse("slices", "more than the " + text(limits.cores) + " cores of this card");
  }
  if (step.staging < 0 || step.staging > limits.lx_bytes)
    refuse("staging", text(step.staging) + " is no address of LX, which has " + text(limits.lx_bytes));
  const size_t behind = step.op == OpCode::attention ? size_t{attention::kRows} : 3;  // dimensions of one product
  if (step.op != OpCode::matmul && step.op != OpCode::attention) return;
  int64_t batch = 1;
  for (size_t i = 0; i + behind < rank; ++i) {
    batch = step.extents[i] > limits::kProducts ? step.extents[i] : batch * step.extents[i];
    if (batch > limits::kProducts) refuse("extents", "more than " + text(limits::kProducts) + " products in one step");
  }
}

void StepCheck::constants() const {
  if (step.op == OpCode::attention)
    for (const size_t flag : {attention::kCausal, attention::kChooses})
      if (step.constants[flag] != 0 && step.constants[flag] != 1)
        refuse("constants", "number " + text(flag) + " must be 0 or 1, not " + std::to_string(step.constants[flag]));
  if (step.op == OpCode::reduce && domain_of(step.operands[1].format) == Domain::integer &&
      !(std::abs(step.constants[0]) < 0x1p63))
    refuse("constants", "a fold of integers cannot start from " + std::to_string(step.constants[0]));
  if (step.op == OpCode::paged_attention)
    if (const auto wrong = paged::check_numbers(step)) refuse(wrong->first, wrong->second);
  if (!is_indexed(step.op)) return;
  if (const auto wrong = check_indexed(step)) refuse(wrong->first, wrong->second);
}

void StepCheck::dependences() const {
  if (step.op != OpCode::scatter && writes_twice(step, tries))
    refuse_dependence(0, "two points write into one element");
  for (size_t i = 1; i < step.operands.size(); ++i)
    if (reads_written(step, i, false, tries))
      refuse_dependence(i, "a point reads what another point of the step writes");
}

void StepCheck::refuse_dependence(size_t operand, const std::string& how) const {
  const bool decided = !tries || !tries->exceeded;
  refuse("operand " + text(operand),
         decided ? how
                 : "it takes too long to find out whether " + how +
                       ", because strides add up to one address in too many ways; use strides like those of a "
                       "layout, each larger than all that the smaller ones add up to");
}

void StepCheck::division() const {
  const Operand& written = step.operands[0];
  const Dims points = points_per_core(step);
  const size_t kept = rank - folded_dimensions(step);
  for (size_t i = 0; i < kept; ++i) {
    if (step.slices[i] == 1 || written.in_lx()) continue;
    const bool whole = written.stick == static_cast<int>(i) || points[i] * written.strides[i] % kStickBytes == 0;
    if (!whole || written.strides[i] == 0)
      refuse("slices", "the division of dimension " + text(i) + " makes two cores write into one stick");
  }
  const auto divided = std::count_if(step.slices.begin() + static_cast<ptrdiff_t>(kept), step.slices.end(),
                                     [](int64_t slices) { return slices > 1; });
  if (divided > 1) refuse("slices", "several folded dimensions are divided over cores, at most one can be");
}

void StepCheck::tile() const {
  for (size_t i = 0; i < rank; ++i) {
    const int64_t points = step.tile[i];
    for (size_t o = 0; o < step.operands.size(); ++o)
      if (step.operands[o].stick == static_cast<int>(i) && points < step.extents[i] &&
          points % elements_per_stick(step.operands[o].format))
        refuse("tile",
               text(points) + " points of dimension " + text(i) + " are not whole sticks of operand " + text(o));
  }
  const int64_t bytes = tile_bytes(step);
  if (step.staging + bytes > limits.lx_bytes)
    refuse("tile", "two tiles of every operand take " + text(bytes) + " bytes" +
                       (step.staging ? " from " + text(step.staging) + " on" : "") + ", the scratchpad of a core has " +
                       text(limits.lx_bytes) + "; make the tile smaller");
  for (size_t i = 0; i < step.operands.size(); ++i) {
    if (!step.operands[i].in_lx()) continue;
    const auto [low, high] = reach(step, i, points_in_lx(step, i));
    if (low < step.staging + bytes && high > step.staging)
      refuse("staging", "tiles at [" + text(step.staging) + ", " + text(step.staging + bytes) +
                            ") of LX overlap operand " + text(i) + " at [" + text(low) + ", " + text(high) + ")");
  }
}

}  // namespace spyre
