// Preparing and launching card programs and the plans made of them.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "card/card.h"
#include "card/fusion/fusion_group.h"
#include "card/kernels/attention.h"
#include "card/kernels/compute.h"
#include "card/kernels/copy_fill.h"
#include "card/kernels/index_ops.h"
#include "card/kernels/matmul_tasks.h"
#include "card/memory/shadow.h"
#include "card/numeric/float_environment.h"
#include "card/program/uninitialized_reads.h"

namespace spyre {

// One launch of a plan.
struct Card::Job {
  const std::shared_ptr<const JobPlan> plan;
  std::vector<Held> arguments;  // the caller's, then the plan's own
  std::vector<std::string> buffers;
  Held lx;  // the scratchpads of all cores, where a program uses them
};

namespace {

Convert copy_of(int64_t bytes) {
  constexpr HostType kSameBytes[] = {HostType::I8, HostType::I16, HostType::I32};
  return host_to_device(kSameBytes[bytes / 2]);
}

void add_written(const Program& program, std::vector<int>& to) {
  for (const Step& step : program.steps)
    if (step.operands[0].argument >= 0) to.push_back(step.operands[0].argument);
}

std::vector<int> written_by(const JobPlan& plan) {
  std::vector<int> written;
  for (const JobStep& step : plan.steps) {
    if (step.program) add_written(*step.program, written);
    if (step.type == JobStep::Type::H2D) written.push_back(step.argument);
  }
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  return written;
}

// Arguments that a launch leaves half written hold nothing.
void tear(const std::vector<int>& written, const std::vector<Held>& arguments) {
  for (const int argument : written)
    if (Block* block = arguments[argument].block) block->torn = true;
}

// The first argument with the memory of each; none where all are apart.
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
    if (same(blocks[i - 1], blocks[i])) memory[blocks[i].second] = memory[blocks[i - 1].second];
  return memory;
}

}  // namespace

std::shared_ptr<const Program> Card::prepare(Program program) const {
  validate(program, limits_);
  program.time = duration(program, clock_);
  program.numbers = numbers_of(program);
  settle_lx(program);
  settle_products(program);
  if (mode_ == Mode::run) program.schedule = schedule_of(program);
  return std::make_shared<const Program>(std::move(program));
}

std::shared_ptr<const JobPlan> Card::prepare(JobPlan plan) const {
  validate(plan, limits_);
  plan.time = duration(plan, clock_);
  settle_neighbours(plan, clock_);
  plan.numbers = numbers_of(plan);
  plan.written = written_by(plan);
  plan.undefined = undefined_in_allocations(plan);
  for (JobStep& step : plan.steps)
    if (step.program && step.program->time < 0) step.program = prepare(*step.program);
  return std::make_shared<const JobPlan>(std::move(plan));
}

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

// Scratchpads lie one behind the other, no longer than the program needs them.
void Card::settle_lx(Program& program) const {
  constexpr int64_t kPage = 4096;
  program.lx_bytes = (lx_bytes_of(program) + kPage - 1) / kPage * kPage;
  for (Step& step : program.steps)
    for (Operand& operand : step.operands)
      if (operand.in_lx()) operand.core_bytes = program.lx_bytes;
  program.lx_undefined = undefined_in_lx(program);
}

void Card::settle_products(Program& program) const {
  if (engine_.immediate()) return;
  for (Step& step : program.steps)
    if (step.op == OpCode::matmul) step.products = std::make_shared<const Products>(step, engine_.threads());
}

void Card::note_uses(const std::vector<Held>& arguments, const std::vector<int>& written, int id, uint64_t sequence) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = std::binary_search(written.begin(), written.end(), static_cast<int>(i));
    const auto access = writes ? Memory::Access::writes : Memory::Access::reads;
    if (arguments[i].block) arguments[i].memory->note_use(arguments[i].block, progress_, id, sequence, access);
  }
}

// Of every launch its own: launches of several streams run at a time here.
Held Card::allocate_lx(int64_t bytes_per_core) {
  if (!bytes_per_core) return {};
  Block* block = lx_->allocate(bytes_per_core * limits_.cores);
  if (Shadow* shadow = Shadow::of(lx_.get())) shadow->forget(*block);
  return {lx_.get(), block};
}

