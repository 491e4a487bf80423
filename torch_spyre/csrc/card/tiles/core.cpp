#include "card/tiles/core.h"

namespace spyre::tiles {

void refuse(const Instruction& at, const std::string& why) { throw InvalidProgram(at.where + ": " + why); }

namespace {

constexpr int64_t kMostSteps = int64_t{1} << 26;
constexpr double kMostElements = 0x1p38;

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
                   " instructions, or 2^38 elements, of a core");
}

}  // namespace spyre::tiles
