// Tile operations: what the card's compute units do to a run of decoded elements. Every one gives the same bits on
// every instruction set, for every length, alignment and neighbour.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace spyre {

// Elements as an operation sees them: reals decoded to fp32 (bool is 0.0 or 1.0 there), integers to int64.
enum class Domain : uint8_t { real, integer };

// Reals: within 3 units in the last place of fp32 (short ones: a 250th of a unit of SEN169), special values as PyTorch
// has them; a NaN that an operation makes is 0x7fc00000, whatever came in. Integers wrap in 64 bits, and division by
// zero gives 0 with remainder 0.
struct TileOp {
  const char* name;  // as in the op table
  int arity;
  Domain in, out;  // comparisons of integers go from integer to real; `where` has a real condition before two of `in`
  int constants;   // parameters that are the same for all elements
  bool divides;    // by its second operand; its callers raise an error for a zero there
  // n may be any size. out may be one of in exactly, and otherwise must not overlap them.
  void (*run)(void* out, const void* const* in, size_t n, const double* constants);
};

std::span<const TileOp> tile_ops();                            // of the instruction set in use
const TileOp* find_tile_op(std::string_view name, Domain in);  // null when there is none
const TileOp* find_short_op(std::string_view name);            // of reals, for results that are rounded to SEN169

// Rounds to what SEN169 can hold, as an op rounds, staying in fp32: sen169_to_float(sen169_from_float(x)) bit for bit.
void round_to_sen169(float* values, size_t n);

// Folds n values, a power of two up to 128, with an op of two reals: the upper half onto the lower half, until one is
// left. The order is part of the card: no machine changes it.
float fold(const TileOp& op, const float* values, size_t n);

// Sums in fp64, for results in fp32: sums[i] += values[i].
void add_wide(double* sums, const float* values, size_t n);
// With d = values[i] - shifts[i]: sums[i] += d, squares[i] += d * d.
void add_moments(double* sums, double* squares, const float* shifts, const float* values, size_t n);
// Folds the upper half of n sums, a power of two, onto the lower half until one is left.
double fold_wide(double* sums, size_t n);
// Rounded once; a NaN is the canonical one.
float narrowed(double sum);

}  // namespace spyre