void Card::check_arguments(const std::string& name, const std::vector<int64_t>& bytes,
                           const std::vector<Held>& given) const {
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
    if (size < bytes[i]) refuse("needs " + std::to_string(bytes[i]) + " bytes, the tensor has " + std::to_string(size));
  }
}

void Card::launch(std::shared_ptr<const Program> program, std::vector<Held> arguments, int id) {
  if (program->time < 0) program = prepare(*program);
  check_arguments(program->name, program->argument_bytes, arguments);
  if (program->numbers) throw InvalidProgram("'" + program->name + "' takes numbers, which launches of plans give");
  if (const auto memory = same_memory(arguments); !memory.empty()) check_same_memory(*program, limits_, memory);
  const uint64_t interrupts = check_contents(arguments);
  const Picoseconds time = program->time;
  std::vector<Held> uses = arguments;
  std::vector<int> written;
  add_written(*program, written);
  std::sort(written.begin(), written.end());
  const Held lx = allocate_lx(program->lx_bytes);
  auto run = [this, program = std::move(program), arguments = std::move(arguments), written, lx] {
    try {
      run_program(*program, arguments, lx);
    } catch (const Stopped&) {
      tear(written, arguments);
      throw;
    }
  };
  const auto release_lx = [&] {
    if (lx.block) lx_->release(lx.block);
  };
  try {
    const uint64_t sequence = engine_.submit(stream(id), {std::move(run), time}, Engine::Wake::worker, interrupts);
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
  if (plan->time < 0) plan = prepare(*plan);
  check_arguments(plan->name, plan->argument_bytes, arguments);
  if (static_cast<int>(numbers.size()) != plan->numbers)
    throw InvalidProgram("'" + plan->name + "' takes " + std::to_string(plan->numbers) + " numbers, " +
                         std::to_string(numbers.size()) + " were given");
  if (plan->numbers) plan = std::make_shared<const JobPlan>(with_numbers(*plan, numbers));
  if (const auto memory = same_memory(arguments); !memory.empty())
    for (const JobStep& step : plan->steps)
      if (step.program) check_same_memory(*step.program, limits_, memory);
  Stream& stream = this->stream(id);
  const uint64_t interrupts = check_contents(arguments);
  const Picoseconds time = plan->time + wait_for_writes(*plan, arguments, id);
  const size_t given = arguments.size();
  auto job = std::make_shared<Job>(std::move(plan), std::move(arguments));
  job->buffers = job->plan->buffers;
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
  try {
    sequence = engine_.submit(stream, {run, time}, Engine::Wake::worker, interrupts);
  } catch (...) {
    release_own();
    throw;
  }
  note_uses(job->arguments, job->plan->written, id, sequence);
  if (job->lx.block) lx_->note_use(job->lx.block, progress_, id, sequence);
  // Freed already, as far as the host goes: what queued launches hold is then memory that an allocation can wait for.
  release_own();
  if (launch_blocking_ && !Engine::inside(stream)) engine_.wait(stream, sequence, Runtime::interrupted);
}

// Whether arguments are the same memory, one of which is written: steps then meet where the program does not say so.
bool Card::share_memory(const Schedule& schedule, const std::vector<Held>& arguments) const {
  const auto range = [&](int argument) {
    const Held& held = arguments[argument];
    std::byte* begin = held.block ? address(held) : nullptr;
    return std::pair(begin, begin + (held.block ? held.block->bytes : 0));
  };
  for (const int written : schedule.written) {
    const auto [low, high] = range(written);
    for (const int used : schedule.used) {
      const auto [from, to] = range(used);
      if (used != written && low < to && from < high) return true;
    }
  }
  return false;
}

void Card::run_program(const Program& program, const std::vector<Held>& arguments, const Held& lx) {
  std::vector<std::byte*> bases;
  for (const Held& held : arguments) bases.push_back(held.block ? address(held) : nullptr);
  for (const auto& [low, high] : program.lx_undefined)
    for (int core = 0; core < limits_.cores; ++core)
      std::memset(address(lx) + core * program.lx_bytes + low, 0, static_cast<size_t>(high - low));
  if (!program.schedule || share_memory(*program.schedule, arguments)) {
    for (size_t i = 0; i < program.steps.size(); ++i) run_step(program, i, arguments, lx);
    return;
  }
  std::byte* const scratchpads = lx.block ? address(lx) : nullptr;
  const std::vector<Segment>& segments = program.schedule->segments;
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    if (s + 1 < segments.size() && !segments[s + 1].behind_tasks.empty())
      run_with_epilogue(program, segment.begin, segments[++s], bases, scratchpads);
    else if (!segment.items.empty())
      run_segment(engine_, program, segment, bases, scratchpads);
    else
      for (size_t i = segment.begin; i < segment.end; ++i) run_step(program, i, arguments, lx);
  }
}

