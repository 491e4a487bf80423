// The living definition of the tile operations: each for one element. Only tile_ops.cpp,
// threaded_ops.cpp, attention.cpp and scan_topk.cpp include this.
//
// Selections instead of branches let the compiler vectorise each as it stands; fma is written where it is meant, and
// the build forbids any other. What is often needed (exp, sigmoid, tanh, erf) is computed in fp32. The rest is computed
// in double precision and rounded once, which leaves little to care for in cancellation, overflow and subnormals.
#pragma once

#include <cstddef>
#include <cstdint>

#include "card/numeric/simd.h"

#pragma GCC push_options
// Trapping floats, threaded jumps and errno would turn selections back into branches.
#pragma GCC optimize("no-trapping-math,no-thread-jumps,no-math-errno")

// The built-in ones are taken to write errno, whatever the options say, and are then not vectorised.
extern "C" float sqrtf(float) noexcept __attribute__((const));
extern "C" double sqrt(double) noexcept __attribute__((const));

namespace spyre::math {

constexpr float kNan = __builtin_nanf(""), kInf = __builtin_inff();
constexpr double kWide = __builtin_inf();

SPYRE_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
SPYRE_INLINE uint64_t bits_of(double value) { return __builtin_bit_cast(uint64_t, value); }
SPYRE_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
SPYRE_INLINE double double_of(uint64_t bits) { return __builtin_bit_cast(double, bits); }
SPYRE_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SPYRE_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
SPYRE_INLINE float magnitude(float x) { return __builtin_fabsf(x); }
SPYRE_INLINE float with_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
SPYRE_INLINE float truth(bool value) { return value ? 1.0f : 0.0f; }
SPYRE_INLINE float canonical(float x) { return x == x ? x : kNan; }

// c0 + c1 x + c2 x^2 ... All coefficients here are minimax; the comment next to them tells the error left.
template <class T>
SPYRE_INLINE T polynomial(T, T last) {
  return last;
}
template <class T, class... Rest>
SPYRE_INLINE T polynomial(T x, T first, Rest... rest) {
  return fma(polynomial(x, rest...), x, first);
}

// Adding 1.5 * 2^23 (2^52) leaves the nearest integer in the low bits.
constexpr float kAnchor = 0x1.8p23f;
constexpr double kWideAnchor = 0x1.8p52;
constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2 = 0x1.62e42fefa39efp-1, kSqrt2 = 0x1.6a09e667f3bcdp+0;

// ---- Exponentials in fp32: e^x is e^r * 2^n with |r| <= ln2 / 2.

struct Reduced {
  float r;
  int32_t n;
};
SPYRE_INLINE Reduced reduce(float x) {
  const float anchored = fma(x, float(kLog2E), kAnchor), n = anchored - kAnchor;
  const float r = fma(n, 0x1.05c61p-29f, fma(n, -0x1.62e43p-1f, x));
  return {r, int32_t(bits_of(anchored) - bits_of(kAnchor))};
}
// Where the exponent is itself a product, its rounding to fp32 would already cost several units.
SPYRE_INLINE Reduced reduce(double x) {
  const double anchored = fma(x, kLog2E, kWideAnchor);
  return {float(fma(anchored - kWideAnchor, -kLn2, x)), int32_t(uint32_t(bits_of(anchored)))};
}
SPYRE_INLINE float expm1_reduced(float r) {  // 2^-28
  return fma(r * r, polynomial(r, 0x1.fffffcp-2f, 0x1.55548ep-3f, 0x1.5558aap-5f, 0x1.123beep-7f, 0x1.6a54f8p-10f), r);
}
SPYRE_INLINE float power_of_two(uint32_t n) { return float_of((n + 127) << 23); }

// e^x as m * 2^n, which leaves m all its bits even where the product is subnormal.
struct Power {
  float m;
  uint32_t n;
};
constexpr float kFarthest = 110;  // beyond, e^x and e^-x * x are inf or 0
template <class T>
SPYRE_INLINE Power power(T x) {
  x = x > T(kFarthest) ? T(kFarthest) : x;
  x = x < T(-kFarthest) ? T(-kFarthest) : x;
  const Reduced reduced = reduce(x);
  const uint32_t n = uint32_t(reduced.n >> 1);
  return {(1 + expm1_reduced(reduced.r)) * power_of_two(uint32_t(reduced.n) - n), n};
}
// Where the result is rounded to SEN169 at once: 2^-17, a five-hundredth of what rounding may cost.
SPYRE_INLINE Power short_power(float x) {
  x = x > kFarthest ? kFarthest : x;
  x = x < -kFarthest ? -kFarthest : x;
  const float anchored = fma(x, float(kLog2E), kAnchor), r = fma(anchored - kAnchor, -float(kLn2), x);
  const int32_t whole = int32_t(bits_of(anchored) - bits_of(kAnchor));
  const uint32_t n = uint32_t(whole >> 1);
  const float m = polynomial(r, 1.0f, 1.0f, 0x1.0006b6p-1f, 0x1.571cc2p-3f, 0x1.52258ep-5f);
  return {m * power_of_two(uint32_t(whole) - n), n};
}
SPYRE_INLINE float exp(float x) {
  const Power e = power(x);
  return e.m * power_of_two(e.n);
}
SPYRE_INLINE float short_exp(float x) {
  const Power e = short_power(x);
  return e.m * power_of_two(e.n);
}

// x times the sigmoid of z, x / (1 + e^-z), with top and bottom divided by the 2^n of e^-z, which could overflow.
template <class T>
SPYRE_INLINE float gate(float x, T z, Power e) {
  const float inverse = z < T(-kFarthest) ? 0 : power_of_two(-e.n);
  return x / (inverse + e.m) * inverse;
}
SPYRE_INLINE float sigmoid(float x) { return gate(1, x, power(-x)); }
SPYRE_INLINE float silu(float x) { return gate(x, x, power(-x)); }
SPYRE_INLINE float short_silu(float x) { return gate(x, x, short_power(-x)); }
SPYRE_INLINE float gelu_tanh(float x) {
  const double wide = x;  // 2 sqrt(2/pi) (x + 0.044715 x^3)
  const double z = wide * fma(wide * wide, 0x1.2444f2a4d8b4bp-4, 0x1.9884533d43651p+0);
  return gate(x, z, power(-z));
}
SPYRE_INLINE float tanh(float x) {
  const float twice = 2 * magnitude(x);
  const Reduced reduced = reduce(twice > 20 ? 20.0f : twice);
  const float scale = power_of_two(uint32_t(reduced.n));
  const float expm1 = fma(expm1_reduced(reduced.r), scale, scale - 1);
  return with_sign(expm1 / (expm1 + 2), x);
}

SPYRE_INLINE float erf(float x) {
  const float a = magnitude(x), t = a > 4 ? 4.0f : a;
  const float near = fma(polynomial(x * x, 0x1.06eba6p-3f, -0x1.8126f4p-2f, 0x1.ce1d38p-4f, -0x1.b6b7b2p-6f,
                                    0x1.4851ep-8f, -0x1.3ec70cp-11f),  // 2^-26
                         x, x);
  const float exponent = -t * polynomial(t, 0x1.20ee5cp+0f, 0x1.4538ap-1f, 0x1.b2d552p-4f, -0x1.843e8ap-6f,
                                         0x1.d96418p-9f, -0x1.4a9d6cp-12f, 0x1.5ff41ep-17f);  // 2^-30
  const Reduced reduced = reduce(exponent);
  const float scale = power_of_two(uint32_t(reduced.n)), far = 1 - fma(expm1_reduced(reduced.r), scale, scale);
  return a < 0.9f ? near : with_sign(far, x);
}

// ---- Exponentials and logarithms in double precision, to 2^-45: subnormals of fp32 are ordinary numbers there.

struct Scaled {
  double expm1, scale;  // of the reduced argument; 2^n
};
constexpr double kFar = 300;  // e^x is 0 or inf in fp32 beyond, even after a division by the other
SPYRE_INLINE Scaled scaled(double x) {
  double kept = x > kFar ? kFar : x;
  kept = x < -kFar ? -kFar : kept;
  const double anchored = fma(kept, kLog2E, kWideAnchor), r = fma(anchored - kWideAnchor, -kLn2, kept);
  const double q =
      polynomial(r, 0x1.fffffffff122ap-2, 0x1.555555558a5cdp-3, 0x1.5555557e2b935p-5, 0x1.1111108d6aab9p-7,
                 0x1.6c163b62dd0f2p-10, 0x1.a01b74d8b66b1p-13, 0x1.a16edebb6865dp-16, 0x1.71013fe241435p-19);
  return {fma(r * r, q, r), double_of((bits_of(anchored) + 1023) << 52)};
}
SPYRE_INLINE double wide_exp(double x) {
  const Scaled e = scaled(x);
  const double value = fma(e.expm1, e.scale, e.scale);
  return x < -kFar ? 0 : x > kFar ? kWide : value;
}
SPYRE_INLINE double wide_expm1(double x) {
  const Scaled e = scaled(x);
  return fma(e.expm1, e.scale, e.scale - 1);
}

// log(x) is k ln2 + log(m) with m within sqrt(2) of 1; `less_one` is x - 1, which near 1 may be known better than x.
struct Logarithm {
  double k, log_m;
};
SPYRE_INLINE Logarithm logarithm(double x, double less_one) {
  constexpr uint64_t bias = uint64_t(1024) << 52, sqrt_half = 0x3fe6a09e667f3bcd, exponent = uint64_t(0xfff) << 52;
  const uint64_t raised = bits_of(x) - sqrt_half + bias;
  const double k = double_of(raised >> 52 | bits_of(0x1p52)) - (0x1p52 + 1024);
  const double m = double_of(bits_of(x) - ((raised & exponent) - bias));
  const double f = k == 0 ? less_one : m - 1, s = f / (2 + f), z = s * s;
  const double rest = polynomial(z, 0x1.5555555554b28p-1, 0x1.9999999eec1fap-2, 0x1.249243803f603p-2,
                                 0x1.c72175581d8fap-3, 0x1.7349c3cd66c04p-3, 0x1.57316cabf7899p-3);
  return {k, s * fma(z, rest, 2.0)};
}
SPYRE_INLINE double at_the_edges(double x, double log) {  // of the domain of a logarithm
  log = x == 0 ? -kWide : log;
  log = x == kWide ? kWide : log;
  return x >= 0 ? log : double(kNan);
}
SPYRE_INLINE double wide_log(double x) {
  const Logarithm l = logarithm(x, x - 1);
  return at_the_edges(x, fma(l.k, kLn2, l.log_m));
}
SPYRE_INLINE double wide_log1p(double x) {
  const Logarithm l = logarithm(1 + x, x);
  return at_the_edges(1 + x, fma(l.k, kLn2, l.log_m));
}

SPYRE_INLINE float exp2(float x) { return float(wide_exp(x * kLn2)); }
SPYRE_INLINE float expm1(float x) { return with_sign(float(wide_expm1(x)), x); }
SPYRE_INLINE float log(float x) { return float(wide_log(x)); }
SPYRE_INLINE float log2(float x) {
  const Logarithm l = logarithm(x, double(x) - 1);
  return float(at_the_edges(x, fma(l.log_m, kLog2E, l.k)));
}
SPYRE_INLINE float log10(float x) {
  const Logarithm l = logarithm(x, double(x) - 1);
  return float(at_the_edges(x, fma(l.k, 0x1.34413509f79ffp-2, l.log_m * 0x1.bcb7b1526e50ep-2)));
}
SPYRE_INLINE float log1p(float x) { return with_sign(float(wide_log1p(x)), x); }

// The special cases of C's powf.
SPYRE_INLINE float pow(float x, float y) {
  const double wide = y, half = wide / 2;
  const bool whole = __builtin_trunc(wide) == wide, odd = whole & (__builtin_trunc(half) != half);
  const double base = __builtin_fabs(double(x));
  const double value = wide_exp(wide * wide_log(base));
  double result = odd ? __builtin_copysign(value, double(x)) : value;
  result = (x < 0) & !whole & (base < kWide) ? double(kNan) : result;
  const bool one = (x == 1) | (y == 0) | ((x == -1) & (magnitude(y) == kInf));
  return float(one ? 1.0 : result);
}

SPYRE_INLINE float logit(float x) {  // log(x / (1 - x)); that the quotient less 1 is exact counts near 0.5
  const double wide = x, rest = 1 - wide, odds = wide / rest;
  const Logarithm l = logarithm(odds, (wide - rest) / rest);
  return x <= 1 ? float(at_the_edges(odds, fma(l.k, kLn2, l.log_m))) : kNan;
}

SPYRE_INLINE float sinh(float x) {
  const float a = magnitude(x);
  const double e = wide_expm1(a > 100 ? 100.0f : a);
  return with_sign(float(0.5 * (e + e / (e + 1))), x);
}
SPYRE_INLINE float cosh(float x) {
  const double e = wide_exp(x);
  return float(0.5 * (e + 1 / e));
}
SPYRE_INLINE float asinh(float x) {
  const double a = __builtin_fabs(double(x)), square = a * a;
  const float value = float(wide_log1p(a + square / (1 + ::sqrt(1 + square))));
  return magnitude(x) == kInf ? x : with_sign(value, x);
}
SPYRE_INLINE float acosh(float x) {
  const double t = double(x) - 1;
  const float value = float(wide_log1p(t + ::sqrt(t * (t + 2))));
  return x < 1 ? kNan : value;
}
SPYRE_INLINE float atanh(float x) {
  const double a = __builtin_fabs(double(x));
  return with_sign(float(0.5 * wide_log1p(2 * a / (1 - a))), x);
}
SPYRE_INLINE float softplus(float x, double beta, double threshold) {
  const double wide = double(float(beta));
  const float value = float(wide_log1p(wide_exp(x * wide)) / wide);
  return x * float(beta) > float(threshold) ? x : value;
}
SPYRE_INLINE float mish(float x) {  // tanh(log(1 + e)) is e (e + 2) / (e (e + 2) + 2)
  const double e = wide_exp(x > 50 ? 50.0f : x), w = e * (e + 2);
  return float(x * (w / (w + 2)));
}
SPYRE_INLINE float elu(float x, double alpha) {
  const double below = __builtin_copysign(wide_expm1(x), double(x)) * float(alpha);
  return x <= 0 ? float(below) : x;
}
// The normal distribution beyond a >= 0, over e^(-a^2 / 2): to 2^-33 below 14, where the rest underflows, and above.
SPYRE_INLINE double scaled_tail(double a) {
  const double y = 1 / (a + 5), q = fma(y, -10.0, 1.0);  // (a - 5) / (a + 5)
  return y * polynomial(q, 0x1.89d3abe1da5eep-1, -0x1.54ad03e9cb104p-1, 0x1.fb31655443608p-2, -0x1.410ed98d6cb67p-2,
                        0x1.51f62bfb2bd16p-3, -0x1.1b1b55991eb5bp-4, 0x1.54b80e6b757f9p-6, -0x1.88ee82df78cep-9,
                        -0x1.a531435789a98p-11, 0x1.230d9607226e2p-11, -0x1.67c4e6270bd05p-15, -0x1.ceb9b9206b8f4p-15);
}
SPYRE_INLINE double any_scaled_tail(double a) {
  const double inverse = 1 / a, z = inverse * inverse;
  const double far = inverse * 0x1.9884533d43651p-2 * polynomial(z, 1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0);
  return a > 14 ? far : scaled_tail(a);
}
SPYRE_INLINE double tail(double a) { return scaled_tail(a) * wide_exp(-0.5 * a * a); }
SPYRE_INLINE float erfc(float x) {
  const double upper = 2 * tail(kSqrt2 * __builtin_fabs(double(x)));
  return float(x < 0 ? 2 - upper : upper);
}
SPYRE_INLINE float gelu_none(float x) {
  const double upper = tail(__builtin_fabs(double(x)));
  return float(x * (x < 0 ? upper : 1 - upper));
}
// Where the terms cancel the error is 2^-45, not a unit of what is left.
SPYRE_INLINE double wide_logaddexp(double a, double b) {
  const double difference = a == b ? 0 : -__builtin_fabs(a - b);
  return (a > b ? a : b) + wide_log1p(wide_exp(difference));
}
SPYRE_INLINE float logaddexp(float a, float b) { return float(wide_logaddexp(a, b)); }

// ---- Trigonometry in double precision.

// x is quadrant * pi/2 + r with |r| <= pi/4; only the low two bits of the quadrant count.
struct Angle {
  double r;
  uint64_t quadrant;
};
constexpr float kHuge = 0x1p30f;
SPYRE_INLINE bool huge(float x) { return magnitude(x) >= kHuge; }
SPYRE_INLINE Angle angle(float x) {  // x is not huge
  const double anchored = fma(double(x), 0x1.45f306dc9c883p-1, kWideAnchor), n = anchored - kWideAnchor;
  return {fma(n, -0x1.1a62633145c07p-54, fma(n, -0x1.921fb54442d18p+0, double(x))), bits_of(anchored)};
}

// 2^e * 2/pi modulo 4 in three parts, for x = m * 2^e with an integer m of 24 bits. m times the first is exact.
struct Turns {
  static constexpr int kRows = 256 - 157, kParts = 3;  // from the exponent of kHuge to that of infinity
  double part[kParts][kRows] = {};
  constexpr Turns() {
    constexpr uint64_t two_over_pi[] = {0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561};
    constexpr int widths[kParts] = {28, 28, 53};
    for (int row = 0; row < kRows; ++row) {
      int bit = row + 5;  // the one worth 2 for e = row + 7
      double worth = 2;
      for (int p = 0; p < kParts; ++p)
        for (int i = 0; i < widths[p]; ++i, ++bit, worth /= 2)
          part[p][row] += two_over_pi[bit / 64] >> (63 - bit % 64) & 1 ? worth : 0;
    }
  }
};
constexpr Turns kTurns;

SPYRE_INLINE Angle any_angle(float x) {
  const uint32_t bits = bits_of(x), exponent = bits >> 23 & 0xff;
  const uint32_t row = exponent > 157 ? exponent - 157 : 0;
  const double m = with_sign(float((bits & 0x7fffff) | 0x800000), x);
  const double first = m * kTurns.part[0][row], second = m * kTurns.part[1][row];
  const double quarters = first - 4 * (fma(first, 0.25, kWideAnchor) - kWideAnchor);
  const double anchored = quarters + second + kWideAnchor;
  const double turn = fma(m, kTurns.part[2][row], quarters - (anchored - kWideAnchor) + second);
  const Angle near = angle(x);
  Angle far = {turn * 0x1.921fb54442d18p+0, bits_of(anchored)};
  far.r = exponent == 255 ? double(kNan) : far.r;
  return {huge(x) ? far.r : near.r, huge(x) ? far.quadrant : near.quadrant};
}

SPYRE_INLINE double sine(double r) {  // 2^-47
  const double z = r * r;
  return r * polynomial(z, 1.0, -0x1.555555555245p-3, 0x1.1111110ca4831p-7, -0x1.a019f95a10d4cp-13,
                        0x1.71d77b8bd1181p-19, -0x1.a9660eb506f29p-26);
}
SPYRE_INLINE double cosine(double r) {  // 2^-43
  return polynomial(r * r, 1.0, -0x1.ffffffffec1d6p-2, 0x1.55555546f9b4dp-5, -0x1.6c16b3fec4c6dp-10,
                    0x1.a00f0ed1b805ep-16, -0x1.23d7446753b05p-22);
}
SPYRE_INLINE float sine(Angle a, uint64_t quarters) {
  const uint64_t quadrant = a.quadrant + quarters;
  const double value = (quadrant & 1) == 0 ? sine(a.r) : cosine(a.r);
  return float(double_of(bits_of(value) ^ (quadrant & 2) << 62));
}
SPYRE_INLINE float tangent(Angle a) {
  const double s = sine(a.r), c = cosine(a.r);
  const bool swap = (a.quadrant & 1) != 0;
  return float((swap ? -c : s) / (swap ? s : c));
}
SPYRE_INLINE float sin_near(float x) { return sine(angle(x), 0); }
SPYRE_INLINE float cos_near(float x) { return sine(angle(x), 1); }
SPYRE_INLINE float tan_near(float x) { return tangent(angle(x)); }
SPYRE_INLINE float sin(float x) { return sine(any_angle(x), 0); }
SPYRE_INLINE float cos(float x) { return sine(any_angle(x), 1); }
SPYRE_INLINE float tan(float x) { return tangent(any_angle(x)); }

constexpr double kPi = 0x1.921fb54442d18p+1;
// asin(a), or where a is far from 0 asin(sqrt((1 - a) / 2)), which is (pi/2 - asin(a)) / 2.
SPYRE_INLINE double arc(double a, bool far) {
  const double z = far ? 0.5 * (1 - a) : a * a, t = ::sqrt(z);  // a * a is exact, and so is its root
  return t * polynomial(z, 1.0, 0x1.555555563f749p-3, 0x1.33333206d784cp-4, 0x1.6db75cfed37b8p-5, 0x1.f1ac12a08fb4ap-6,
                        0x1.701f85a1f34e5p-6, 0x1.0e454af58a742p-6, 0x1.301d08e94c56dp-6, -0x1.6435d1c38a3b3p-9,
                        0x1.04d2f7e15ceb2p-5);  // 2^-43
}
SPYRE_INLINE float asin(float x) {
  const double a = __builtin_fabs(double(x)), within = arc(a, a > 0.5);
  return with_sign(float(a > 0.5 ? kPi / 2 - 2 * within : within), x);
}
SPYRE_INLINE float acos(float x) {
  const double a = __builtin_fabs(double(x)), within = arc(a, a > 0.5);
  const double upper = a > 0.5 ? 2 * within : kPi / 2 - within;
  return float(x < 0 ? kPi - upper : upper);
}
SPYRE_INLINE float atan2(float y, float x) {
  const double a = __builtin_fabs(double(x)), b = __builtin_fabs(double(y));
  const bool steep = b > a;
  const double low = steep ? a : b, high = steep ? b : a, quotient = low / high;
  const double t = low == high ? (high == 0 ? 0.0 : 1.0) : quotient, z = t * t;
  const double within =
      t * polynomial(z, 1.0, -0x1.5555554f567b8p-2, 0x1.999995979362p-3, -0x1.2491d227c53f8p-3, 0x1.c70e869df783dp-4,
                     -0x1.73e14b76aa415p-4, 0x1.3846e4a215f18p-4, -0x1.05e23d7e21136p-4, 0x1.a1be534a13d6ap-5,
                     -0x1.26da5151daa2dp-5, 0x1.517b4371de115p-6, -0x1.1ad397403fcdap-7, 0x1.2d03c7047cbep-9,
                     -0x1.2ce6f4374aeeap-12);  // 2^-39
  const double quadrant = steep ? kPi / 2 - within : within;
  return with_sign(float(__builtin_copysign(1.0, double(x)) < 0 ? kPi - quadrant : quadrant), y);
}
SPYRE_INLINE float atan(float x) { return atan2(x, 1); }

// ---- Special functions in double precision.

SPYRE_INLINE float erfcx(float x) {
  const double near = 2 * any_scaled_tail(kSqrt2 * __builtin_fabs(double(x)));
  const double square = double(x) * double(x), mirrored = 2 * wide_exp(square) - near;
  return float(x < 0 ? mirrored : near);
}
SPYRE_INLINE float log_ndtr(float x) {
  const double a = __builtin_fabs(double(x)), below = fma(-0.5 * a, a, wide_log(any_scaled_tail(a)));
  const double value = x < 0 ? below : wide_log1p(-tail(a > 30 ? 30.0 : a));
  return x == -kInf ? -kInf : with_sign(float(value), -1);  // never above -0
}
// x times a polynomial of w = -log(1 - x^2), or far out of its root.
SPYRE_INLINE float erfinv(float x) {
  const double wide = x, w = -wide_log1p(-wide * wide), s = ::sqrt(w) - 3.125;
  const double near =
      polynomial(w - 2.5, 0x1.805c5cfcedef5p+0, 0x1.f91e89955a57fp-3, -0x1.11c3c3612a2ccp-8, -0x1.4863d1009b540p-10,
                 0x1.c9b46cd91df7ap-13, -0x1.4f4496f9c1788p-18, -0x1.caa32f746fad4p-19, 0x1.00f8719914c4ap-21,
                 0x1.d66fac2d14be4p-27, -0x1.74f4495a187ccp-27, 0x1.c9c81e3c5b325p-31, 0x1.0e8b1b9516a51p-33,
                 -0x1.75045e36fd876p-36);  // 2^-33
  const double far =
      polynomial(s, 0x1.7aaa3c1431562p+1, 0x1.00f3b54bd2d55p+0, 0x1.cde3e1c038963p-8, -0x1.5b6842a1139e7p-8,
                 0x1.f1575ee29f59fp-9, -0x1.4a4705efea192p-9, 0x1.4a7ebecbcba2fp-10, -0x1.591ea71e76f0cp-12,
                 -0x1.789fa23d84d0dp-14, 0x1.20d398293e4c5p-13, -0x1.eb9d11964eec8p-15, -0x1.71eae49195a2cp-21,
                 0x1.8a0fea67632e2p-17, -0x1.fb144a616e71ep-19);  // 2^-35
  const double value = wide * (w < 5 ? near : far);
  return magnitude(x) == 1 ? with_sign(kInf, x) : with_sign(float(value), x);
}

// sin and cos of pi x, for x < 0; what matters is how far it is from a whole number, which is exact.
struct HalfTurn {
  double sine, cosine;
};
SPYRE_INLINE HalfTurn half_turn(double x) {
  const double rest = x - __builtin_rint(x), a = __builtin_fabs(rest);
  const bool far = a > 0.25;
  const double r = kPi * (far ? 0.5 - a : a), s = sine(r), c = cosine(r);
  return {far ? c : s, rest < 0 ? -(far ? s : c) : far ? s : c};
}
SPYRE_INLINE double stirling(double x, double log) {  // log of gamma(x), x >= 8
  const double y = 1 / x;
  const double rest = polynomial(y * y, 0x1.5555555555477p-4, -0x1.6c16c15665122p-9, 0x1.a0195329980e1p-11,
                                 -0x1.3797f4ede7e45p-11, 0x1.9517858f10f00p-11);  // 2^-44
  return fma(x - 0.5, log, 0x1.d67f1c864beb5p-1 - x) + rest * y;
}
// Below 3 the argument is moved to [1, 2], between the two zeros; from there to 8 it is moved beyond.
SPYRE_INLINE double wide_lgamma(double x) {
  const bool low = x < 3, shifted = x < 8;
  const double t = x < 1 ? x + 1 : x > 2 ? x - 1 : x;
  const double near =
      (t - 1) * (t - 2) *
      polynomial(t - 1.5, 0x1.eeb95b09510ffp-2, -0x1.2aed059bdc482p-3, 0x1.01af628432734p-4, -0x1.007aa816b30f6p-5,
                 0x1.1334418a4252dp-6, -0x1.34dc001c7b8b9p-7, 0x1.64e52f5147cc2p-8, -0x1.a4f53522da043p-9,
                 0x1.fa0c271c081adp-10, -0x1.327b472d85356p-10, 0x1.5eb6b70fde261p-11, -0x1.af2dfa0564697p-12,
                 0x1.95ba3c341cf1ep-12, -0x1.fab4174ab7e71p-13);  // 2^-38
  const double moved = shifted ? x + 5 : x;
  const double first = wide_log(!low ? moved : x < 1 ? x : x > 2 ? x - 1 : 1.0);
  const double product = x * (x + 1) * (x + 2) * (x + 3) * (x + 4);
  const double far = stirling(moved, first) - (shifted ? wide_log(product) : 0.0);
  return low ? near + (x < 1 ? -first : first) : far;
}
SPYRE_INLINE float lgamma(float x) {
  const double a = __builtin_fabs(double(x)), value = wide_lgamma(a);
  const double s = half_turn(x).sine;
  const double mirrored = wide_log(kPi / (a * s)) - value;
  const bool pole = (x <= 0) & (__builtin_rintf(x) == x);
  return pole | (a == kWide) ? kInf : float(x < 0 ? mirrored : value);
}
SPYRE_INLINE float digamma(float x) {
  const double wide = x, a = x < 0 ? 1 - wide : wide, moved = a < 8 ? a + 8 : a, y = 1 / moved;
  const double rest = y * y *
                      polynomial(y * y, 0x1.5555555554c01p-4, -0x1.111110d6afc2dp-7, 0x1.040f560d6d7afp-8,
                                 -0x1.106a54cf67405p-8, 0x1.bf5de4e894e91p-8);  // 2^-41
  // 1/a + ... + 1/(a + 7), two at a time.
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += (2 * a + 7) / ((a + i) * (a + 7 - i));
  const double value = wide_log(moved) - 0.5 * y - rest - (a < 8 ? sum : 0.0);
  const HalfTurn turn = half_turn(wide);
  const double mirrored = value - kPi * turn.cosine / turn.sine * (__builtin_rint(wide) == wide ? double(kNan) : 1.0);
  const float result = float(x < 0 ? mirrored : value);
  return x == 0 ? with_sign(kInf, -x) : x == kInf ? kInf : result;
}

// Bessel functions: a polynomial of the square up to 8, beyond e^x / sqrt(x) times one of 8 / x.
SPYRE_INLINE double i0_near(double z) {  // 2^-37
  return polynomial(z, 0x1.000000000671cp+0, 0x1.fffffffeefc8dp-3, 0x1.000000076f576p-6, 0x1.c71c7123e326bp-12,
                    0x1.c71c790a8b92cp-18, 0x1.2345365ed7919p-24, 0x1.02ea06747420cp-31, 0x1.5216f4b9d7d37p-39,
                    0x1.52c2e759c7227p-47, 0x1.07f989bbe74f1p-55, 0x1.6d39d7902e99bp-64, 0x1.ff5f71023dde2p-74,
                    0x1.2772a5231d6f6p-81);
}
SPYRE_INLINE double i1_near(double z) {  // over x; 2^-35
  return polynomial(z, 0x1.ffffffffd638ep-2, 0x1.00000002efc9ap-4, 0x1.5555550f717a7p-9, 0x1.c71c76dc3cb7bp-15,
                    0x1.6c16909d0c135p-21, 0x1.845eb21d0b466p-28, 0x1.27d58edd575fep-35, 0x1.52baffe65364ap-43,
                    0x1.291241e309bb4p-51, 0x1.c830370b9fc2dp-60, 0x1.5ffa5ba179b0dp-69, 0x1.bb5e9645db2e2p-77);
}
SPYRE_INLINE double i0_far(double a) {  // over e^a; 2^-34
  return polynomial(8 / a, 0x1.9884533d6a692p-2, 0x1.98844ba78cb03p-8, 0x1.cba423fc494d9p-12, 0x1.d8e429bfa941bp-15,
                    0x1.fbe79148ba14ap-17, -0x1.7e095ae8c56a3p-17, 0x1.dc6a1f4b3d709p-16, -0x1.fbde92b678fc1p-16,
                    0x1.2c17177c7c34ap-16, -0x1.0549af0deb682p-18) /
         ::sqrt(a);
}
SPYRE_INLINE double i1_far(double a) {  // 2^-34
  return polynomial(8 / a, 0x1.9884533d1a5dep-2, -0x1.32633c6f84b92p-6, -0x1.7f04153fb4d90p-11, -0x1.4c0b530b1c209p-14,
                    -0x1.35d0ccfb204bep-16, 0x1.8042e379be2b3p-17, -0x1.f45651d641911p-16, 0x1.088d008004e82p-15,
                    -0x1.37c1c1f8582fap-16, 0x1.0c324b2b14e6cp-18) /
         ::sqrt(a);
}
SPYRE_INLINE double at_most_far(float x) {
  const double a = __builtin_fabs(double(x));
  return a > kFar ? kFar : a;
}
SPYRE_INLINE float i0(float x) {
  const double a = at_most_far(x);
  return float(a > 8 ? i0_far(a) * wide_exp(a) : i0_near(a * a));
}
SPYRE_INLINE float i0e(float x) {
  const double a = __builtin_fabs(double(x));
  return float(a > 8 ? i0_far(a) : i0_near(a * a) * wide_exp(-a));
}
SPYRE_INLINE float i1(float x) {
  const double a = at_most_far(x);
  return with_sign(float(a > 8 ? i1_far(a) * wide_exp(a) : a * i1_near(a * a)), x);
}
SPYRE_INLINE float i1e(float x) {
  const double a = __builtin_fabs(double(x));
  return with_sign(float(a > 8 ? i1_far(a) : a * i1_near(a * a) * wide_exp(-a)), x);
}

// ---- Division with remainder. The quotient is exact in double precision where it is below 2^52; a larger one, met
// only with divisors that are next to nothing, goes through the C library, which is exact as well.

SPYRE_INLINE bool lopsided(float x, float y) { return magnitude(x) >= magnitude(y) * 0x1p52f; }
SPYRE_INLINE float fmod_near(float x, float y) {
  const double a = __builtin_fabs(double(x)), b = __builtin_fabs(double(y));
  double rest = fma(-__builtin_trunc(a / b), b, a);
  rest = rest < 0 ? rest + b : rest;  // the quotient was rounded up to a whole number
  rest = (b == kWide) & (a < kWide) ? a : rest;
  return with_sign(float(rest), x);
}
SPYRE_INLINE float fmod(float x, float y) { return __builtin_fmodf(x, y); }
SPYRE_INLINE float remainder_of(float mod, float y) { return (mod != 0) & ((y < 0) != (mod < 0)) ? mod + y : mod; }
SPYRE_INLINE float remainder_near(float x, float y) { return remainder_of(fmod_near(x, y), y); }
SPYRE_INLINE float remainder(float x, float y) { return remainder_of(fmod(x, y), y); }
SPYRE_INLINE float floor_quotient(float x, float y, float mod) {
  float quotient = (x - mod) / y;
  quotient = (mod != 0) & ((y < 0) != (mod < 0)) ? quotient - 1 : quotient;
  const float down = __builtin_floorf(quotient), whole = quotient - down > 0.5f ? down + 1 : down;
  const float result = quotient != 0 ? whole : with_sign(0, x / y);
  return y == 0 ? x / y : result;
}
SPYRE_INLINE float floor_divide_near(float x, float y) { return floor_quotient(x, y, fmod_near(x, y)); }
SPYRE_INLINE float floor_divide(float x, float y) { return floor_quotient(x, y, fmod(x, y)); }

// ---- The rest of the reals.

SPYRE_INLINE float add(float a, float b) { return a + b; }
SPYRE_INLINE float sub(float a, float b) { return a - b; }
SPYRE_INLINE float mul(float a, float b) { return a * b; }
SPYRE_INLINE float div(float a, float b) { return a / b; }
SPYRE_INLINE float fused(float a, float b, float c) { return fma(a, b, c); }
SPYRE_INLINE float lerp(float a, float b, float w) {
  const bool small = magnitude(w) < 0.5f;
  return fma(small ? w : w - 1, b - a, small ? a : b);
}
SPYRE_INLINE float neg(float x) { return -x; }
SPYRE_INLINE float square(float x) { return x * x; }
SPYRE_INLINE float reciprocal(float x) { return 1 / x; }
SPYRE_INLINE float sqrt(float x) { return ::sqrtf(x); }
SPYRE_INLINE float rsqrt(float x) { return 1 / ::sqrtf(x); }
SPYRE_INLINE float hypot(float x, float y) {
  const double a = x, b = y;
  const float value = float(::sqrt(a * a + b * b));
  return (magnitude(x) == kInf) | (magnitude(y) == kInf) ? kInf : value;
}
SPYRE_INLINE float floor(float x) { return __builtin_floorf(x); }
SPYRE_INLINE float ceil(float x) { return __builtin_ceilf(x); }
SPYRE_INLINE float trunc(float x) { return __builtin_truncf(x); }
SPYRE_INLINE float round(float x) { return __builtin_rintf(x); }
SPYRE_INLINE float frac(float x) { return x - __builtin_truncf(x); }
SPYRE_INLINE float sign(float x) { return truth(x > 0) - truth(x < 0); }

SPYRE_INLINE float relu(float x) { return x < 0 ? 0 : x; }
SPYRE_INLINE float clamp(float x, double low, double high) {
  x = x < float(low) ? float(low) : x;
  return x > float(high) ? float(high) : x;
}
SPYRE_INLINE float hardsigmoid(float x) { return clamp(x + 3, 0, 6) / 6; }
SPYRE_INLINE float hardswish(float x) { return x * hardsigmoid(x); }
SPYRE_INLINE float leaky_relu(float x, double slope) { return x > 0 ? x : x * float(slope); }
SPYRE_INLINE float nan_to_num(float x, double nan, double above, double below) {
  float result = x == kInf ? float(above) : x;
  result = x == -kInf ? float(below) : result;
  return x != x ? float(nan) : result;
}
SPYRE_INLINE float fmax(float a, float b) { return (b > a) | (a != a) ? b : a; }
SPYRE_INLINE float fmin(float a, float b) { return (b < a) | (a != a) ? b : a; }
SPYRE_INLINE float isnan(float x) { return truth(x != x); }
SPYRE_INLINE float isinf(float x) { return truth(magnitude(x) == kInf); }
SPYRE_INLINE float isfinite(float x) { return truth(magnitude(x) < kInf); }

// ---- Both domains.

template <class T>
SPYRE_INLINE T maximum(T a, T b) {
  return (a > b) | (a != a) ? a : b;
}
template <class T>
SPYRE_INLINE T minimum(T a, T b) {
  return (a < b) | (a != a) ? a : b;
}
template <class T>
SPYRE_INLINE float eq(T a, T b) {
  return truth(a == b);
}
template <class T>
SPYRE_INLINE float ne(T a, T b) {
  return truth(a != b);
}
template <class T>
SPYRE_INLINE float lt(T a, T b) {
  return truth(a < b);
}
template <class T>
SPYRE_INLINE float le(T a, T b) {
  return truth(a <= b);
}
template <class T>
SPYRE_INLINE float gt(T a, T b) {
  return truth(a > b);
}
template <class T>
SPYRE_INLINE float ge(T a, T b) {
  return truth(a >= b);
}
template <class T>
SPYRE_INLINE float logical_and(T a, T b) {
  return truth((a != 0) & (b != 0));
}
template <class T>
SPYRE_INLINE float logical_or(T a, T b) {
  return truth((a != 0) | (b != 0));
}
template <class T>
SPYRE_INLINE float logical_xor(T a, T b) {
  return truth((a != 0) != (b != 0));
}
template <class T>
SPYRE_INLINE float logical_not(T x) {
  return truth(x == 0);
}
template <class T>
SPYRE_INLINE T copy(T x) {
  return x;
}
template <class T>
SPYRE_INLINE T where(float condition, T a, T b) {
  return condition != 0 ? a : b;
}

// ---- Integers.

using Integer = int64_t;
using Bits = uint64_t;  // wraps where Integer would overflow

namespace integer {

SPYRE_INLINE Integer add(Integer a, Integer b) { return Integer(Bits(a) + Bits(b)); }
SPYRE_INLINE Integer sub(Integer a, Integer b) { return Integer(Bits(a) - Bits(b)); }
SPYRE_INLINE Integer mul(Integer a, Integer b) { return Integer(Bits(a) * Bits(b)); }
SPYRE_INLINE Integer neg(Integer x) { return Integer(-Bits(x)); }
SPYRE_INLINE Integer magnitude(Integer x) { return x < 0 ? neg(x) : x; }
SPYRE_INLINE Integer square(Integer x) { return mul(x, x); }
SPYRE_INLINE Integer sign(Integer x) { return Integer(x > 0) - Integer(x < 0); }
SPYRE_INLINE Integer trunc_divide(Integer a, Integer b) {
  const Integer safe = (b == 0) | (b == -1) ? 1 : b, quotient = a / safe;
  return b == 0 ? 0 : b == -1 ? neg(a) : quotient;
}
SPYRE_INLINE Integer fmod(Integer a, Integer b) { return a % ((b == 0) | (b == -1) ? 1 : b); }
SPYRE_INLINE bool opposite(Integer rest, Integer b) { return (rest != 0) & ((rest < 0) != (b < 0)); }
SPYRE_INLINE Integer remainder(Integer a, Integer b) {
  const Integer rest = fmod(a, b);
  return opposite(rest, b) ? rest + b : rest;
}
SPYRE_INLINE Integer floor_divide(Integer a, Integer b) {
  return trunc_divide(a, b) - Integer(opposite(fmod(a, b), b));
}
// Below an exponent of 0 what is left of 1 / a, cut to an integer.
SPYRE_INLINE Integer pow(Integer a, Integer exponent) {
  Bits power = 1, square = Bits(a);
  for (Bits rest = exponent < 0 ? 0 : Bits(exponent); rest != 0; rest >>= 1, square *= square)
    power = rest & 1 ? power * square : power;
  const Integer inverse = a == 1 ? 1 : a == -1 ? ((exponent & 1) != 0 ? -1 : 1) : 0;
  return exponent < 0 ? inverse : Integer(power);
}
SPYRE_INLINE Integer gcd(Integer a, Integer b) {
  Bits x = Bits(magnitude(a)), y = Bits(magnitude(b));
  while (y != 0) {
    const Bits rest = x % y;
    x = y;
    y = rest;
  }
  return Integer(x);
}
SPYRE_INLINE Integer saturated(double x) { return x >= 0x1p63 ? INT64_MAX : x > -0x1p63 ? Integer(x) : INT64_MIN; }
SPYRE_INLINE Integer clamp(Integer x, double low, double high) {
  x = x < saturated(low) ? saturated(low) : x;
  return x > saturated(high) ? saturated(high) : x;
}
SPYRE_INLINE Integer bitwise_and(Integer a, Integer b) { return a & b; }
SPYRE_INLINE Integer bitwise_or(Integer a, Integer b) { return a | b; }
SPYRE_INLINE Integer bitwise_xor(Integer a, Integer b) { return a ^ b; }
SPYRE_INLINE Integer bitwise_not(Integer x) { return ~x; }
SPYRE_INLINE Integer shift_left(Integer x, Integer by) { return Bits(by) > 63 ? 0 : Integer(Bits(x) << (by & 63)); }
SPYRE_INLINE Integer shift_right(Integer x, Integer by) { return x >> (Bits(by) > 63 ? 63 : by); }
}  // namespace integer

// To int64, of which the card keeps 32 bits: saturated, NaN is the least.
SPYRE_INLINE Integer to_integer(float x) {
  const bool fits = (x >= -0x1p31f) & (x < 0x1p31f);
  return x >= 0x1p31f ? INT32_MAX : int32_t(fits ? x : -0x1p31f);
}
// What 32 bits cannot hold is their least number, as on x86; narrower types keep its low bits.
SPYRE_INLINE Integer to_int32(float x) {
  const bool fits = (x >= -0x1p31f) & (x < 0x1p31f);
  return int32_t(fits ? x : -0x1p31f);
}
SPYRE_INLINE float to_real(Integer x) { return float(x); }

}  // namespace spyre::math
#pragma GCC pop_options
