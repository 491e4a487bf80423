// SEN169, the card's format for halves: a sign, 6 bits of exponent with a bias of 31, 9 bits of fraction, no
// subnormals. Its numbers are fp32 numbers with 14 fraction bits less: fp32 bits >> 14 are code + kRebias. Code 0 is
// zero; the last two codes of each sign are NaN and infinity.
//
// The scalar conversions here are the definition. Vector forms of them (threaded_ops_simd.inc, matmul_simd.inc,
// formats_simd.inc) take the constants from here, and tests compare their bits.
#pragma once

#include <cstdint>

#include "card/numeric/simd.h"

#pragma GCC push_options
// Trapping floats and threaded jumps would turn selections back into branches, which are not vectorised.
#pragma GCC optimize("no-trapping-math,no-thread-jumps")

namespace spyre::sen169 {

constexpr int kExponentBias = 31, kFractionBits = 9;
constexpr int kShift = 23 - kFractionBits;                           // between a code and the bits of fp32
constexpr int32_t kRebias = (127 - kExponentBias) << kFractionBits;  // between the exponents, in codes
constexpr int32_t kMagnitude = 0x7fff, kSign = 0x8000;
constexpr int32_t kLargest = 0x7ffd, kNan = 0x7ffe, kInf = 0x7fff;  // codes
constexpr uint16_t kOne = kExponentBias << kFractionBits;
constexpr int32_t kLargestHalf = 0x5dff;  // 65472: the next code is past fp16

// Bits of fp32.
constexpr int32_t kFloatMagnitude = 0x7fffffff, kFloatInf = 0x7f800000, kFloatNan = 0x7fc00000;
constexpr int32_t kHalfUnit = 1 << (kShift - 1), kBelowUnit = (1 << kShift) - 1;  // of the last place of a code
constexpr int32_t kSmallestFloat = (1 + kRebias) << kShift, kLargestFloat = (kLargest + kRebias) << kShift;
constexpr int32_t kHalfSmallestFloat = kSmallestFloat - (1 << 23);

SPYRE_INLINE float decode(uint16_t code) {
  const int32_t magnitude = code & kMagnitude;
  int32_t bits = (magnitude + kRebias) << kShift;
  bits = magnitude == 0 ? 0 : bits;
  bits = magnitude == kNan ? kFloatNan : bits;
  bits = magnitude == kInf ? kFloatInf : bits;
  return __builtin_bit_cast(float, uint32_t(bits) | uint32_t(code & kSign) << 16);
}

// Rounds to nearest, ties away from zero. Finite values that round past code `largest` become code `past`.
template <int32_t largest, int32_t past>
SPYRE_INLINE uint16_t encode(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const int32_t magnitude = bits & kFloatMagnitude;
  // Code 0 is zero, not 2^-31: what is at least half of code 1 becomes at least code 1.
  const int32_t raised = magnitude > kSmallestFloat ? magnitude : kSmallestFloat;
  int32_t code = (raised - (kRebias << kShift) + kHalfUnit) >> kShift;
  code = magnitude < kHalfSmallestFloat ? 0 : code;
  code = code > largest ? past : code;
  if constexpr (past != kInf) code = magnitude == kFloatInf ? kInf : code;
  code = magnitude > kFloatInf ? kNan : code;
  return uint16_t(code | (bits >> 16 & kSign));
}

// As an operation rounds its result: past the largest finite code is infinity.
SPYRE_INLINE uint16_t encode(float value) { return encode<kLargest, kInf>(value); }

// decode(encode(value)) without leaving fp32.
SPYRE_INLINE float rounded(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const int32_t magnitude = bits & kFloatMagnitude;
  int32_t nearest = int32_t((uint32_t(magnitude) + kHalfUnit) & ~uint32_t{kBelowUnit});
  nearest = nearest > kSmallestFloat ? nearest : kSmallestFloat;
  nearest = magnitude < kHalfSmallestFloat ? 0 : nearest;
  nearest = nearest > kLargestFloat ? kFloatInf : nearest;
  nearest = magnitude > kFloatInf ? kFloatNan : nearest;
  return __builtin_bit_cast(float, uint32_t(nearest) | (bits & ~uint32_t{kFloatMagnitude}));
}

}  // namespace spyre::sen169
#pragma GCC pop_options
