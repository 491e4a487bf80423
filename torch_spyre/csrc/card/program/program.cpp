#include "card/program/program.h"

#include <algorithm>

#include "card/error.h"
#include "card/program/attention_step.h"
#include "card/program/paged_step.h"

namespace spyre {

namespace {

struct OpRow {
  OpCode op;
  const char* name;
  size_t operands;  // 0: depends on the function or on the indices
};
constexpr OpRow kOps[] = {
    {OpCode::copy, "copy", 2},
    {OpCode::fill, "fill", 1},
    {OpCode::restickify, "restickify", 2},
    {OpCode::elementwise, "elementwise", 0},
    {OpCode::reduce, "reduce", 2},
    {OpCode::matmul, "matmul", 3},
    {OpCode::attention, "attention", attention::kOperands},
    {OpCode::paged_attention, "paged_attention", paged::kOperands},
    {OpCode::iota, "iota", 0},
    {OpCode::gather, "gather", 0},
    {OpCode::scatter, "scatter", 0},
    {OpCode::scan, "scan", 0},
    {OpCode::argreduce, "argreduce", 0},
    {OpCode::topk, "topk", 0},
};

const OpRow& row(OpCode op) {
  return *std::find_if(std::begin(kOps), std::end(kOps), [op](const OpRow& row) { return row.op == op; });
}

}  // namespace

const char* name(OpCode op) { return row(op).name; }

size_t operand_count(OpCode op) { return row(op).operands; }

OpCode op_code(const std::string& wanted) {
  std::string known;
  for (const OpRow& row : kOps) {
    if (wanted == row.name) return row.op;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  throw InvalidProgram("unknown operation '" + wanted.substr(0, 80) + "'; the card knows " + known);
}

int numbers_of(const Program& program) {
  int most = 0;
  for (const Step& step : program.steps) {
    for (const Operand& operand : step.operands) most = std::max(most, operand.number + 1);
    for (const auto& [position, number] : step.numbers) most = std::max(most, number + 1);
  }
  return most;
}

}  // namespace spyre