void Card::run_with_epilogue(const Program& program, size_t product, const Segment& next,
                             const std::vector<std::byte*>& bases, std::byte* lx) {
  const Step& step = program.steps[product];
  std::vector<std::byte*> sides;
  for (const Operand& operand : step.operands) sides.push_back(operand.in_lx() ? lx : bases[operand.argument]);
  engine_.parallel_for(step.products->tasks(), [&](int64_t task) {
    const CardArithmetic arithmetic;
    step.products->run(task, sides);
    for (const RowBlock& block : next.behind_tasks[static_cast<size_t>(task)])
      run_block(program, next, block, bases, lx);
  });
}

void Card::run_step(const Program& program, size_t index, const std::vector<Held>& arguments, const Held& lx) {
  const Step& step = program.steps[index];
  std::vector<Held> held;
  std::vector<std::byte*> bases;
  for (const Operand& operand : step.operands) {
    held.push_back(operand.is_constant() ? Held{} : operand.in_lx() ? lx : arguments[operand.argument]);
    bases.push_back(operand.is_constant() ? nullptr : address(held.back()));
  }
  if (shadow_) check_step(program, index, held, bases);
  // Products and attention have parts of their own, as many as keep all threads busy.
  const auto in_parts = [&](const auto& parts, int64_t count) {
    engine_.parallel_for(count, [&](int64_t part) {
      const CardArithmetic arithmetic;
      parts(part);
    });
  };
  if (step.op == OpCode::attention) {
    const AttentionParts parts(step, bases);
    return in_parts([&](int64_t part) { parts.run(part); }, parts.size());
  }
  if (step.op == OpCode::matmul)
    return in_parts([&](int64_t task) { step.products->run(task, bases); }, step.products->tasks());
  const auto side = [&](size_t operand) { return Side{bases[operand], element_bytes(step.operands[operand].format)}; };
  engine_.parallel_for(step.cores(), [&](int64_t index) {
    const CardArithmetic arithmetic;
    const int core = static_cast<int>(index);
    switch (step.op) {
      case OpCode::fill:
        for (const Nest& nest : core_pieces(step, core)) fill_nest(engine_, nest, side(0), &step.constant);
        return;
      case OpCode::copy:
      case OpCode::restickify:
        for (const Nest& nest : core_pieces(step, core))
          copy_nest(engine_, nest, side(0), side(1), copy_of(side(0).element_bytes));
        return;
      case OpCode::elementwise:
        return run_elementwise(step, core, bases);
      case OpCode::reduce:
        return run_reduce(step, core, bases);
      default:
        return run_indexed(step, core, bases);
    }
  });
}

