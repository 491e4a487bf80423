#include "card/program/program_time.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "card/clock/work.h"
#include "card/error.h"
#include "card/program/limits.h"
#include "card/program/step_work.h"
#include "card/text.h"

namespace spyre {

namespace {

// Whether a step reads what is in LX: it begins at once then.
bool goes_on_in_lx(const Step& step) {
  return std::any_of(step.operands.begin() + 1, step.operands.end(), [](const Operand& o) { return o.in_lx(); });
}

Clock::Begin begin_of(const Step& step) {
  if (step.next_iteration) return Clock::Begin::next_iteration;
  return goes_on_in_lx(step) ? Clock::Begin::in_lx : Clock::Begin::fresh;
}

}  // namespace

std::vector<StepTime> step_times(const Program& program, const Clock& clock) {
  std::vector<StepTime> times;
  const Step* before = nullptr;
  for (const Step& step : program.steps) {
    times.push_back(clock.step(work_of(step, before), begin_of(step)));
    before = &step;
  }
  return times;
}

namespace {

void add(Usage& sum, const StepTime& time) {
  const auto ps = [](double ns) -> int64_t { return std::llround(ns * 1000); };
  sum.busy_ps += picoseconds(time);
  sum.matrix_ps += ps(time.matrix_ns);
  sum.vector_ps += ps(time.compute_ns - time.matrix_ns);
  sum.memory_ps += ps(time.memory_ns);
  sum.ring_ps += ps(time.ring_ns);
  sum.bytes_read += time.bytes_read;
  sum.bytes_written += time.bytes_written;
}

void add(Usage& sum, const Usage& more) {
  sum.busy_ps += more.busy_ps;
  sum.matrix_ps += more.matrix_ps;
  sum.vector_ps += more.vector_ps;
  sum.memory_ps += more.memory_ps;
  sum.ring_ps += more.ring_ps;
  sum.host_ps += more.host_ps;
  sum.transfers += more.transfers;
  sum.bytes_read += more.bytes_read;
  sum.bytes_written += more.bytes_written;
  sum.bytes_from_host += more.bytes_from_host;
  sum.bytes_to_host += more.bytes_to_host;
}

Usage negated(const Usage& usage) {
  Usage less;
  less.busy_ps = -usage.busy_ps;
  less.matrix_ps = -usage.matrix_ps;
  less.vector_ps = -usage.vector_ps;
  less.memory_ps = -usage.memory_ps;
  less.ring_ps = -usage.ring_ps;
  less.bytes_read = -usage.bytes_read;
  less.bytes_written = -usage.bytes_written;
  return less;
}

}  // namespace

Usage usage_of(const Program& program, const Clock& clock) {
  double total = 0;  // in floating point first: it may be more than an integer holds
  const std::vector<StepTime> times = step_times(program, clock);
  for (const StepTime& time : times) total += 1000 * (time.begin_ns + time.total_ns);
  if (!(total <= static_cast<double>(limits::kTime)))
    throw InvalidProgram("program '" + program.name + "', extents: the steps take " + text(total / 1e12) +
                         " seconds of the card, the limit is " + text(limits::kTime / 1e12));
  Usage sum{.kernels = 1};
  for (const StepTime& time : times) add(sum, time);
  return sum;
}

Picoseconds duration(const Program& program, const Clock& clock) { return usage_of(program, clock).busy_ps; }

Usage usage_of(const JobPlan& plan, const Clock& clock) {
  Usage sum{.kernels = 1};
  for (const JobStep& step : plan.steps) {
    if (step.type == JobStep::Type::Compute) add(sum, step.program->usage);
    if (step.type != JobStep::Type::H2D && step.type != JobStep::Type::D2H) continue;
    const auto direction = step.type == JobStep::Type::H2D ? Direction::from_host : Direction::to_host;
    add(sum, usage_of_transfer(static_cast<int64_t>(plan.buffers[step.buffer].size()), direction, clock));
  }
  return sum;
}

bool time_of_numbers(const Step& step) { return step.op == OpCode::paged_attention; }

Usage usage_with_numbers(const JobPlan& prepared, const JobPlan& launched, const Clock& clock) {
  Usage sum = prepared.usage;
  for (size_t at = 0; at < prepared.steps.size(); ++at) {
    if (!prepared.steps[at].program || prepared.steps[at].program == launched.steps[at].program) continue;
    const std::vector<Step>&before = prepared.steps[at].program->steps, &now = launched.steps[at].program->steps;
    for (size_t i = 0; i < now.size(); ++i) {
      if (!time_of_numbers(now[i])) continue;
      const Step* const last = i ? &now[i - 1] : nullptr;
      const Clock::Begin begin = begin_of(now[i]);
      Usage gone;
      add(gone, clock.step(work_of(before[i], last), begin));
      add(sum, clock.step(work_of(now[i], last), begin));
      add(sum, negated(gone));
    }
  }
  return sum;
}

Usage usage_of_transfer(int64_t bytes, Direction direction, const Clock& clock) {
  Usage usage{.transfers = 1};
  usage.busy_ps = usage.host_ps = clock.host_transfer(bytes);
  const bool in = direction == Direction::from_host;
  (in ? usage.bytes_from_host : usage.bytes_to_host) = bytes;
  (in ? usage.bytes_written : usage.bytes_read) = bytes;
  return usage;
}

Usage usage_of(const Work& work, const Clock& clock) {
  Usage usage{.kernels = 1};
  add(usage, clock.step(work, Clock::Begin::fresh));
  return usage;
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
