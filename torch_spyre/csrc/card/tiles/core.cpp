#include "card/tiles/core.h"

#include <algorithm>

namespace spyre::tiles {

void refuse(const Instruction& at, const std::string& why) { throw InvalidProgram(at.where + ": " + why); }

Memories::Memories(std::vector<Region> regions) : regions_(std::move(regions)) {
  std::stable_sort(regions_.begin(), regions_.end(),
                   [](const Region& a, const Region& b) { return a.address < b.address; });
  int64_t end = INT64_MIN;
  for (const Region& each : regions_) furthest_.push_back(end = std::max(end, each.address + each.elements));
}

const Region* Memories::find(int64_t address, int64_t element_bytes) const {
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                      [](int64_t a, const Region& region) { return a < region.address; });
  const Region* found = nullptr;
  for (size_t i = size_t(after - regions_.begin()); i-- > 0 && furthest_[i] > address;) {
    const Region& each = regions_[i];
    if (address - each.address >= each.elements) continue;
    if (each.element_bytes == element_bytes) return &each;
    found = &each;
  }
  return found;
}

void Memories::make_scratchpads(size_t cores, size_t bytes) {
  while (scratchpads_.size() < cores) {
    auto* memory = static_cast<std::byte*>(std::calloc(bytes, 1));
    if (!memory) throw OutOfMemory("no memory for the scratchpads of " + std::to_string(cores) + " cores");
    scratchpads_.emplace_back(memory);
  }
}

namespace {

constexpr int64_t kMostSteps = int64_t{1} << 23;
constexpr double kMostElements = 0x1p34;

const char* kind_of(const Value& value) {
  constexpr const char* kNames[] = {"nothing", "an integer",     "a real",  "a tile",
                                    "a view",  "an access tile", "a future"};
  return kNames[size_t(value.kind)];
}

[[noreturn]] void refuse_kind(const Instruction& at, const Value& value, const char* wanted) {
  refuse(at, std::string("an operand is ") + kind_of(value) + ", wanted is " + wanted);
}

}  // namespace

int64_t Core::integer(const Instruction& at, int slot) const {
  const Value& value = slots[size_t(slot)];
  if (value.kind == Value::Kind::integer) return value.integer;
  if (value.kind == Value::Kind::real) return value.real != 0;  // i1
  refuse_kind(at, value, "an integer");
}

const Tile& Core::tile(const Instruction& at, int slot) const {
  const Value& value = slots[size_t(slot)];
  if (value.kind != Value::Kind::tile) refuse_kind(at, value, "a tile");
  return value.tile;
}

const View& Core::view(const Instruction& at, int slot) const {
  const Value& value = slots[size_t(slot)];
  if (value.kind != Value::Kind::view) refuse_kind(at, value, "a view");
  return *value.view;
}

const Access& Core::access(const Instruction& at, int slot) const {
  const Value& value = slots[size_t(slot)];
  if (value.kind != Value::Kind::access) refuse_kind(at, value, "an access tile");
  return *value.access;
}

Tile Core::new_tile(const Instruction& at, ElementType type, const Shape& shape) {
  int64_t bytes = bytes_of(type);
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] < 0) refuse(at, "a tile with the shape " + text_of(shape));
    if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes > launch.program.lx_bytes)
      refuse(at, "a tile of the shape " + text_of(shape) + " and type " + name(type) +
                     " does not fit the scratchpad of " + std::to_string(launch.program.lx_bytes) +
                     " bytes: divide the work over more tiles, or loop");
  }
  return Tile(type, shape);
}

void Core::put(int slot, int64_t value) {
  Value& to = slots[size_t(slot)];
  to.kind = Value::Kind::integer;
  to.integer = value;
}

void Core::put(int slot, float value) {
  Value& to = slots[size_t(slot)];
  to.kind = Value::Kind::real;
  to.real = value;
}

void Core::put(int slot, Tile tile) {
  Value& to = slots[size_t(slot)];
  to.kind = Value::Kind::tile;
  to.tile = std::move(tile);
}

void Core::work(const Instruction& at, double more) {
  elements += more;
  if (++steps > kMostSteps || elements > kMostElements)
    refuse(at, "the program does not end within " + std::to_string(kMostSteps) +
                   " instructions, or 2^34 elements, of a core");
}

}  // namespace spyre::tiles