// Strict mode: nothing is read that was never written, and no core touches what another one writes in the same step.
void Card::check_step(const Program& program, size_t index, const std::vector<Held>& held,
                      const std::vector<std::byte*>& bases) {
  const Step& step = program.steps[index];
  const auto fail = [&](const std::string& what) {
    throw UndefinedBehavior("program '" + program.name + "', step " + std::to_string(index) + " (" + name(step.op) +
                            (step.source.empty() ? "" : ", " + step.source) + "): " + what);
  };
  const auto text = [](int64_t number) { return std::to_string(number); };
  const auto place = [&](size_t operand) {
    const Operand& which = step.operands[operand];
    return which.in_lx() ? std::string("LX") : "argument " + text(which.argument);
  };
  const auto each = [&](int core, size_t operand, const auto& body) {
    end_if_stopped();
    for_each_touched(step, core, operand, bases, [&](const Nest& nest) {
      for_each_element(nest, 0, element_bytes(step.operands[operand].format), body);
    });
  };
  const bool updates = updates_written(step);
  const Block& target = *held[0].block;
  std::vector<uint8_t> writer(target.bytes, 0);  // core + 1, at an element's first byte
  for (int core = 0; core < step.cores(); ++core)
    each(core, 0, [&](int64_t at) {
      if (writer[at] && writer[at] != core + 1)
        fail("cores " + text(writer[at] - 1) + " and " + text(core) + " both write byte " + text(at) + " of " +
             place(0));
      writer[at] = static_cast<uint8_t>(core + 1);
    });
  for (int core = 0; core < step.cores(); ++core)
    for (size_t operand = updates ? 0 : 1; operand < step.operands.size(); ++operand) {
      if (step.operands[operand].is_constant()) continue;
      const Block& source = *held[operand].block;
      const Shadow& shadow = *Shadow::of(held[operand].memory);
      for_each_touched(step, core, operand, bases, [&](const Nest& nest) {
        if (!shadow.written(source, nest, 0, element_bytes(step.operands[operand].format)))
          fail("core " + text(core) + " reads memory of " + place(operand) +
               " that was never written (SPYRE_CARD=strict)");
      });
      if (&source != &target) continue;
      each(core, operand, [&](int64_t at) {
        if (writer[at] && writer[at] != core + 1)
          fail("core " + text(core) + " reads byte " + text(at) + " of " + place(operand) + ", which core " +
               text(writer[at] - 1) + " writes");
      });
    }
  for (int core = 0; core < step.cores(); ++core)
    for_each_touched(step, core, 0, bases, [&](const Nest& nest) {
      Shadow::of(held[0].memory)->wrote(target, nest, 0, element_bytes(step.operands[0].format));
    });
}

void Card::run_job(Job& job) {
  for (size_t i = 0; i < job.plan->undefined.size(); ++i)
    for (const auto& [low, high] : job.plan->undefined[i])
      std::memset(address(job.arguments[job.plan->argument_bytes.size() + i]) + low, 0,
                  static_cast<size_t>(high - low));
  for (size_t i = 0; i < job.plan->steps.size(); ++i) {
    const JobStep& step = job.plan->steps[i];
    const auto where = [&] {
      return "plan '" + job.plan->name + "', step " + std::to_string(i) + " (" + name(step.type) + "): ";
    };
    switch (step.type) {
      case JobStep::Type::Compute:
        run_program(*step.program, job.arguments, job.lx);
        break;
      case JobStep::Type::HostCompute:
        try {
          step.host(job.buffers);
        } catch (const std::exception& error) {
          throw Error(where() + error.what());
        }
        if (!std::equal(job.buffers.begin(), job.buffers.end(), job.plan->buffers.begin(), job.plan->buffers.end(),
                        [](const std::string& a, const std::string& b) { return a.size() == b.size(); }))
          throw InvalidProgram(where() + "the host function changed the number or the sizes of the buffers");
        break;
      case JobStep::Type::H2D:
      case JobStep::Type::D2H: {
        const Held& held = job.arguments[step.argument];
        std::string& buffer = job.buffers[step.buffer];
        if (buffer.empty()) break;  // so may be the tensor, which has no memory then
        std::byte* at = address(held) + step.offset;
        if (step.type == JobStep::Type::D2H) {
          std::memcpy(buffer.data(), at, buffer.size());
          break;
        }
        std::memcpy(at, buffer.data(), buffer.size());
        if (shadow_) shadow_->wrote(*held.block, step.offset, static_cast<int64_t>(buffer.size()));
        break;
      }
    }
  }
}

}  // namespace spyre
