#include "card/error.h"
#include "card/program/limits.h"
#include "card/program/validate.h"
#include "card/text.h"

namespace spyre {

using limits::kAddresses;

namespace {

struct PlanCheck {
  const JobPlan& plan;
  const size_t index;
  const std::vector<int64_t>& bytes;  // of every argument, the plan's own behind the caller's
  const JobStep& step = plan.steps[index];

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw InvalidProgram("plan '" + plan.name + "', step " + text(index) + " (" + name(step.type) + "), " + field +
                         ": " + why);
  }

  void all() const {
    switch (step.type) {
      case JobStep::Type::Compute:
        return compute();
      case JobStep::Type::HostCompute:
        if (!step.host) refuse("host", "there is no function to call");
        return;
      case JobStep::Type::H2D:
      case JobStep::Type::D2H:
        return transfer();
    }
  }

  void compute() const {
    if (!step.program) refuse("program", "is missing");
    const std::vector<int64_t>& wanted = step.program->argument_bytes;
    if (wanted.size() > bytes.size())
      refuse("program", "takes " + text(wanted.size()) + " arguments, the plan has " + text(bytes.size()));
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] > bytes[i])
        refuse("program",
               "needs " + text(wanted[i]) + " bytes of argument " + text(i) + ", which has " + text(bytes[i]));
  }

  void transfer() const {
    if (step.argument < 0 || step.argument >= static_cast<int>(bytes.size()))
      refuse("argument", text(step.argument) + ", there are " + text(bytes.size()));
    if (step.buffer < 0 || step.buffer >= static_cast<int>(plan.buffers.size()))
      refuse("buffer", text(step.buffer) + ", there are " + text(plan.buffers.size()));
    const auto size = static_cast<int64_t>(plan.buffers[step.buffer].size()), room = bytes[step.argument];
    if (step.offset < 0 || step.offset > room || size > room - step.offset)
      refuse("offset", "buffer " + text(step.buffer) + " of " + text(size) + " bytes at " + text(step.offset) +
                           " does not fit into argument " + text(step.argument) + ", which has " + text(room));
  }
};

}  // namespace

void validate(const JobPlan& plan) {
  const auto refuse = [&](const std::string& field, const std::string& why) {
    throw InvalidProgram("plan '" + plan.name + "', " + field + ": " + why);
  };
  if (plan.name.size() > limits::kText)
    throw InvalidProgram("the name of a plan has " + text(plan.name.size()) + " bytes");
  std::vector<int64_t> bytes = plan.argument_bytes;
  bytes.insert(bytes.end(), plan.allocations.begin(), plan.allocations.end());
  if (bytes.size() > limits::kArguments)
    refuse("argument_bytes and allocations", text(bytes.size()) + ", the limit is " + text(limits::kArguments));
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] < 0 || bytes[i] > kAddresses)
      refuse("argument_bytes and allocations", "argument " + text(i) + " has " + text(bytes[i]) + " bytes");
  int64_t buffers = 0;
  for (const std::string& buffer : plan.buffers) buffers += static_cast<int64_t>(buffer.size());
  if (buffers > limits::kBuffers) refuse("buffers", text(buffers) + " bytes, the limit is " + text(limits::kBuffers));
  size_t steps = 0;
  for (const JobStep& step : plan.steps) steps += step.program ? step.program->steps.size() : 0;
  for (const size_t count : {plan.steps.size(), steps})
    if (count > limits::kSteps) refuse("steps", text(count) + ", the limit is " + text(limits::kSteps));
  for (size_t i = 0; i < plan.steps.size(); ++i) PlanCheck{plan, i, bytes}.all();
}

}  // namespace spyre
