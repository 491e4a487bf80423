// Launching card programs and plans: arguments are checked, memory is taken, and the work is queued on a stream.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "card/card.h"
#include "card/error.h"
#include "card/memory/shadow.h"
#include "card/program/program_time.h"
#include "card/runtime/job.h"

namespace spyre {

namespace {

// Marks arguments that a stopped launch has left half written: they have no contents.
void tear(const std::vector<int>& written, const std::vector<Held>& arguments) {
  for (const int argument : written)
    if (Block* block = arguments[argument].block) block->torn = true;
}

// The first argument with the same memory as each; empty where no two arguments share any. Programs know arguments
// that share memory from its start.
std::vector<int> same_memory(const std::vector<Held>& arguments) {
  std::vector<std::pair<const Block*, int>> blocks;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].block) blocks.emplace_back(arguments[i].block, static_cast<int>(i));
  std::sort(blocks.begin(), blocks.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(blocks.begin(), blocks.end(), same) == blocks.end()) return {};
  std::vector<int> memory(arguments.size());
  std::iota(memory.begin(), memory.end(), 0);
  for (size_t i = 1; i < blocks.size(); ++i)
    if (same(blocks[i - 1], blocks[i])) {
      memory[blocks[i].second] = memory[blocks[i - 1].second];
      if (arguments[blocks[i].second].shift || arguments[blocks[i - 1].second].shift)
        throw InvalidProgram("arguments " + std::to_string(blocks[i - 1].second) + " and " +
                             std::to_string(blocks[i].second) + " share memory, and one begins inside of it");
    }
  return memory;
}

}  // namespace

// How much longer a launch takes right behind the one before it on its stream.
Picoseconds Card::wait_for_writes(const JobPlan& plan, const std::vector<Held>& arguments, int id) {
  const auto serial = [&](int argument) -> uint64_t {
    const bool given = argument >= 0 && argument < static_cast<int>(arguments.size()) && arguments[argument].block;
    return given ? arguments[argument].block->serial : 0;
  };
  const uint64_t before = last_written_[id].exchange(serial(plan.last_written));
  Picoseconds longer = 0;
  for (const auto& [argument, time] : plan.fresh)
    if (before && serial(argument) == before) longer = std::max(longer, time);
  return longer;
}

void Card::note_uses(const std::vector<Held>& arguments, const std::vector<int>& written, int id, uint64_t sequence) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = std::binary_search(written.begin(), written.end(), static_cast<int>(i));
    const auto effect = writes ? Memory::Effect::writes : Memory::Effect::reads;
    if (arguments[i].block) arguments[i].memory->note_use(arguments[i].block, progress_, id, sequence, effect);
  }
}

// Every launch has its own scratchpads, as launches of several streams run at the same time here.
Held Card::allocate_lx(int64_t bytes_per_core) {
  if (!bytes_per_core) return {};
  Block* block = lx_->allocate(bytes_per_core * limits_.cores);
  if (Shadow* shadow = Shadow::of(lx_.get())) shadow->forget(*block);
  return {lx_.get(), block};
}

void Card::check_arguments(const std::string& name, const std::vector<int64_t>& bytes,
                           const std::vector<int64_t>& reach, const std::vector<Held>& given) const {
  if (bytes.size() != given.size())
    throw InvalidProgram("'" + name + "' takes " + std::to_string(bytes.size()) + " arguments, " +
                         std::to_string(given.size()) + " were given");
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto refuse = [&](const std::string& why) {
      throw InvalidProgram("'" + name + "': argument " + std::to_string(i) + " " + why);
    };
    if (!given[i].block && bytes[i] == 0) continue;  // a tensor without elements
    if (!given[i].block) refuse("has no memory");
    if (given[i].memory != memory_.get()) refuse("is in " + given[i].memory->options().name + ", not on this card");
    const auto size = static_cast<int64_t>(given[i].block->bytes);
    const int64_t shift = given[i].shift, needed = shift ? reach[i] : bytes[i];
    if (shift < 0 || shift % kStickBytes) refuse("begins at byte " + std::to_string(shift) + ", which is no stick's");
    if (size - shift < needed)
      refuse("needs " + std::to_string(needed) + " bytes" + (shift ? " from byte " + std::to_string(shift) : "") +
             ", the tensor has " + std::to_string(size));
  }
}

