#include "card/program/job_plan.h"

#include <algorithm>
#include <utility>

#include "card/error.h"
#include "card/program/validate.h"

namespace spyre {

const char* name(JobStep::Type type) {
  constexpr const char* kNames[] = {"H2D", "D2H", "Compute", "HostCompute"};
  return kNames[static_cast<int>(type)];
}

int numbers_of(const JobPlan& plan) {
  int most = 0;
  for (const JobStep& step : plan.steps)
    if (step.program) most = std::max(most, numbers_of(*step.program));
  return most;
}

JobPlan with_numbers(const JobPlan& plan, const std::vector<double>& numbers) {
  JobPlan with = plan;
  with.numbers = 0;
  for (JobStep& job : with.steps) {
    if (!job.program || !job.program->numbers) continue;
    auto program = std::make_shared<Program>(*job.program);
    program->numbers = 0;
    for (Step& step : program->steps) {
      for (Operand& operand : step.operands) {
        if (operand.number < 0) continue;
        operand.value = numbers[std::exchange(operand.number, -1)];
        if (!value_fits(operand))
          throw InvalidProgram("'" + plan.name + "' takes an integer, not " + std::to_string(operand.value));
      }
      if (step.numbers.empty()) continue;
      for (const auto& [position, number] : step.numbers) step.constants[position] = numbers[number];
      step.numbers.clear();
      check_constants(*program, static_cast<size_t>(&step - program->steps.data()));
    }
    job.program = std::move(program);
  }
  return with;
}

}  // namespace spyre
