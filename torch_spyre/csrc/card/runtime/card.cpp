// A card: its memories, its streams, and waiting for them.
#include "card/card.h"

#include "card/error.h"
#include "card/memory/shadow.h"

namespace spyre {

namespace {

MemoryOptions memory_options(int index, const Options& options, const Hardware& hardware) {
  MemoryOptions result;
  result.name = "card " + std::to_string(index);
  result.segment_bytes = static_cast<uint64_t>(hardware["segment_bytes"]);
  result.capacity = options.memory_gb > 0 ? static_cast<uint64_t>(options.memory_gb * (1ull << 30))
                                          : static_cast<uint64_t>(hardware["usable_segments"]) * result.segment_bytes;
  result.segments = static_cast<int>((result.capacity + result.segment_bytes - 1) / result.segment_bytes);
  result.backed = options.mode != Mode::timing;
  result.poison = options.mode == Mode::strict;
  return result;
}

MemoryOptions lx_options(const MemoryOptions& memory, const CardLimits& limits) {
  MemoryOptions result = memory;
  result.name = "LX of " + memory.name;
  result.segments = 1;
  result.segment_bytes = result.capacity = kStreams * limits.cores * limits.lx_bytes;
  result.faulting = false;
  return result;
}

void check_stick(const Hardware& hardware) {
  if (hardware["stick_bytes"] != kStickBytes)
    throw ConfigurationError("the hardware description has sticks of " + std::to_string(hardware["stick_bytes"]) +
                             " bytes; this build of the card is for " + std::to_string(kStickBytes));
}

}  // namespace

Card::Card(int index, int physical, const Options& options, const Hardware& hardware, Engine& engine,
           CardCounters& counters)
    : index_(index),
      physical_(physical),
      mode_(options.mode),
      launch_blocking_(options.launch_blocking),
      limits_{options.cores ? options.cores : static_cast<int>(hardware["cores"]),
              static_cast<int64_t>(hardware["span_bytes"]), static_cast<int64_t>(hardware["lx_bytes"])},
      engine_(engine),
      clock_(hardware),
      links_(hardware),
      hardware_digest_(hardware.digest()),
      counters_(counters),
      meter_(counters),
      memory_(std::make_unique<Memory>(memory_options(index, options, hardware))),
      lx_(std::make_unique<Memory>(lx_options(memory_->options(), limits_))) {
  check_stick(hardware);
  for (int id = 0; id < kStreams; ++id) {
    streams_.push_back(std::make_unique<Stream>());
    Stream& stream = *streams_.back();
    stream.card = index;
    stream.id = id;
    stream.high_priority = id > 32;
    stream.progress = &progress_;
    stream.meter = &meter_;
  }
  counters_.physical.set(physical);
  counters_.cores.set(limits_.cores);
  counters_.capacity.set(memory_->capacity());
  memory_->count(&counters_.memory);
  memory_->wait_for = [this](const Use& use) { engine_.settle(use, Runtime::interrupted); };
  lx_->wait_for = memory_->wait_for;
  if (mode_ != Mode::strict) return;
  shadow_ = std::make_unique<Shadow>(*memory_);
  lx_shadow_ = std::make_unique<Shadow>(*lx_);
}

Card::~Card() = default;

Stream& Card::stream(int id) {
  if (id < 0 || id >= kStreams)
    throw Error("stream " + std::to_string(id) + " does not exist: a card has streams 0 to " +
                std::to_string(kStreams - 1));
  return *streams_[id];
}

Block* Card::allocate(uint64_t bytes) {
  Block* block = memory_->allocate(bytes);
  if (shadow_) shadow_->forget(*block);
  return block;
}

uint64_t Card::check_contents(std::span<const Held> used) const {
  const uint64_t interrupts = engine_.interrupts();
  if (interrupts == 0) [[likely]]
    return 0;
  for (const Held& held : used)
    if (held.block && held.memory->lost(held.block))
      throw Dropped("a tensor on " + held.memory->options().name +
                    " has no values: the work that computes them was dropped when the program was interrupted. "
                    "Compute it again, or write all of it with copy_ or fill_.");
  return interrupts;
}

void Card::submit(int id, Task task, Uses uses, uint64_t interrupts, Wait wait, const Transfer* transfer) {
  Stream& stream = this->stream(id);
  if (launch_blocking_ && !Engine::inside(stream)) wait = Wait::yes;
  bool ran = false;
  if (wait == Wait::yes) task.ran = &ran;
  const auto wake = wait == Wait::yes ? Engine::Wake::caller_waits : Engine::Wake::worker;
  const SubmissionObserver observer = submission_observer.load(std::memory_order_relaxed);
  const auto end = observer ? std::make_shared<ModelledEnd>() : nullptr;
  task.end = end;
  const Picoseconds duration = task.duration;
  const uint64_t sequence = engine_.submit(stream, std::move(task), wake, interrupts);
  if (observer && transfer) observer({index_, id, end, duration, nullptr, 0, *transfer, current_origin()});
  for (const auto& [held, effect] : uses)
    if (held.block) held.memory->note_use(held.block, progress_, id, sequence, effect);
  if (wait == Wait::yes) wait_for(stream, sequence, ran);
}

void Card::wait_for(Stream& stream, uint64_t sequence, const bool& ran) {
  try {
    engine_.wait(stream, sequence, Runtime::interrupted);
  } catch (...) {
    engine_.withdraw(stream, sequence);  // the host's memory may be gone before the task runs
    throw;
  }
  if (!ran)
    throw Error("not carried out: earlier work on stream " + std::to_string(stream.id) +
                " failed, and its error was raised in another thread");
}

void Card::callback(int stream, std::function<void()> body) {
  submit(stream, {std::move(body), 0, true}, {}, engine_.interrupts());
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
