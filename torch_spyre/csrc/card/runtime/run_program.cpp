// Running programs and plans, on the thread that runs a stream's task and on those that take part in its loops.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "card/card.h"
#include "card/error.h"
#include "card/fusion/fusion_group.h"
#include "card/kernels/attention.h"
#include "card/kernels/compute.h"
#include "card/kernels/copy_fill.h"
#include "card/kernels/index_ops.h"
#include "card/kernels/matmul_tasks.h"
#include "card/kernels/paged_attention.h"
#include "card/memory/shadow.h"
#include "card/numeric/float_environment.h"
#include "card/program/core_split.h"
#include "card/runtime/job.h"

namespace spyre {

namespace {

Convert copy_of(int64_t bytes) {
  constexpr HostType kSameBytes[] = {HostType::I8, HostType::I16, HostType::I32};
  return host_to_device(kSameBytes[bytes / 2]);
}

constexpr int64_t kLargeRange = int64_t{64} << 20;

// Sets bytes to zero. Pages of a large range are given back instead: the system gives zeros for those that are used,
// and a program that reads a few elements far apart takes no more memory than these.
void clear(std::byte* from, int64_t bytes) {
  std::byte* const end = from + bytes;
  const auto up = [](std::byte* at) {
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(at) + page - 1) / page * page);
  };
  std::byte* const first = up(from);
  std::byte* const last = up(end) == end ? end : up(end) - sysconf(_SC_PAGESIZE);
  if (bytes < kLargeRange || madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED) != 0) {
    std::memset(from, 0, static_cast<size_t>(bytes));
    return;
  }
  std::memset(from, 0, static_cast<size_t>(first - from));
  std::memset(last, 0, static_cast<size_t>(end - last));
}

}  // namespace

// Whether two arguments share memory, one of which is written: steps then depend on each other unknown to the program.
bool Card::share_memory(const FusionPlan& plan, const std::vector<Held>& arguments) const {
  const auto range = [&](int argument) {
    const Held& held = arguments[argument];
    std::byte* begin = held.block ? held.memory->card_address(held.block) : nullptr;
    return std::pair(begin, begin + (held.block ? held.block->bytes : 0));
  };
  for (const int written : plan.written) {
    const auto [low, high] = range(written);
    for (const int used : plan.used) {
      const auto [from, to] = range(used);
      if (used != written && low < to && from < high) return true;
    }
  }
  return false;
}

void Card::run_program(const Program& program, const std::vector<Held>& arguments, const Held& lx) {
  std::vector<std::byte*> bases;
  bases.reserve(arguments.size());
  for (const Held& held : arguments) bases.push_back(held.block ? address(held) : nullptr);
  for (const auto& [low, high] : program.lx_undefined)
    for (int core = 0; core < limits_.cores; ++core)
      std::memset(address(lx) + core * program.lx_bytes + low, 0, static_cast<size_t>(high - low));
  if (!program.fusion || share_memory(*program.fusion, arguments)) {
    for (size_t i = 0; i < program.steps.size(); ++i) run_step(program, i, arguments, lx);
    return;
  }
  std::byte* const scratchpads = lx.block ? address(lx) : nullptr;
  const std::vector<FusionGroup>& groups = program.fusion->groups;
  for (size_t s = 0; s < groups.size(); ++s) {
    const FusionGroup& group = groups[s];
    if (s + 1 < groups.size() && !groups[s + 1].after_tasks.empty())
      run_with_epilogue(program, group.begin, groups[++s], bases, scratchpads);
    else if (!group.items.empty())
      run_group(engine_, program, group, bases, scratchpads);
    else
      for (size_t i = group.begin; i < group.end; ++i) run_step(program, i, arguments, lx);
  }
}

void Card::run_with_epilogue(const Program& program, size_t matmul, const FusionGroup& next,
                             const std::vector<std::byte*>& bases, std::byte* lx) {
  const Step& step = program.steps[matmul];
  std::vector<std::byte*> operands;
  operands.reserve(step.operands.size());
  for (const Operand& operand : step.operands) operands.push_back(operand.in_lx() ? lx : bases[operand.argument]);
  engine_.parallel_for(step.matmul_tasks->tasks(), [&](int64_t task) {
    const FloatEnvironment environment;
    step.matmul_tasks->run(task, operands);
    for (const RowBlock& block : next.after_tasks[static_cast<size_t>(task)])
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
  // Matmul and attention have tasks of their own, as many as keep all threads busy.
  const auto run_tasks = [&](const auto& run, int64_t count) {
    engine_.parallel_for(count, [&](int64_t task) {
      const FloatEnvironment environment;
      run(task);
    });
  };
  if (step.op == OpCode::attention) {
    const AttentionTasks tasks(step, bases);
    return run_tasks([&](int64_t task) { tasks.run(task); }, tasks.size());
  }
  if (step.op == OpCode::paged_attention) {
    const PagedAttentionTasks tasks(step, bases);
    return run_tasks([&](int64_t task) { tasks.run(task); }, tasks.size());
  }
  if (step.op == OpCode::matmul)
    return run_tasks([&](int64_t task) { step.matmul_tasks->run(task, bases); }, step.matmul_tasks->tasks());
  const auto pointer = [&](size_t operand) {
    return ElementPointer{bases[operand], element_bytes(step.operands[operand].format)};
  };
  engine_.parallel_for(step.cores(), [&](int64_t index) {
    const FloatEnvironment environment;
    const int core = static_cast<int>(index);
    switch (step.op) {
      case OpCode::fill:
        for (const Nest& nest : affine_nests(step, core)) fill_nest(engine_, nest, pointer(0), &step.constant);
        return;
      case OpCode::copy:
      case OpCode::restickify:
        for (const Nest& nest : affine_nests(step, core))
          copy_nest(engine_, nest, pointer(0), pointer(1), copy_of(pointer(0).element_bytes));
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

void Card::run_job(Job& job) {
  const std::optional<DescribedArguments> described =
      shadow_ ? std::optional<DescribedArguments>(std::in_place, job.described) : std::nullopt;
  for (size_t i = 0; i < job.plan->undefined.size(); ++i)
    for (const auto& [low, high] : job.plan->undefined[i])
      clear(address(job.arguments[job.plan->argument_bytes.size() + i]) + low, high - low);
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
        if (shadow_) shadow_->wrote(*held.block, held.shift + step.offset, static_cast<int64_t>(buffer.size()));
        break;
      }
    }
  }
}

}  // namespace spyre
