// Threaded ops: operations on a tile of decoded elements that follow each other without leaving the registers. Each op
// works on a few vectors and ends by calling the next (threaded code), so values do not go through memory between two
// ops; an op may also read and write the card's formats in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "card/numeric/formats.h"

namespace spyre {

constexpr int64_t kRow = kStickBytes / 2;  // elements of a row of a tile: a stick of SEN169
constexpr int64_t kTileRows = 32;  // of a tile at most: a page of sticks, at whose end hardware prefetchers stop

// Loops of a fused loop over tiles: rows by core, rows of a core, then others.
constexpr size_t kLoops = 10, kOuterRows = 0, kInnerRows = 1;

// Where an op finds its second operand: SEN169 codes or floats in memory, or one number for all lanes of a row.
enum class Source : uint8_t { codes, floats, splat };

// What an op does to the value x in registers; y is its operand.
enum class OpKind : uint8_t {
  load,  // y
  add,
  sub,
  from,
  mul,
  div,
  into,
  maximum,
  under,
  minimum,
  over,  // x op y; `from`: y - x, `into`: y / x, `under`,
         // `over`: maximum and minimum of y and x
  square,
  neg,
  magnitude,
  exp,
  silu,
  short_exp,
  short_silu,     // of x; short ones are good enough to be rounded to SEN169
  fma,            // x * y + z; the next op, which is an `addend`, has the z
  addend,         // not carried out
  canonical,      // every NaN becomes the canonical one
  round,          // to SEN169
  store,          // x to codes, rounding it, or to floats
  store_rounded,  // x to floats, rounding it to SEN169
  copy,           // the codes that the op before has loaded
  fold_add,
  fold_maximum,
  fold_minimum,
  fold_mul,  // y = y op x, 64 lanes a row
  fold_add_halves,
  fold_maximum_halves,
  fold_minimum_halves,
  fold_mul_halves,  // 32 lanes a row, the lower half first
  fold_wide_add,    // the same, y in fp64
};

// Row r of stick s is at `at` + r * `row_stride` + s * `stick_stride`. Of floats, lanes from 32 on are `half` bytes
// further than lane 0.
struct ThreadedOp {
  void (*run)();  // of find_threaded_op
  std::byte* at;
  int64_t row_stride, half;
  bool canonical;            // round, store: a NaN is one that an operation has made
  int64_t stick_stride = 0;  // of what is folded: 0
  int64_t ahead = 0;         // codes: how far away what comes later is, which is prefetched meanwhile
};

// What ops run on: stick by stick, the rows of each; or two sticks at a time, of which there is an even number.
struct Area {
  int64_t rows, sticks;
  int64_t lanes;  // of each row: the first ones
  bool pairs_of_sticks = false;
};

// The source matters to kinds that have an operand in memory, `addend` to fma.
decltype(ThreadedOp::run) find_threaded_op(OpKind kind, Source source, Source addend = Source::splat);

// The kinds of those tile operations that have one.
struct BinaryOpKinds {
  OpKind in_order, swapped;  // x op y, y op x
};
std::optional<OpKind> unary_op_kind(std::string_view op, bool is_short);
std::optional<BinaryOpKinds> binary_op_kinds(std::string_view op);
// Folding operands of this source.
std::optional<OpKind> fold_op_kind(std::string_view op, Source source);

// Runs ops, of which the last is followed by one that runs end_of_ops(). Lanes past those of the area may be read, as
// sticks are there as a whole, and are never written. Folds go in the order of sticks.
decltype(ThreadedOp::run) end_of_ops();
void run_threaded_ops(const ThreadedOp* ops, const Area& area);

}  // namespace spyre
