#include "card.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "strict.h"

namespace spyre {

namespace {

int64_t count(const Dims& size) { return product(size); }

uint64_t usable_bytes(const Options& options, const Hardware& hardware) {
  if (options.memory_gb > 0) return static_cast<uint64_t>(options.memory_gb * (1ull << 30));
  return static_cast<uint64_t>(hardware["usable_segments"] * hardware["segment_bytes"]);
}

MemoryOptions memory_options(int index, const Options& options, const Hardware& hardware) {
  MemoryOptions result;
  result.name = "card " + std::to_string(index);
  result.segment_bytes = static_cast<uint64_t>(hardware["segment_bytes"]);
  result.capacity = usable_bytes(options, hardware);
  result.segments = static_cast<int>((result.capacity + result.segment_bytes - 1) / result.segment_bytes);
  result.backed = options.mode != Mode::timing;
  result.poison = options.mode == Mode::strict;
  return result;
}

// The dimension that lies along the stick, by the host stride of a step: what a restickify changes.
int64_t stick_stride(const Layout& layout) { return layout.stride_map.back(); }

[[noreturn]] void out_of_range(HostType type) {
  throw ValueRange(std::string("a value does not fit ") + name(type) + " on the card, which keeps it in " +
                   std::to_string(8 * element_bytes(format_of(type))) + " bits; nothing was truncated, the tensor's "
                   "contents are undefined until it is written again");
}

std::string uninitialised(const std::string& what) {
  return what + " read device memory that was never written (SPYRE_CARD=strict); initialise the tensor first";
}

}  // namespace

Card::Card(int index, int physical, const Options& options, const Hardware& hardware, Engine& engine)
    : index_(index),
      physical_(physical),
      mode_(options.mode),
      limits_{options.cores ? options.cores : static_cast<int>(hardware["cores"]),
              static_cast<int64_t>(hardware["span_bytes"])},
      engine_(engine),
      clock_(hardware, limits_.cores),
      memory_(std::make_unique<Memory>(memory_options(index, options, hardware))) {
  for (int id = 0; id < kStreams; ++id) {
    streams_.push_back(std::make_unique<Stream>());
    Stream& stream = *streams_.back();
    stream.card = index;
    stream.id = id;
    stream.high_priority = id > 32;
    stream.progress = &progress_;
  }
  memory_->wait_for = [this](const Use& use) {
    engine_.settle(use, Runtime::interrupted);
  };
  if (mode_ == Mode::strict) shadow_ = std::make_unique<Shadow>(memory_->options().segments * memory_->options().segment_bytes);
}

Card::~Card() = default;

Stream& Card::stream(int id) {
  if (id < 0 || id >= kStreams)
    throw Error("stream " + std::to_string(id) + " does not exist: a card has streams 0 to " + std::to_string(kStreams - 1));
  return *streams_[id];
}

Block* Card::allocate(uint64_t bytes) {
  Block* block = memory_->allocate(bytes);
  if (shadow_) shadow_->forget(block->offset, block->bytes);
  return block;
}

void Card::submit(int id, Task task, std::initializer_list<Held> uses, Wait wait) {
  Stream& stream = this->stream(id);
  const uint64_t sequence =
      engine_.submit(stream, std::move(task), wait == Wait::yes ? Engine::Wake::caller_waits : Engine::Wake::worker);
  if (wait == Wait::yes) return engine_.wait(stream, sequence, Runtime::interrupted);
  for (const Held& held : uses)
    if (held.block) held.memory->note_use(held.block, progress_, id, sequence);
}

std::vector<Nest> Card::written_nests(const DeviceView& view, const Dims& other_strides, int64_t other_offset) const {
  Nest nest;
  nest.offset[0] = view.offset;
  nest.offset[1] = other_offset;
  for (size_t i = 0; i < view.size.size(); ++i)
    nest.loops.push_back({view.size[i], {view.strides[i], other_strides.empty() ? 0 : other_strides[i]}});
  const Places where = places(*view.layout);
  std::vector<Nest> nests = lower(where, 0, nest);
  for (Nest& lowered : nests)
    for (const Level& replica : where.replicas) lowered.loops.push_back({replica.extent, {replica.device_stride, 0}});
  return nests;
}

void Card::to_card(const DeviceView& to, const HostView& from, int stream, Wait wait) {
  const int64_t bytes = count(to.size) * element_bytes(to.layout->format);
  std::vector<Nest> nests = mode_ == Mode::timing ? std::vector<Nest>{} : written_nests(to, from.strides, 0);
  const Side target{address(to.held), element_bytes(to.layout->format)};
  const Side source{static_cast<std::byte*>(from.data), host_bytes(from.type)};
  auto run = [this, nests = std::move(nests), target, source, type = from.type, at = to.held.block->offset] {
    bool good = true;
    for (const Nest& nest : nests) {
      good &= copy_nest(engine_, nest, target, source, host_to_device(type));
      if (shadow_)
        for_each_element(nest, 0, target.element_bytes, [&](int64_t byte) { shadow_->wrote(at + byte, target.element_bytes); });
    }
    if (!good) out_of_range(type);
  };
  submit(stream, {std::move(run), clock_.host_transfer(bytes)}, {to.held, from.pinned}, wait);
}

void Card::to_host(const HostView& to, const DeviceView& from, int stream, Wait wait) {
  const int64_t bytes = count(from.size) * element_bytes(from.layout->format);
  std::vector<Nest> nests;
  if (mode_ != Mode::timing) {
    Nest nest;
    nest.offset[1] = from.offset;
    for (size_t i = 0; i < from.size.size(); ++i) nest.loops.push_back({from.size[i], {to.strides[i], from.strides[i]}});
    nests = lower(places(*from.layout), 1, nest);
  }
  const Side target{static_cast<std::byte*>(to.data), host_bytes(to.type)};
  const Side source{address(from.held), element_bytes(from.layout->format)};
  auto run = [this, nests = std::move(nests), target, source, type = from.type, at = from.held.block->offset] {
    for (const Nest& nest : nests) {
      if (shadow_)
        for_each_element(nest, 1, source.element_bytes, [&](int64_t byte) {
          if (!shadow_->written(at + byte, source.element_bytes)) throw UndefinedBehavior(uninitialised("a copy to the host"));
        });
      copy_nest(engine_, nest, target, source, device_to_host(type));
    }
  };
  submit(stream, {std::move(run), clock_.host_transfer(bytes)}, {from.held, to.pinned}, wait);
}

void Card::on_card(const DeviceView& to, const DeviceView& from, int stream) {
  std::vector<Nest> nests;
  if (mode_ != Mode::timing) {
    const Places source_places = places(*from.layout);
    for (const Nest& nest : written_nests(to, from.strides, from.offset))
      for (Nest& lowered : lower(source_places, 1, nest)) nests.push_back(std::move(lowered));
  }
  const Side target{address(to.held), element_bytes(to.layout->format)};
  const Side source{address(from.held), element_bytes(from.layout->format)};
  const bool peer = from.held.memory != to.held.memory;
  const int64_t read = count(from.size) * source.element_bytes, written = count(to.size) * target.element_bytes;
  const bool restickify = stick_stride(*to.layout) != stick_stride(*from.layout);
  const Picoseconds time = peer ? clock_.host_transfer(written)
                                : clock_.kernel(read, written, limits_.cores,
                                                restickify ? Clock::Pattern::restickify : Clock::Pattern::stream);
  auto run = [this, nests = std::move(nests), target, source, from_type = from.type, to_type = to.type, peer,
              to_at = to.held.block->offset, from_at = from.held.block->offset] {
    bool good = true;
    for (const Nest& nest : nests) {
      if (shadow_) {
        // A peer's shadow is not ours to read; what arrives counts as written.
        if (!peer)
          for_each_element(nest, 1, source.element_bytes, [&](int64_t byte) {
            if (!shadow_->written(from_at + byte, source.element_bytes))
              throw UndefinedBehavior(uninitialised("a copy on the card"));
          });
        for_each_element(nest, 0, target.element_bytes, [&](int64_t byte) { shadow_->wrote(to_at + byte, target.element_bytes); });
      }
      good &= copy_nest(engine_, nest, target, source, device_cast(from_type, to_type));
    }
    if (!good) out_of_range(to_type);
  };
  submit(stream, {std::move(run), time}, {to.held, from.held});
}

void Card::fill(const DeviceView& to, uint32_t element, int stream) {
  std::vector<Nest> nests = mode_ == Mode::timing ? std::vector<Nest>{} : written_nests(to, {}, 0);
  const Side target{address(to.held), element_bytes(to.layout->format)};
  auto run = [this, nests = std::move(nests), target, element, at = to.held.block->offset] {
    for (const Nest& nest : nests) {
      fill_nest(engine_, nest, target, &element);
      if (shadow_)
        for_each_element(nest, 0, target.element_bytes, [&](int64_t byte) { shadow_->wrote(at + byte, target.element_bytes); });
    }
  };
  const int64_t bytes = count(to.size) * target.element_bytes;
  submit(stream, {std::move(run), clock_.kernel(0, bytes, limits_.cores, Clock::Pattern::stream)}, {to.held});
}

void Card::bytes_to_card(Held to, int64_t offset, const void* from, int64_t bytes, int stream) {
  auto run = [this, to, offset, from, bytes] {
    std::memcpy(address(to) + offset, from, bytes);
    if (shadow_) shadow_->wrote(to.block->offset + offset, bytes);
  };
  submit(stream, {run, clock_.host_transfer(bytes)}, {to}, Wait::yes);
}

void Card::bytes_to_host(void* to, Held from, int64_t offset, int64_t bytes, int stream) {
  auto run = [this, to, from, offset, bytes] { std::memcpy(to, address(from) + offset, bytes); };
  submit(stream, {run, clock_.host_transfer(bytes)}, {from}, Wait::yes);
}

void Card::callback(int stream, std::function<void()> body) { submit(stream, {std::move(body), 0, true}, {}); }

std::shared_ptr<const Program> Card::prepare(Program program) const {
  validate(program, limits_);
  return std::make_shared<const Program>(std::move(program));
}

void Card::run_program(const Program& program, const std::vector<Held>& arguments) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    auto side = [&](size_t operand) {
      return Side{address(arguments[step.operands[operand].argument]), element_bytes(step.operands[operand].format)};
    };
    auto offset = [&](size_t operand) { return arguments[step.operands[operand].argument].block->offset; };
    if (shadow_) {
      auto fail = [&](const std::string& what) {
        throw UndefinedBehavior("program '" + program.name + "', step " + std::to_string(s) + " (" + name(step.op) + "): " + what);
      };
      std::vector<uint8_t> writer(arguments[step.operands[0].argument].block->bytes, 0);
      for (int core = 0; core < step.cores(); ++core) {
        const Nest nest = core_nest(step, core);
        if (step.operands.size() > 1)
          for_each_element(nest, 1, side(1).element_bytes, [&](int64_t byte) {
            if (!shadow_->written(offset(1) + byte, side(1).element_bytes)) fail(uninitialised("core " + std::to_string(core)));
          });
        for_each_element(nest, 0, side(0).element_bytes, [&](int64_t byte) {
          if (writer[byte] && writer[byte] != core + 1)
            fail("cores " + std::to_string(writer[byte] - 1) + " and " + std::to_string(core) + " both write byte " +
                 std::to_string(byte));
          writer[byte] = static_cast<uint8_t>(core + 1);
          shadow_->wrote(offset(0) + byte, side(0).element_bytes);
        });
      }
    }
    engine_.parallel_for(step.cores(), [&](int64_t core) {
      const Nest nest = core_nest(step, static_cast<int>(core));
      if (step.op == OpCode::fill) {
        fill_nest(engine_, nest, side(0), &step.constant);
      } else {
        constexpr HostType kSameBytes[] = {HostType::I8, HostType::I16, HostType::I32};
        const int64_t bytes = side(0).element_bytes;
        copy_nest(engine_, nest, side(0), side(1), host_to_device(kSameBytes[bytes / 2]));
      }
    });
  }
}

