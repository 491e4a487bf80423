#include "card/program/validate.h"

#include <cmath>

#include "card/error.h"
#include "card/program/host_effort.h"
#include "card/program/limits.h"
#include "card/program/point_dependence.h"
#include "card/program/step_check.h"
#include "card/program/step_ops.h"
#include "card/program/uninitialized_reads.h"
#include "card/text.h"

namespace spyre {

namespace {

// Beyond, a double does not hold every integer.
bool is_integer(double value) { return std::abs(value) <= 0x1p53 && std::trunc(value) == value; }

}  // namespace

void validate(const Program& program, const CardLimits& limits) {
  if (program.name.size() > limits::kText)
    throw InvalidProgram("the name of a program has " + text(program.name.size()) + " bytes");
  const auto refuse = [&](const std::string& field, const std::string& why) {
    throw InvalidProgram("program '" + program.name + "', " + field + ": " + why);
  };
  if (program.steps.size() > limits::kSteps)
    refuse("steps", text(program.steps.size()) + ", the limit is " + text(limits::kSteps));
  HostEffort effort;
  Tries tries{limits::kTries + limits::kTriesPerStep * static_cast<int64_t>(program.steps.size())};
  for (size_t i = 0; i < program.steps.size(); ++i) {
    StepCheck{program, i, limits, &tries}.all();
    effort.add(program.steps[i]);
  }
  if (effort.points > limits::kFreePoints)
    refuse("extents", "the steps go over " + text(effort.points) +
                          " points more than 1024 for each element that they touch; the limit is 2^30");
  if (effort.multiplications > limits::kFreeMultiplications)
    refuse("extents", "the steps multiply " + text(effort.multiplications) +
                          " times more than 1024 for each product of elements that they touch; the limit is 2^32");
  check_scratchpad(program);
}

void check_shapes(const Program& program, const CardLimits& limits) {
  for (size_t i = 0; i < program.steps.size(); ++i) StepCheck{program, i, limits}.shape();
}

void check_same_memory(const Program& program, const CardLimits& limits, const std::vector<int>& memory) {
  const auto given = static_cast<int>(memory.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    for (size_t o = 1; o < step.operands.size(); ++o) {
      const Operand &written = step.operands[0], &read = step.operands[o];
      const bool both =
          written.argument >= 0 && written.argument < given && read.argument >= 0 && read.argument < given;
      if (!both || written.argument == read.argument || memory[written.argument] != memory[read.argument]) continue;
      if (reads_written(step, o, true))
        StepCheck{program, i, limits}.refuse(
            "operand " + text(o),
            "a point reads what another point of the step writes: the launch gave one memory for arguments " +
                text(written.argument) + " and " + text(read.argument));
    }
  }
}

void check_constants(const Program& program, size_t step) {
  static constexpr CardLimits kNone{};
  StepCheck{program, step, kNone}.constants();
}

bool value_fits(const Operand& operand) {
  return domain_of(operand.format) == Domain::real || is_integer(operand.value);
}

}  // namespace spyre
