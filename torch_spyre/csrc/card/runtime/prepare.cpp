// Preparing card programs and plans: all that does not change from launch to launch is settled here, once.
#include <algorithm>

#include "card/card.h"
#include "card/error.h"
#include "card/fusion/fusion_group.h"
#include "card/kernels/matmul_tasks.h"
#include "card/program/core_split.h"
#include "card/program/program_time.h"
#include "card/program/uninitialized_reads.h"

namespace spyre {

namespace {

void sort_unique(std::vector<int>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

std::vector<int> written_by(const Program& program) {
  std::vector<int> written;
  for (const Step& step : program.steps)
    if (step.operands[0].argument >= 0) written.push_back(step.operands[0].argument);
  sort_unique(written);
  return written;
}

std::vector<int> written_by(const JobPlan& plan) {
  std::vector<int> written;
  for (const JobStep& step : plan.steps) {
    if (step.program) written.insert(written.end(), step.program->written.begin(), step.program->written.end());
    if (step.type == JobStep::Type::H2D) written.push_back(step.argument);
  }
  sort_unique(written);
  return written;
}

// Bytes of each argument up to the last that a step may use.
std::vector<int64_t> reach_of(const Program& program) {
  std::vector<int64_t> reached(program.argument_bytes.size());
  for (const Step& step : program.steps)
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (const int argument = step.operands[i].argument; argument >= 0)
        reached[argument] = std::max(reached[argument], reach(step, i, step.extents).second);
  return reached;
}

std::vector<int64_t> reach_of(const JobPlan& plan) {
  std::vector<int64_t> reached(plan.argument_bytes.size() + plan.allocations.size());
  for (const JobStep& step : plan.steps) {
    if (step.program)
      for (size_t i = 0; i < step.program->reach.size(); ++i) reached[i] = std::max(reached[i], step.program->reach[i]);
    if (step.type == JobStep::Type::H2D || step.type == JobStep::Type::D2H)
      reached[step.argument] =
          std::max(reached[step.argument], step.offset + static_cast<int64_t>(plan.buffers[step.buffer].size()));
  }
  return reached;
}

}  // namespace

std::shared_ptr<const Program> Card::prepare(Program program) const {
  validate(program, limits_);
  program.usage = usage_of(program, clock_);
  program.time = program.usage.busy_ps;
  program.numbers = numbers_of(program);
  program.written = written_by(program);
  program.reach = reach_of(program);
  settle_lx(program);
  settle_matmul_tasks(program);
  if (mode_ == Mode::run) program.fusion = plan_fusion(program);
  return std::make_shared<const Program>(std::move(program));
}

std::shared_ptr<const JobPlan> Card::prepare(JobPlan plan) const {
  validate(plan);
  for (JobStep& step : plan.steps)
    if (step.program && !step.program->is_prepared()) step.program = prepare(*step.program);
  plan.usage = usage_of(plan, clock_);
  plan.time = plan.usage.busy_ps;
  settle_neighbours(plan, clock_);
  plan.numbers = numbers_of(plan);
  for (const JobStep& step : plan.steps)
    if (step.program)
      plan.time_of_numbers |= std::any_of(step.program->steps.begin(), step.program->steps.end(), time_of_numbers);
  plan.written = written_by(plan);
  plan.reach = reach_of(plan);
  plan.undefined = undefined_in_allocations(plan);
  return std::make_shared<const JobPlan>(std::move(plan));
}

// Scratchpads are one behind the other in memory, as long as the program needs them.
void Card::settle_lx(Program& program) const {
  constexpr int64_t kPage = 4096;
  program.lx_bytes = (lx_bytes_of(program) + kPage - 1) / kPage * kPage;
  for (Step& step : program.steps)
    for (Operand& operand : step.operands)
      if (operand.in_lx()) operand.core_bytes = program.lx_bytes;
  program.lx_undefined = undefined_in_lx(program);
}

void Card::settle_matmul_tasks(Program& program) const {
  if (engine_.immediate()) return;
  for (Step& step : program.steps)
    if (step.op == OpCode::matmul) step.matmul_tasks = std::make_shared<const MatmulTasks>(step, engine_.threads());
}

}  // namespace spyre
