// The software card's public header: all that the PyTorch device (or any other host) needs.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "card/clock/clock.h"
#include "card/clock/collective_time.h"
#include "card/clock/hardware.h"
#include "card/engine/engine.h"
#include "card/error.h"
#include "card/memory/layout.h"
#include "card/memory/memory.h"
#include "card/numeric/formats.h"
#include "card/numeric/simd.h"
#include "card/numeric/tile_ops.h"
#include "card/program/job_plan.h"
#include "card/program/limits.h"
#include "card/program/program.h"
#include "card/program/program_time.h"
#include "card/program/use_of_units.h"
#include "card/program/validate.h"
#include "card/runtime/submission.h"
#include "card/runtime/tensor_info.h"
#include "card/telemetry/meter.h"
#include "card/telemetry/publisher.h"

namespace spyre {

enum class Mode { run, timing, strict };
enum class FlexDevice { PF, VF, MOCK };

struct Options {
  Mode mode = Mode::run;
  FlexDevice flex = FlexDevice::PF;
  std::vector<int> visible = {0};  // physical index of each visible card
  double memory_gb = 0;            // 0: what the description says
  int cores = 0;                   // 0: what the description says
  int threads = 0;                 // 0: one per host core
  bool launch_blocking = false;    // every launch and copy waits until it is carried out
  std::string hardware_file;
  std::string counters_directory{};  // where other processes find the counters; empty: nowhere
  // Reads SPYRE_CARD, FLEX_DEVICE, AIU_WORLD_SIZE, SPYRE_DEVICES, SPYRE_MEMORY_GB, SENCORES, SPYRE_THREADS,
  // SPYRE_LAUNCH_BLOCKING, SPYRE_SMI.
  // Throws ConfigurationError naming the variable.
  static Options from_environment(const std::string& hardware_file);
};

// A block together with the address space that it belongs to. As the argument of a launch it begins `shift` bytes, a
// multiple of a stick, inside the block: one program serves all places of a tensor in its memory that look the same.
struct Held {
  Memory* memory = nullptr;
  Block* block = nullptr;
  int64_t shift = 0;
};

// A strided view of a host tensor; strides in elements.
struct HostView {
  void* data;  // may be null in timing mode, where it is set to zeros otherwise
  HostType type;
  Dims size, strides;
  Held pinned;                           // set when the memory is ours, so that it outlives an asynchronous copy
  std::shared_ptr<Bf16Losses> losses{};  // of bf16 on its way to the card, where the caller wants to know
};

// A strided view, in host offsets, of a tensor on a card.
struct DeviceView {
  Held held;
  const Layout* layout;
  HostType type;
  Dims size, strides;
  int64_t offset;
  bool whole = false;  // writing it leaves nothing of what was in the block
};

class Shadow;        // memory/shadow.h: which bytes were ever written, in strict mode
struct FusionGroup;  // fusion/fusion_group.h

class Card {
 public:
  Card(int index, int physical, const Options& options, const Hardware& hardware, Engine& engine,
       CardCounters& counters);
  ~Card();

  int index() const { return index_; }
  int physical() const { return physical_; }
  int cores() const { return limits_.cores; }
  Mode mode() const { return mode_; }
  Memory& memory() { return *memory_; }
  Engine& engine() { return engine_; }
  const Clock& clock() const { return clock_; }
  const Links& links() const { return links_; }
  uint64_t hardware_digest() const { return hardware_digest_; }
  const CardLimits& limits() const { return limits_; }
  Stream& stream(int id);
  const Progress& progress() const { return progress_; }
  const CardCounters& counters() const { return counters_; }

  Block* allocate(uint64_t bytes);

  // Copies need equal sizes on both sides, and between host and card equal types. With Wait::yes the call returns when
  // the data is there, and the caller's thread does the work.
  enum class Wait { no, yes };
  void to_card(const DeviceView& to, const HostView& from, int stream, Wait wait);
  void to_host(const HostView& to, const DeviceView& from, int stream, Wait wait);
  // Both on this card, or `from` on another (a peer copy).
  void on_card(const DeviceView& to, const DeviceView& from, int stream);
  // `element`: one element's bytes in the layout's format.
  void fill(const DeviceView& to, uint32_t element, int stream);
  // Bytes as they are in device memory, without a layout.
  void bytes_to_card(Held to, int64_t offset, const void* from, int64_t bytes, int stream);
  void bytes_to_host(void* to, Held from, int64_t offset, int64_t bytes, int stream);
  void callback(int stream, std::function<void()> body);
  // The elements [first, first + count) of a view in the order of the host, one behind the other in the card's format;
  // and back. At once, by the calling thread: for work outside of the streams, which has waited for them.
  void pack(std::byte* to, const DeviceView& from, int64_t first, int64_t count);
  void unpack(const DeviceView& to, const std::byte* from, int64_t first, int64_t count);