namespace {

void check_arguments(const std::string& name, const std::vector<int64_t>& wanted, const std::vector<Held>& given) {
  if (wanted.size() != given.size())
    throw InvalidProgram("'" + name + "' takes " + std::to_string(wanted.size()) + " arguments, " +
                         std::to_string(given.size()) + " were given");
  for (size_t i = 0; i < wanted.size(); ++i)
    if (static_cast<int64_t>(given[i].block->bytes) < wanted[i])
      throw InvalidProgram("'" + name + "': argument " + std::to_string(i) + " needs " + std::to_string(wanted[i]) +
                           " bytes, the tensor has " + std::to_string(given[i].block->bytes));
}

}  // namespace

void Card::launch(std::shared_ptr<const Program> program, std::vector<Held> arguments, int id) {
  check_arguments(program->name, program->argument_bytes, arguments);
  Stream& stream = this->stream(id);
  const Picoseconds time = duration(*program, clock_);
  auto held = std::make_shared<std::vector<Held>>(std::move(arguments));
  const uint64_t sequence =
      engine_.submit(stream, {[this, program, held] { run_program(*program, *held); }, time});
  for (const Held& argument : *held) argument.memory->note_use(argument.block, progress_, id, sequence);
}

void Card::launch(std::shared_ptr<const JobPlan> plan, const std::vector<Held>& arguments, int id) {
  check_arguments(plan->name, plan->argument_bytes, arguments);
  struct Job {
    std::shared_ptr<const JobPlan> plan;
    std::vector<Held> arguments;
    std::vector<std::string> buffers;
    ~Job() {
      for (size_t i = plan->argument_bytes.size(); i < arguments.size(); ++i)
        arguments[i].memory->release(arguments[i].block);
    }
  };
  auto job = std::make_shared<Job>();
  job->plan = plan;
  job->arguments = arguments;
  job->buffers = plan->buffers;
  for (int64_t bytes : plan->allocations) job->arguments.push_back({memory_.get(), allocate(bytes)});
  Picoseconds time = 0;
  for (const JobStep& step : plan->steps) {
    if (step.type == JobStep::Type::Compute) time += duration(*step.program, clock_);
    if (step.type == JobStep::Type::H2D || step.type == JobStep::Type::D2H)
      time += clock_.host_transfer(static_cast<int64_t>(plan->buffers[step.buffer].size()));
  }
  auto run = [this, job] {
    for (const JobStep& step : job->plan->steps) {
      const bool device = step.type != JobStep::Type::HostCompute;
      if (device && mode_ == Mode::timing) continue;
      if (step.type == JobStep::Type::Compute) run_program(*step.program, job->arguments);
      if (step.type == JobStep::Type::HostCompute) step.host(job->buffers);
      if (step.type == JobStep::Type::H2D || step.type == JobStep::Type::D2H) {
        std::string& buffer = job->buffers[step.buffer];
        const Held& held = job->arguments[step.argument];
        std::byte* at = address(held) + step.offset;
        if (step.type == JobStep::Type::H2D) {
          std::memcpy(at, buffer.data(), buffer.size());
          if (shadow_) shadow_->wrote(held.block->offset + step.offset, static_cast<int64_t>(buffer.size()));
        } else {
          std::memcpy(buffer.data(), at, buffer.size());
        }
      }
    }
  };
  Stream& stream = this->stream(id);
  const uint64_t sequence = engine_.submit(stream, {std::move(run), time});
  for (const Held& held : job->arguments) held.memory->note_use(held.block, progress_, id, sequence);
}

void Card::synchronize(int id) { engine_.wait(stream(id), Runtime::interrupted); }

void Card::synchronize() {
  std::exception_ptr first;
  for (const auto& stream : streams_) {
    try {
      engine_.wait(*stream, Runtime::interrupted);
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace spyre
