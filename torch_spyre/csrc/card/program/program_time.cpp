#include "card/program/program_time.h"

#include <algorithm>
#include <sstream>

#include "card/error.h"
#include "card/program/limits.h"
#include "card/program/step_work.h"

namespace spyre {

namespace {

std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

// Whether a step reads what is in LX: it begins at once then.
bool goes_on_in_lx(const Step& step) {
  return std::any_of(step.operands.begin() + 1, step.operands.end(), [](const Operand& o) { return o.in_lx(); });
}

}  // namespace

std::vector<StepTime> step_times(const Program& program, const Clock& clock) {
  std::vector<StepTime> times;
  const Step* before = nullptr;
  for (const Step& step : program.steps) {
    const Clock::Begin begin = step.next_iteration   ? Clock::Begin::next_iteration
                               : goes_on_in_lx(step) ? Clock::Begin::in_lx
                                                     : Clock::Begin::fresh;
    times.push_back(clock.step(work_of(step, before), begin));
    before = &step;
  }
  return times;
}

Picoseconds duration(const Program& program, const Clock& clock) {
  double total = 0;  // in floating point first: it may be more than an integer holds
  const std::vector<StepTime> times = step_times(program, clock);
  for (const StepTime& time : times) total += 1000 * (time.begin_ns + time.total_ns);
  if (!(total <= static_cast<double>(limits::kTime)))
    throw InvalidProgram("program '" + program.name + "', extents: the steps take " + text(total / 1e12) +
                         " seconds of the card, the limit is " + text(limits::kTime / 1e12));
  Picoseconds sum = 0;
  for (const StepTime& time : times) sum += picoseconds(time);
  return sum;
}

Picoseconds duration(const JobPlan& plan, const Clock& clock) {
  Picoseconds total = 0;
  for (const JobStep& step : plan.steps) {
    if (step.type == JobStep::Type::Compute) total += step.program->time;
    if (step.type == JobStep::Type::H2D || step.type == JobStep::Type::D2H)
      total += clock.host_transfer(static_cast<int64_t>(plan.buffers[step.buffer].size()));
  }
  return total;
}

void settle_neighbours(JobPlan& plan, const Clock& clock) {
  const Step *first = nullptr, *last = nullptr;
  for (const JobStep& step : plan.steps) {
    if (!step.program || step.program->steps.empty()) continue;
    if (!first) first = &step.program->steps.front();
    last = &step.program->steps.back();
  }
  if (!first) return;
  const Operand& written = last->operands[0];
  plan.last_written = written.argument < static_cast<int>(plan.argument_bytes.size()) ? written.argument : -1;
  const Work work = work_of(*first, nullptr);
  for (size_t i = 1; i < first->operands.size(); ++i) {
    if (first->operands[i].argument < 0) continue;
    Work after = work;
    after.traffic[i].fresh = true;
    const Picoseconds longer = clock.kernel(after) - clock.kernel(work);
    if (longer) plan.fresh.emplace_back(first->operands[i].argument, longer);
  }
}

}  // namespace spyre