void Card::launch(std::shared_ptr<const Program> program, std::vector<Held> arguments, int id) {
  if (!program->is_prepared()) program = prepare(*program);
  check_arguments(program->name, program->argument_bytes, program->reach, arguments);
  if (program->numbers) throw InvalidProgram("'" + program->name + "' takes numbers, which launches of plans give");
  if (const auto memory = same_memory(arguments); !memory.empty()) check_same_memory(*program, limits_, memory);
  const uint64_t interrupts = check_contents(arguments);
  const Usage& usage = program->usage;
  const std::vector<int> written = program->written;  // the task takes the program
  std::vector<Held> uses = arguments;
  const Held lx = allocate_lx(program->lx_bytes);
  auto run = [this, program = std::move(program), arguments = std::move(arguments), lx] {
    try {
      run_program(*program, arguments, lx);
    } catch (const Stopped&) {
      tear(program->written, arguments);
      throw;
    }
  };
  const auto release_lx = [&] {
    if (lx.block) lx_->release(lx.block);
  };
  try {
    const uint64_t sequence =
        engine_.submit(stream(id), task_of(std::move(run), usage), Engine::Wake::worker, interrupts);
    note_uses(uses, written, id, sequence);
    if (lx.block) lx_->note_use(lx.block, progress_, id, sequence);
  } catch (...) {
    release_lx();
    throw;
  }
  release_lx();
  if (launch_blocking_ && !Engine::inside(stream(id))) synchronize(id);
}

void Card::launch(std::shared_ptr<const JobPlan> plan, std::vector<Held> arguments, int id,
                  const std::vector<double>& numbers) {
  if (!plan->is_prepared()) plan = prepare(*plan);
  check_arguments(plan->name, plan->argument_bytes, plan->reach, arguments);
  if (static_cast<int>(numbers.size()) != plan->numbers)
    throw InvalidProgram("'" + plan->name + "' takes " + std::to_string(plan->numbers) + " numbers, " +
                         std::to_string(numbers.size()) + " were given");
  const SubmissionObserver observer = submission_observer.load(std::memory_order_relaxed);
  std::shared_ptr<const JobPlan> observed = observer ? plan : nullptr;  // without the numbers of this launch
  if (plan->numbers) {
    auto launched = std::make_shared<JobPlan>(with_numbers(*plan, numbers));
    if (plan->time_of_numbers) {
      launched->usage = usage_with_numbers(*plan, *launched, clock_);
      launched->time = launched->usage.busy_ps;
      if (observer) observed = launched;
    }
    plan = std::move(launched);
  }
  if (const auto memory = same_memory(arguments); !memory.empty())
    for (const JobStep& step : plan->steps)
      if (step.program) check_same_memory(*step.program, limits_, memory);
  Stream& stream = this->stream(id);
  const uint64_t interrupts = check_contents(arguments);
  const Picoseconds waited = wait_for_writes(*plan, arguments, id), time = plan->time + waited;
  const size_t given = arguments.size();
  std::vector<std::string> buffers = plan->buffers;
  const auto job = std::make_shared<Job>(Job{std::move(plan), std::move(arguments), std::move(buffers), {}});
  if (shadow_) job->described = DescribedArguments::current();
  const auto release_own = [&] {
    for (size_t i = given; i < job->arguments.size(); ++i) memory_->release(job->arguments[i].block);
    if (job->lx.block) lx_->release(job->lx.block);
  };
  try {
    for (int64_t bytes : job->plan->allocations) job->arguments.push_back({memory_.get(), allocate(bytes)});
    int64_t lx_bytes = 0;
    for (const JobStep& step : job->plan->steps)
      if (step.program) lx_bytes = std::max(lx_bytes, step.program->lx_bytes);
    job->lx = allocate_lx(lx_bytes);
  } catch (...) {
    release_own();
    throw;
  }
  const auto run = [this, job] {
    try {
      run_job(*job);
    } catch (const Stopped&) {
      tear(job->plan->written, job->arguments);
      throw;
    }
  };
  uint64_t sequence = 0;
  const auto end = observer ? std::make_shared<ModelledEnd>() : nullptr;
  Task task{.run = run, .duration = time, .usage = &job->plan->usage, .end = end};
  try {
    sequence = engine_.submit(stream, std::move(task), Engine::Wake::worker, interrupts);
  } catch (...) {
    release_own();
    throw;
  }
  if (observer) observer({index_, id, end, time, observed, waited, {}, current_origin()});
  note_uses(job->arguments, job->plan->written, id, sequence);
  if (job->lx.block) lx_->note_use(job->lx.block, progress_, id, sequence);
  // Released already, with their uses noted: an allocation that needs the memory can then wait for the launch.
  release_own();
  if (launch_blocking_ && !Engine::inside(stream)) engine_.wait(stream, sequence, Runtime::interrupted);
}

}  // namespace spyre
