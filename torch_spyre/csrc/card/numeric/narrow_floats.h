// IEEE-like number formats narrower than fp32: the definition of their conversions, for one value. Selections instead
// of branches let the compiler vectorise each as it stands, and no arithmetic touches fp32 subnormals.
#pragma once

#include <cstdint>

#include "card/numeric/sen169.h"
#include "card/numeric/simd.h"

#pragma GCC push_options
// Trapping floats and threaded jumps would turn selections back into branches.
#pragma GCC optimize("no-trapping-math,no-thread-jumps")

namespace spyre::narrow_floats {

using sen169::kFloatInf, sen169::kFloatMagnitude, sen169::kFloatNan;

SPYRE_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
SPYRE_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Overflow and infinity give magnitude `last`, which is the format's infinity if it has one; larger magnitudes are NaN.
template <class Code, int exponent, int fraction, int32_t last, int32_t nan>
struct Narrow {
  static constexpr int kShift = 23 - fraction, kBias = (1 << (exponent - 1)) - 1, kSign = exponent + fraction;
  static constexpr int32_t kRebase = (127 - kBias) << 23;
  static constexpr int kUnit = 1 - kBias - fraction;  // subnormals are multiples of 2^kUnit
  static constexpr bool kOwnSubnormals = exponent < 8, kHasInf = last % (1 << fraction) == 0;

  SPYRE_INLINE static float decode(Code code) {
    const int32_t magnitude = code & ((1 << kSign) - 1);
    int32_t bits = (magnitude << kShift) + kRebase;
    if constexpr (kOwnSubnormals) {
      const float subnormal = float(magnitude) * float_of((127 + kUnit) << 23);
      bits = magnitude < 1 << fraction ? int32_t(bits_of(subnormal)) : bits;
    }
    if constexpr (kHasInf) bits = magnitude == last ? kFloatInf : bits;
    bits = magnitude > last ? kFloatNan : bits;
    return float_of(uint32_t(bits) | uint32_t(code >> kSign) << 31);
  }

  SPYRE_INLINE static Code encode(float value) {
    const uint32_t bits = bits_of(value);
    const int32_t magnitude = bits & kFloatMagnitude;
    const int32_t odd = magnitude >> kShift & 1;
    int32_t code = int32_t(uint32_t(magnitude) - kRebase + (1 << (kShift - 1)) - 1 + odd) >> kShift;
    code = code < last ? code : last;
    if constexpr (kOwnSubnormals) {
      // The last place of `anchor` is worth 2^kUnit: the sum rounds, to nearest even.
      constexpr int32_t anchor = (127 + 23 + kUnit) << 23;
      const int32_t subnormal = bits_of(float_of(magnitude) + float_of(anchor)) - anchor;
      code = magnitude < kRebase + (1 << 23) ? subnormal : code;
    }
    code = magnitude > kFloatInf ? nan : code;
    return Code(code | (bits >> 31) << kSign);
  }
};
using Half = Narrow<uint16_t, 5, 10, 0x7c00, 0x7e00>;
using BFloat = Narrow<uint16_t, 8, 7, 0x7f80, 0x7fc0>;
using E4M3 = Narrow<uint8_t, 4, 3, 0x7e, 0x7f>;
using E5M2 = Narrow<uint8_t, 5, 2, 0x7c, 0x7f>;

}  // namespace spyre::narrow_floats
#pragma GCC pop_options
