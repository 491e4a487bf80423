// A tile program is data: one function that every core of a grid runs over its own tiles. Instructions name slots,
// which hold tiles, scalars, views and access tiles; each instruction works on whole tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "card/numeric/tile_ops.h"
#include "card/tiles/affine.h"
#include "card/tiles/element_types.h"

namespace spyre::tiles {

// What an instruction does. `in`, `out` are slots; `numbers` as said.
enum class Code : uint8_t {
  integer,        // out = numbers[0]
  real,           // out = reals[0]
  constant,       // a tile of numbers (its shape) with the value or values `reals` or `values`
  tile_id,        // the core's coordinates, one slot per grid dimension
  compute,        // the body over scalars, or over tiles of one shape
  generic,        // the body over an iteration space: `loops`, `maps`
  contract,       // C + A B: maps give each operand's loops
  splat,          // in[0] in every element of a tile; numbers: the shape, -1 for the sizes in in[1...]
  reshape,        // the same elements in another shape; numbers as of splat
  extract,        // in[0] at the indices in[1...]
  extract_slice,  // numbers: rank, then offsets, sizes, strides (kDynamic: the next of in[1...]), then kept dimensions
  insert_slice,   // in[0] into in[1]; numbers as above, in[2...]
  from_elements,  // a tile of numbers with the scalars of in
  size_of,        // out = the size of dimension in[1] of in[0]
  view,  // in[0] base, in[1...] dynamic sizes and strides; numbers: rank, sizes, strides, core of LX (-1: none)
  distributed_view,
  access,  // in[0] view, in[1...] indices; maps[0]: base coordinates; numbers: order, then shape (-1: from the set)
  indirect_access,  // in[0] view, in[1...] index views; subscripts
  load,
  store,             // in[0] tile, in[1] access
  loop,              // in: from, to, step, initial values ...; blocks[0]
  branch,            // in[0]; blocks[0], blocks[1]
  runtime_argument,  // in[0]; numbers: granularity, upper bound
  produce,           // blocks[0]; sets[0]: producers by group; numbers: group dimensions
  reduce,            // in[0] future, in[1] identity; blocks[0]; sets[0]: consumers by group
  consume,
};
constexpr int64_t kDynamic = INT64_MIN;

// One operation on elements, between registers of a body.
struct MicroOp {
  enum class Kind : uint8_t { tile_op, cast, bitcast, extract, unsigned_op } kind = Kind::tile_op;
  const TileOp* op = nullptr;
  int unsigned_op = 0;  // 0 divide, 1 remainder, 2 shift right, 3 maximum, 4 minimum, 5 below, 6 not above
  std::vector<int> in;
  int out = 0;
  ElementType type = ElementType::f32, from = ElementType::f32;  // of the result; of the inputs
  bool exact = false;                                            // what comes out needs no rounding
  std::vector<double> constants;
  int table = -1;  // extract: which of the instruction's tables
};

// What is done for each element: registers hold the inputs in order, then constants, positions and results.
struct Body {
  int registers = 0, inputs = 0;
  std::vector<ElementType> types;  // of registers
  struct Constant {
    int at;
    double real;
    int64_t integer;
  };
  std::vector<Constant> constants;
  struct Position {
    int at, loop;
  };
  std::vector<Position> positions;
  std::vector<MicroOp> ops;
  std::vector<int> results;
  std::vector<int> tables;        // slots of tiles that `extract` reads
  bool reads_outputs = true;      // generic: an output's value before is used
  double special = 0, plain = 0;  // operations for the clock
};

struct Instruction;
struct Block {
  std::vector<int> arguments, results;
  std::vector<bool> moved;  // results that nothing else holds on to
  std::vector<Instruction> instructions;
  bool meets = false;  // holds an instruction at which cores meet
};

struct Instruction {
  Code code = Code::integer;
  std::vector<int> in, out, free;  // free: slots that nobody reads afterwards
  std::vector<int64_t> numbers;
  std::vector<double> reals;
  std::vector<int64_t> values;
  ElementType type = ElementType::f32;
  Body body;
  std::string combine;        // generic: the operation that folds results of the body into the first output
  std::vector<bool> reduced;  // generic: which loops fold
  std::vector<std::vector<Expression>> maps;
  std::vector<IntegerSet> sets;
  std::vector<int> index_views;  // indirect: per subscript the position in `in`, or -1
  std::vector<Block> blocks;
  bool meets = false;  // cores wait for each other before it
  std::string where;   // line, column and name of the op, for messages
  int id = 0;
};

struct TileProgram {
  std::string name;
  std::vector<int64_t> grid;
  int64_t cores = 1, slots = 0, instructions = 0;
  std::vector<int> arguments;  // slots
  int64_t lx_bytes = 0, stick_bytes = 0;
  bool uses_scratchpads = false;  // has views of them
  Block body;
};

}  // namespace spyre::tiles
