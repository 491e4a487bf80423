// One core at work on a tile program: its slots, its scratchpad, and what it did, for the clock.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "card/error.h"
#include "card/tiles/tile_program.h"
#include "card/tiles/values.h"

namespace spyre::tiles {

// Memory that a program is given: elements [address, address + elements) of `element_bytes` each.
struct Region {
  int64_t address = 0, elements = 0, element_bytes = 1;
  std::byte* data = nullptr;
  bool writable = true;
  std::string name;
};

// Regions by address, and the scratchpads of all cores: what functions that run one after the other share.
class Memories {
 public:
  Memories() = default;
  explicit Memories(std::vector<Region> regions);

  const std::vector<Region>& regions() const { return regions_; }
  // The region with an element of this address: of several one with elements of so many bytes. Null: there is none.
  const Region* find(int64_t address, int64_t element_bytes) const;
  // Zeros before anything is written. Cores ask for them before they run.
  std::byte* scratchpad(size_t core) const { return core < scratchpads_.size() ? scratchpads_[core].get() : nullptr; }
  void make_scratchpads(size_t cores, size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<Region> regions_;
  std::vector<int64_t> furthest_;  // the end of all regions up to this one
  std::vector<std::unique_ptr<std::byte, Free>> scratchpads_;
};

// What all cores of a launch share.
struct Launch {
  const TileProgram& program;
  Memories& memory;    // that outlives the launch
  Memories arguments;  // arrays that are given to this launch alone
  bool values = true;  // false: only the time is wanted; tiles have shapes and no contents that matter
};

// What a core asks of the card's units at one instruction, summed up over its iterations.
struct Use {
  double vector_sticks = 0, special_sticks = 0, operand_sticks = 0, fold_sticks = 0;
  double multiplications = 0, rows = 0, columns = 0, depth = 0;
  int64_t times = 0;
};

// One box of memory that a core reads or writes.
struct Traffic {
  const Instruction* at;
  const Region* region;  // null: a scratchpad of another core, or this one's
  int64_t first, last;   // bytes from the region's begin
  int64_t bytes, run;
  bool written;
};

// Elements of memory that a core reads or writes, where several cores may.
struct Touched {
  const Instruction* at;
  const Region* region;
  int64_t offset, element;                              // bytes
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // how many, how many bytes apart
  bool written;
  int64_t meetings;  // of the cores before
};

struct Core {
  Launch& launch;
  int64_t id;
  std::vector<Value> slots;
  std::vector<Use> uses;  // by instruction
  std::vector<Traffic> traffic;
  std::vector<Touched> touched;
  int64_t meetings = 0;
  int64_t steps = 0;
  double elements = 0;

  Core(Launch& launch, int64_t id)
      : launch(launch), id(id), slots(size_t(launch.program.slots)), uses(size_t(launch.program.instructions)) {}

  // All raise InvalidProgram at the instruction's position.
  int64_t integer(const Instruction& at, int slot) const;
  const Tile& tile(const Instruction& at, int slot) const;
  const View& view(const Instruction& at, int slot) const;
  const Access& access(const Instruction& at, int slot) const;
  Tile new_tile(const Instruction& at, ElementType type, const Shape& shape);
  void put(int slot, int64_t value);
  void put(int slot, float value);
  void put(int slot, Tile tile);
  void work(const Instruction& at, double elements);  // raises where a program does too much
  double sticks(const Tile& tile) const {
    return double(tile.elements() * bytes_of(tile.type)) / double(launch.program.stick_bytes);
  }
};

[[noreturn]] void refuse(const Instruction& at, const std::string& why);

void run_reshape(Core& core, const Instruction& at);  // everything that only moves elements of tiles
void run_view(Core& core, const Instruction& at);     // views and access tiles
void run_load(Core& core, const Instruction& at);
void run_store(Core& core, const Instruction& at);

}  // namespace spyre::tiles