  // Validate, and settle once all that every launch needs: the modelled time, LX, the tasks of matmuls, fusion. A
  // launch prepares what was not prepared before, each time anew.
  std::shared_ptr<const Program> prepare(Program program) const;
  std::shared_ptr<const JobPlan> prepare(JobPlan plan) const;
  void launch(std::shared_ptr<const Program> program, std::vector<Held> arguments, int stream);
  void launch(std::shared_ptr<const JobPlan> plan, std::vector<Held> arguments, int stream,
              const std::vector<double>& numbers = {});

  void synchronize(int stream);
  void synchronize();  // every stream; raises the first error found

 private:
  struct Job;
  // What a task does with a block.
  struct Used {
    Held held;
    Memory::Effect effect = Memory::Effect::reads;
  };
  using Uses = std::initializer_list<Used>;
  void submit(int stream, Task task, Uses uses, uint64_t interrupts, Wait wait = Wait::no,
              const Transfer* transfer = nullptr);
  void wait_for(Stream& stream, uint64_t sequence, const bool& ran);
  // Raises Dropped if an interrupt left one of these without contents; gives the interrupts there were.
  uint64_t check_contents(std::span<const Held> used) const;
  bool share_memory(const FusionPlan& plan, const std::vector<Held>& arguments) const;
  void run_program(const Program& program, const std::vector<Held>& arguments, const Held& lx);
  void run_step(const Program& program, size_t index, const std::vector<Held>& arguments, const Held& lx);
  void run_with_epilogue(const Program& program, size_t matmul, const FusionGroup& next,
                         const std::vector<std::byte*>& bases, std::byte* lx);
  void run_job(Job& job);
  Picoseconds wait_for_writes(const JobPlan& plan, const std::vector<Held>& arguments, int stream);
  void settle_lx(Program& program) const;
  void settle_matmul_tasks(Program& program) const;
  Held allocate_lx(int64_t bytes_per_core);
  void note_uses(const std::vector<Held>& arguments, const std::vector<int>& written, int stream, uint64_t sequence);
  void check_step(const Program& program, size_t index, const std::vector<Held>& held,
                  const std::vector<std::byte*>& bases);
  void check_arguments(const std::string& name, const std::vector<int64_t>& bytes, const std::vector<int64_t>& reach,
                       const std::vector<Held>& given) const;
  std::byte* address(const Held& held) const { return held.memory->card_address(held.block) + held.shift; }

  const int index_, physical_;
  const Mode mode_;
  const bool launch_blocking_;
  const CardLimits limits_;
  Engine& engine_;
  const Clock clock_;
  const Links links_;
  const uint64_t hardware_digest_;
  CardCounters& counters_;
  Meter meter_;
  Progress progress_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::array<std::atomic<uint64_t>, kStreams> last_written_{};  // by stream: serial of the block written last, or 0
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Memory> lx_;                  // scratchpads of the launches in flight
  std::unique_ptr<Shadow> shadow_, lx_shadow_;  // strict mode only
};

// The process's cards. Started on first use; a forked child cannot use its parent's.
class Runtime {
 public:
  // Throws ConfigurationError in a forked child.
  static Runtime& get();
  static bool started();
  static bool forked() noexcept;
  static void set_hardware_file(std::string path);
  static int device_count();  // from the environment; starts nothing
  static void stop();

  int count() const { return static_cast<int>(cards_.size()); }
  Card& card(int index);
  Memory& pinned() { return *pinned_; }
  Engine& engine() { return *engine_; }
  Publisher& publisher() { return *publisher_; }
  const Options& options() const { return options_; }

  // Asked now and then by every wait of this process.
  static InterruptCheck interrupted;

  explicit Runtime(Options options);
  ~Runtime();

 private:
  Options options_;
  Hardware hardware_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Memory> pinned_;
  std::vector<std::unique_ptr<Card>> cards_;
};

}  // namespace spyre
