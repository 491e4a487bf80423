// Tile operations against the C library in double precision, and against each other on every instruction set this
// machine has.
#include "card/numeric/tile_ops.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "card/error.h"
#include "card/numeric/formats.h"
#include "card/numeric/simd.h"
#include "testing.h"

namespace spyre::detail {  // of tile_ops.cpp
std::span<const TileOp> tile_ops(const char* simd);
std::span<const TileOp> short_ops(const char* simd);
void round_to_sen169(const char* simd, float* values, size_t n);
}  // namespace spyre::detail

using namespace spyre;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLeast = INT64_MIN, kMost = INT64_MAX;

std::vector<const char*> levels() {  // portable first
  std::vector<const char*> usable;
  for (const char* level : {"portable", "avx2", "avx512"})
    if (!detail::tile_ops(level).empty()) usable.push_back(level);
  return usable;
}
const TileOp& op_of(const char* level, const std::string& name, Domain in) {
  for (const TileOp& op : detail::tile_ops(level))
    if (op.in == in && op.name == name) return op;
  throw Error("no op " + name);
}

// How far a result is from the exact value, in units of the last place of fp32. A zero has to have the right sign.
double units_off(float seen, double wanted) {
  if (std::isnan(wanted)) return std::bit_cast<uint32_t>(seen) == 0x7fc00000 ? 0 : kInfinity;
  if (std::isnan(seen) || (seen == 0 && std::signbit(seen) != std::signbit(wanted))) return kInfinity;
  if (seen == wanted) return 0;
  if (std::isinf(wanted)) return kInfinity;
  const double value = std::isinf(seen) ? std::copysign(0x1p128, seen) : seen;
  if (std::isinf(seen) && std::fabs(wanted) >= 0x1p128 && std::signbit(seen) == std::signbit(wanted)) return 0;
  const int exponent = wanted == 0 ? -126 : std::clamp(std::ilogb(wanted), -126, 127);
  return std::fabs(value - wanted) / std::ldexp(1, exponent - 23);
}

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double sign(double x) { return (x > 0) - (x < 0); }
double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
double python_remainder(double x, double y) {
  const double mod = std::fmod(x, y);
  return mod != 0 && (y < 0) != (mod < 0) ? mod + y : mod;
}
// PyTorch's definition, in fp32.
double floor_divide(double x, double y) {
  const float a = float(x), b = float(y);
  if (b == 0) return a / b;
  const float mod = std::fmod(a, b);
  float quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0f, a / b);
  const float down = std::floor(quotient);
  return quotient - down > 0.5f ? down + 1 : down;
}
double logaddexp(double a, double b) {
  if (a == b) return a + std::log(2.0);
  return std::max(a, b) + (std::isnan(a) || std::isnan(b) ? kNotANumber : std::log1p(std::exp(-std::fabs(a - b))));
}
double maximum(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : a > b ? a : b; }
double minimum(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b; }

// Special functions that the C library lacks, in long doubles, by series and fractions that converge everywhere.
using Long = long double;
Long scaled_erfc(Long x) {  // e^(x^2) erfc(x), x >= 0
  if (x < 6) return std::exp(x * x) * std::erfc(x);
  Long fraction = 0;
  for (int i = 60; i > 0; --i) fraction = i / Long(2) / (x + fraction);
  return 1 / (x + fraction) / std::sqrt(Long(M_PIl));
}
double erfcx(double x) { return double(x < 0 ? 2 * std::exp(Long(x) * x) - scaled_erfc(-x) : scaled_erfc(x)); }
double log_ndtr(double x) {
  if (x > 0) return double(std::log1p(-std::erfc(Long(x) / M_SQRT2l) / 2));
  return double(std::isinf(x) ? x : std::log(scaled_erfc(-Long(x) / M_SQRT2l) / 2) - Long(x) * x / 2);
}
double erfinv(double x) {
  if (!(std::fabs(x) < 1)) return std::fabs(x) == 1 ? std::copysign(kInfinity, x) : kNotANumber;
  const Long a = std::fabs(Long(x)), rest = 1 - a;
  Long low = 0, high = 7;
  for (int i = 0; i < 80; ++i) {
    const Long middle = (low + high) / 2;
    ((a < 0.5 ? std::erf(middle) < a : std::erfc(middle) > rest) ? low : high) = middle;
  }
  return std::copysign(a < 1e-4 ? double(a * std::sqrt(Long(M_PIl)) / 2 * (1 + M_PIl * a * a / 12)) : double(low), x);
}
double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  if (x < 0) {
    const Long rest = Long(x) - std::rint(Long(x));
    return rest == 0 ? kNotANumber : double(Long(digamma(1 - x)) - M_PIl / std::tan(M_PIl * rest));
  }
  Long sum = 0, at = x;
  for (; at < 30; at += 1) sum -= 1 / at;
  const Long z = 1 / (at * at);
  return double(sum + std::log(at) - 1 / (2 * at) -
                z * (1 / 12.0L - z * (1 / 120.0L - z * (1 / 252.0L - z * (1 / 240.0L - z / 132.0L)))));
}
double scaled_bessel_i(int order, double x) {
  const Long a = std::fabs(Long(x)), sign = order == 1 && std::signbit(x) ? -1 : 1;
  if (std::isinf(x)) return std::copysign(0.0, double(sign));
  Long term = std::exp(-a), sum = 0;
  if (a < 60) {
    term *= order ? a / 2 : 1;
    for (int k = 1; k < 300; ++k) sum += term, term *= a * a / 4 / k / (k + order);
  } else {  // the asymptotic series
    term = 1 / std::sqrt(2 * M_PIl * a);
    for (int k = 1; k < 40; ++k) sum += term, term *= -(4 * order - Long(2 * k - 1) * (2 * k - 1)) / (8 * a * k);
  }
  return double(sign * sum);
}
double bessel_i(int order, double x) {
  const Long a = std::fabs(Long(x)), grown = a > 300 ? Long(kInfinity) : std::exp(a);
  return a > 300 ? (order ? std::copysign(kInfinity, x) : kInfinity) : double(scaled_bessel_i(order, x) * grown);
}

// Half a unit is the rounding of the result, all there is to exact ops and nearly all to those in double precision.
constexpr double kRounded = 0.5, kNearly = 0.502;

struct Unary {
  const char* name;
  double units;
  double (*oracle)(double x);
  std::vector<double> constants = {};
};
const std::vector<Unary>& unary() {
  using D = double;
  static const std::vector<Unary> ops = {
      {"neg", kRounded, [](D x) { return -x; }},
      {"abs", kRounded, [](D x) { return std::fabs(x); }},
      {"reciprocal", kRounded, [](D x) { return 1 / x; }},
      {"sqrt", kRounded, [](D x) { return std::sqrt(x); }},
      {"rsqrt", 1.5, [](D x) { return 1 / std::sqrt(x); }},
      {"square", kRounded, [](D x) { return x * x; }},
      {"exp", 1.1, [](D x) { return std::exp(x); }},
      {"exp2", kNearly, [](D x) { return std::exp2(x); }},
      {"expm1", kNearly, [](D x) { return std::expm1(x); }},
      {"log", kNearly, [](D x) { return std::log(x); }},
      {"log2", kNearly, [](D x) { return std::log2(x); }},
      {"log10", kNearly, [](D x) { return std::log10(x); }},
      {"log1p", kNearly, [](D x) { return std::log1p(x); }},
      {"sin", kNearly, [](D x) { return std::sin(x); }},
      {"cos", kNearly, [](D x) { return std::cos(x); }},
      {"tan", kNearly, [](D x) { return std::tan(x); }},
      {"asin", kNearly, [](D x) { return std::asin(x); }},
      {"acos", kNearly, [](D x) { return std::acos(x); }},
      {"atan", kNearly, [](D x) { return std::atan(x); }},
      {"sinh", kNearly, [](D x) { return std::sinh(x); }},
      {"cosh", kNearly, [](D x) { return std::cosh(x); }},
      {"tanh", 2.7, [](D x) { return std::tanh(x); }},
      {"asinh", kNearly, [](D x) { return std::asinh(x); }},
      {"acosh", kNearly, [](D x) { return std::acosh(x); }},
      {"atanh", kNearly, [](D x) { return std::atanh(x); }},
      {"erf", 1.2, [](D x) { return std::erf(x); }},
      {"erfc", kNearly, [](D x) { return std::erfc(x); }},
      {"logit", kNearly, [](D x) { return x > 0.25 && x < 0.75 ? 2 * std::atanh(2 * x - 1) : std::log(x / (1 - x)); }},
      {"erfcx", kNearly, erfcx},
      {"erfinv", kNearly, erfinv},
      {"log_ndtr", kNearly, log_ndtr},
      {"lgamma", 1, [](D x) { return std::lgamma(x); }},
      {"digamma", 1, digamma},
      {"i0", kNearly, [](D x) { return bessel_i(0, x); }},
      {"i0e", kNearly, [](D x) { return scaled_bessel_i(0, x); }},
      {"i1", kNearly, [](D x) { return bessel_i(1, x); }},
      {"i1e", kNearly, [](D x) { return scaled_bessel_i(1, x); }},
      {"sigmoid", 2.6, [](D x) { return sigmoid(x); }},
      {"silu", 2.5, [](D x) { return x * sigmoid(x); }},
      {"gelu_none", kNearly, [](D x) { return x * (0.5 * std::erfc(-x * std::sqrt(0.5))); }},
      {"gelu_tanh", 2.5, [](D x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }},
      {"softplus", kNearly, [](D x) { return x * 2 > 20 ? x : std::log1p(std::exp(x * 2)) / 2; }, {2, 20}},
      {"mish", kNearly,
       [](D x) {
         const D e = std::exp(std::min(x, 50.0)), w = e * (e + 2);
         return std::isnan(x) ? x : x * (w / (w + 2));
       }},
      {"elu", kNearly, [](D x) { return x <= 0 ? 1.5 * std::expm1(x) : x; }, {1.5}},
      {"leaky_relu", kRounded, [](D x) { return x > 0 ? x : x * D(0.01f); }, {0.01}},
      {"hardsigmoid", 1, [](D x) { return clamp(D(float(x) + 3), 0, 6) / 6; }},
      {"hardswish", 2, [](D x) { return x * (clamp(D(float(x) + 3), 0, 6) / 6); }},
      {"hardtanh", kRounded, [](D x) { return clamp(x, -2, 3); }, {-2, 3}},
      {"clamp", kRounded, [](D x) { return clamp(x, -kInfinity, 3); }, {-kInfinity, 3}},
      {"clamp", kRounded, [](D x) { return std::isnan(x) ? x : 1; }, {2, 1}},
      {"relu", kRounded, [](D x) { return x < 0 ? 0 : x; }},
      {"floor", kRounded, [](D x) { return std::floor(x); }},
      {"ceil", kRounded, [](D x) { return std::ceil(x); }},
      {"round", kRounded, [](D x) { return std::nearbyint(x); }},
      {"trunc", kRounded, [](D x) { return std::trunc(x); }},
      {"frac", kRounded, [](D x) { return x - std::trunc(x); }},
      {"sign", kRounded, [](D x) { return sign(x); }},
      {"logical_not", kRounded, [](D x) { return D(x == 0); }},
      {"isnan", kRounded, [](D x) { return D(std::isnan(x)); }},
      {"isinf", kRounded, [](D x) { return D(std::isinf(x)); }},
      {"isfinite", kRounded, [](D x) { return D(std::isfinite(x)); }},
      {"copy", kRounded, [](D x) { return x; }},
      {"nan_to_num",
       kRounded,
       [](D x) { return std::isnan(x)   ? 0.5
                        : std::isinf(x) ? std::copysign(7, x)
                                        : x; },
       {0.5, 7, -7}},
  };
  return ops;
}

struct Binary {
  const char* name;
  double units;
  double (*oracle)(double a, double b);
};
const std::vector<Binary>& binary() {
  using D = double;
  static const std::vector<Binary> ops = {
      {"add", kRounded, [](D a, D b) { return a + b; }},
      {"sub", kRounded, [](D a, D b) { return a - b; }},
      {"mul", kRounded, [](D a, D b) { return a * b; }},
      {"div", kRounded, [](D a, D b) { return a / b; }},
      {"pow", kNearly, [](D a, D b) { return std::pow(a, b); }},
      {"atan2", kNearly, [](D a, D b) { return std::atan2(a, b); }},
      {"hypot", kNearly, [](D a, D b) { return std::hypot(a, b); }},
      {"logaddexp", kNearly, logaddexp},
      {"fmod", kRounded, [](D a, D b) { return std::fmod(a, b); }},
      {"remainder", kRounded, python_remainder},
      {"floor_divide", kRounded, floor_divide},
      {"maximum", kRounded, maximum},
      {"minimum", kRounded, minimum},
      {"fmax", kRounded, [](D a, D b) { return std::isnan(a) || b > a ? b : a; }},
      {"fmin", kRounded, [](D a, D b) { return std::isnan(a) || b < a ? b : a; }},
      {"copysign", kRounded, [](D a, D b) { return std::copysign(a, b); }},
      {"eq", kRounded, [](D a, D b) { return D(a == b); }},
      {"ne", kRounded, [](D a, D b) { return D(a != b); }},
      {"lt", kRounded, [](D a, D b) { return D(a < b); }},
      {"le", kRounded, [](D a, D b) { return D(a <= b); }},
      {"gt", kRounded, [](D a, D b) { return D(a > b); }},
      {"ge", kRounded, [](D a, D b) { return D(a >= b); }},
      {"logical_and", kRounded, [](D a, D b) { return D(a && b); }},
      {"logical_or", kRounded, [](D a, D b) { return D(a || b); }},
      {"logical_xor", kRounded, [](D a, D b) { return D(!a != !b); }},
  };
  return ops;
}

struct Ternary {
  const char* name;
  double (*oracle)(double a, double b, double c);
};
const std::vector<Ternary>& ternary() {
  using D = double;
  static const std::vector<Ternary> ops = {
      {"fma", [](D a, D b, D c) { return D(std::fmaf(float(a), float(b), float(c))); }},
      {"lerp",
       [](D a, D b, D w) {
         const float difference = float(b) - float(a), weight = float(w);
         return D(std::fabs(weight) < 0.5f ? std::fmaf(weight, difference, float(a))
                                           : std::fmaf(weight - 1, difference, float(b)));
       }},
      {"where", [](D a, D b, D c) { return a != 0 ? b : c; }},
  };
  return ops;
}

// Integers, in 128 bits; the low 64 are the result.
using Wide = __int128;
struct OnIntegers {
  const char* name;
  Wide (*oracle)(Wide a, Wide b);
  std::vector<double> constants = {};
};
Wide quotient_down(Wide a, Wide b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); }
// Modulo 2^64, which is all that is kept.
Wide integer_power(Wide a, Wide exponent) {
  if (exponent < 0) return a == 1 ? 1 : a != -1 ? 0 : exponent % 2 == 0 ? 1 : -1;
  uint64_t power = 1;
  for (int bit = 62; bit >= 0; --bit) {
    power *= power;
    if (exponent >> bit & 1) power *= uint64_t(a);
  }
  return Wide(power);
}
Wide common_divisor(Wide a, Wide b) { return b == 0 ? a < 0 ? -a : a : common_divisor(b, a % b); }
const std::vector<OnIntegers>& on_integers() {
  static const std::vector<OnIntegers> ops = {
      {"add", [](Wide a, Wide b) { return a + b; }},
      {"sub", [](Wide a, Wide b) { return a - b; }},
      {"mul", [](Wide a, Wide b) { return a * b; }},
      {"neg", [](Wide a, Wide) { return -a; }},
      {"abs", [](Wide a, Wide) { return a < 0 ? -a : a; }},
      {"square", [](Wide a, Wide) { return a * a; }},
      {"sign", [](Wide a, Wide) { return Wide(a > 0) - Wide(a < 0); }},
      {"floor_divide", quotient_down},
      {"trunc_divide", [](Wide a, Wide b) { return b == 0 ? 0 : a / b; }},
      {"remainder", [](Wide a, Wide b) { return b == 0 ? 0 : a - b * quotient_down(a, b); }},
      {"fmod", [](Wide a, Wide b) { return b == 0 ? 0 : a % b; }},
      {"pow", integer_power},
      {"gcd", common_divisor},
      {"maximum", [](Wide a, Wide b) { return std::max(a, b); }},
      {"minimum", [](Wide a, Wide b) { return std::min(a, b); }},
      {"clamp", [](Wide a, Wide) { return std::clamp(a, Wide(-5), Wide(1000)); }, {-5, 1000}},
      {"clamp", [](Wide a, Wide) { return std::max(a, Wide(3)); }, {3, kInfinity}},
      {"bitwise_and", [](Wide a, Wide b) { return a & b; }},
      {"bitwise_or", [](Wide a, Wide b) { return a | b; }},
      {"bitwise_xor", [](Wide a, Wide b) { return a ^ b; }},
      {"bitwise_not", [](Wide a, Wide) { return ~a; }},
      {"shift_left", [](Wide a, Wide b) { return b < 0 || b > 63 ? 0 : a << int(b); }},
      {"shift_right", [](Wide a, Wide b) { return a >> int(b < 0 || b > 63 ? 63 : b); }},
      {"eq", [](Wide a, Wide b) { return Wide(a == b); }},
      {"ne", [](Wide a, Wide b) { return Wide(a != b); }},
      {"lt", [](Wide a, Wide b) { return Wide(a < b); }},
      {"le", [](Wide a, Wide b) { return Wide(a <= b); }},
      {"gt", [](Wide a, Wide b) { return Wide(a > b); }},
      {"ge", [](Wide a, Wide b) { return Wide(a >= b); }},
      {"logical_and", [](Wide a, Wide b) { return Wide(a && b); }},
      {"logical_or", [](Wide a, Wide b) { return Wide(a || b); }},
      {"logical_xor", [](Wide a, Wide b) { return Wide(!a != !b); }},
      {"logical_not", [](Wide a, Wide) { return Wide(!a); }},
      {"copy", [](Wide a, Wide) { return a; }},
  };
  return ops;
}

std::mt19937_64& random_bits() {
  static std::mt19937_64 generator(11);
  return generator;
}
float random_float() { return std::bit_cast<float>(uint32_t(random_bits()())); }
float ordinary_float() { return std::normal_distribution<float>(0, 4)(random_bits()); }

const std::vector<float>& special_floats() {
  static const std::vector<float> values = [] {
    std::vector<float> all = {0,       0x1p-149f, 0x1p-126f, 0x1.fffffcp-127f,
                              1e-20f,  1e-7f,     0.25f,     0.5f,
                              1,       1.5f,      2,         2.5f,
                              3,       3.5f,      10,        20,
                              64,      88.7f,     89,        103,
                              104,     110.5f,    0x1p23f,   0x1p24f,
                              1e10f,   0x1p30f,   0x1p31f,   1e20f,
                              0x1p63f, 1e30f,     FLT_MAX,   INFINITY,
                              NAN,     M_PI_2f,   M_PIf,     0.9f,
                              -NAN};
    for (size_t i = 0, n = all.size(); i < n; ++i) {
      all.push_back(-all[i]);
      if (all[i] > 0 && all[i] < FLT_MAX)
        for (float to : {0.0f, INFINITY}) all.push_back(std::nextafter(all[i], to));
    }
    all.push_back(std::bit_cast<float>(0x7f800001u));
    all.push_back(std::bit_cast<float>(0xffffffffu));
    return all;
  }();
  return values;
}
std::vector<float> unary_floats(size_t random) {
  std::vector<float> values = special_floats();
  for (uint32_t code = 0; code < 65536; ++code) values.push_back(sen169_to_float(uint16_t(code)));
  for (size_t i = 0; i < random; ++i) {
    values.push_back(random_float());
    values.push_back(ordinary_float());
  }
  return values;
}
std::vector<std::vector<float>> float_tuples(size_t arity, size_t random) {
  std::vector<std::vector<float>> in(arity);
  const auto add = [&](auto&& value) {
    for (auto& operand : in) operand.push_back(value());
  };
  const std::vector<float>& special = special_floats();
  for (float a : special)
    for (float b : special) {
      in[0].push_back(a);
      in[1].push_back(b);
      if (arity == 3) in[2].push_back(special[random_bits()() % special.size()]);
    }
  for (size_t i = 0; i < random; ++i) {
    add(random_float);
    add(ordinary_float);
    add([] { return std::round(ordinary_float()); });
  }
  return in;
}

template <class Out, class In>
std::vector<Out> run(const TileOp& op, const std::vector<std::vector<In>>& in, const std::vector<double>& constants) {
  const void* operands[3] = {};
  for (size_t k = 0; k < in.size(); ++k) operands[k] = in[k].data();
  std::vector<Out> out(in[0].size());
  op.run(out.data(), operands, out.size(), constants.data());
  return out;
}

// Results of the portable level, after the other levels gave the same bits.
template <class Out, class In>
std::vector<Out> run_everywhere(const std::string& name, const std::vector<std::vector<In>>& in,
                                const std::vector<double>& constants = {}) {
  constexpr Domain domain = std::is_same_v<In, float> ? Domain::real : Domain::integer;
  std::vector<Out> first;
  for (const char* level : levels()) {
    const TileOp& op = op_of(level, name, domain);
    CHECK(op.arity == int(in.size()) && op.constants == int(constants.size()));
    const std::vector<Out> seen = run<Out>(op, in, constants);
    if (first.empty()) first = seen;
    for (size_t i = 0; i < seen.size(); ++i)
      if (std::memcmp(&seen[i], &first[i], sizeof(Out))) {
        testing::fail(__FILE__, __LINE__, name + " on " + level + " differs at element " + std::to_string(i));
        break;
      }
  }
  return first;
}

void check_units(const std::string& name, double limit, double worst, std::initializer_list<float> in, float seen,
                 double wanted) {
  if (worst <= limit) return;
  char text[200];
  std::string message = name + " of";
  for (float value : in) {
    std::snprintf(text, sizeof text, " %a", value);
    message += text;
  }
  std::snprintf(text, sizeof text, " gave %a, not %a: off by %g units", seen, wanted, worst);
  testing::fail(__FILE__, __LINE__, message + text);
}

// These pass bits on: a NaN comes out as it went in.
bool keeps_nan(const std::string& name) {
  for (const char* op : {"neg", "abs", "copysign", "copy", "where"})
    if (name == op) return true;
  return false;
}
double units_off(const std::string& name, float seen, double wanted) {
  if (keeps_nan(name) && std::isnan(seen) && std::isnan(wanted)) return 0;
  return units_off(seen, wanted);
}

}  // namespace

TEST("tile ops: table") {
  CHECK(tile_ops().data() == detail::tile_ops(simd_level()).data());
  CHECK(find_tile_op("gelu_tanh", Domain::real)->arity == 1);
  CHECK(find_tile_op("clamp", Domain::integer)->constants == 2);
  CHECK(find_tile_op("where", Domain::integer)->arity == 3);
  CHECK(find_tile_op("where", Domain::integer)->out == Domain::integer);
  CHECK(find_tile_op("lt", Domain::integer)->out == Domain::real);
  CHECK(find_tile_op("to_integer", Domain::real)->out == Domain::integer);
  CHECK(find_tile_op("to_real", Domain::integer)->out == Domain::real);
  CHECK(find_tile_op("exp", Domain::integer) == nullptr);
  CHECK(find_tile_op("gamma", Domain::real) == nullptr);
  CHECK(find_tile_op("remainder", Domain::integer)->divides && !find_tile_op("remainder", Domain::real)->divides);
  const auto tested = [](const TileOp& op) {
    const auto named = [&](const auto& row) { return !std::strcmp(row.name, op.name); };
    for (const char* conversion : {"to_real", "to_integer", "to_int32", "where"})
      if (!std::strcmp(op.name, conversion)) return true;
    if (op.in == Domain::integer) return std::any_of(on_integers().begin(), on_integers().end(), named);
    return std::any_of(unary().begin(), unary().end(), named) || std::any_of(binary().begin(), binary().end(), named) ||
           std::any_of(ternary().begin(), ternary().end(), named);
  };
  for (const TileOp& op : tile_ops())
    if (!tested(op)) testing::fail(__FILE__, __LINE__, std::string(op.name) + " has no oracle");
}

TEST("tile ops: reals of one operand") {
  const std::vector<std::vector<float>> in = {unary_floats(60000)};
  for (const Unary& op : unary()) {
    const std::vector<float> seen = run_everywhere<float>(op.name, in, op.constants);
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < seen.size(); ++i)
      if (const double off = units_off(op.name, seen[i], op.oracle(in[0][i])); off > worst) worst = off, at = i;
    check_units(op.name, op.units, worst, {in[0][at]}, seen[at], op.oracle(in[0][at]));
  }
}

TEST("tile ops: reals of two operands") {
  const std::vector<std::vector<float>> in = float_tuples(2, 30000);
  for (const Binary& op : binary()) {
    const std::vector<float> seen = run_everywhere<float>(op.name, in);
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < seen.size(); ++i)
      if (const double off = units_off(op.name, seen[i], op.oracle(in[0][i], in[1][i])); off > worst)
        worst = off, at = i;
    check_units(op.name, op.units, worst, {in[0][at], in[1][at]}, seen[at], op.oracle(in[0][at], in[1][at]));
  }
}

TEST("tile ops: reals of three operands") {
  std::vector<std::vector<float>> in = float_tuples(3, 20000);
  for (const Ternary& op : ternary()) {
    const std::vector<float> seen = run_everywhere<float>(op.name, in);
    for (size_t i = 0; i < seen.size(); ++i) {
      const double wanted = op.oracle(in[0][i], in[1][i], in[2][i]), off = units_off(op.name, seen[i], wanted);
      check_units(op.name, kRounded, off, {in[0][i], in[1][i], in[2][i]}, seen[i], wanted);
    }
  }
}

TEST("tile ops: integers") {
  std::vector<std::vector<int64_t>> in(2);
  std::vector<int64_t> special = {0,         1,    2, 3, 5, 31, 32, 62, 63, 64, 65, 1000, INT32_MAX, int64_t(1) << 32,
                                  kMost - 1, kMost};
  for (size_t i = 0, n = special.size(); i < n; ++i) special.push_back(~special[i]);
  for (int64_t a : special)
    for (int64_t b : special) {
      in[0].push_back(a);
      in[1].push_back(b);
    }
  for (int i = 0; i < 20000; ++i)
    for (auto& operand : in) operand.push_back(int64_t(random_bits()()) >> (random_bits()() % 64));
  for (const OnIntegers& op : on_integers()) {
    const TileOp& any = op_of("portable", op.name, Domain::integer);
    const std::vector<std::vector<int64_t>> operands(in.begin(), in.begin() + any.arity);
    const auto check = [&](const auto& seen) {
      for (size_t i = 0; i < seen.size(); ++i)
        if (int64_t(seen[i]) != int64_t(op.oracle(in[0][i], in[1][i]))) {
          testing::fail(__FILE__, __LINE__,
                        std::string(op.name) + " of " + std::to_string(in[0][i]) + ", " + std::to_string(in[1][i]) +
                            " gave " + std::to_string(seen[i]));
          return;
        }
    };
    if (any.out == Domain::integer)
      check(run_everywhere<int64_t>(op.name, operands, op.constants));
    else
      check(run_everywhere<float>(op.name, operands, op.constants));
  }

  const std::vector<float> real = run_everywhere<float>("to_real", std::vector<std::vector<int64_t>>{in[0]});
  for (size_t i = 0; i < real.size(); ++i) CHECK(real[i] == float(in[0][i]));
  for (const char* level : levels()) {
    const TileOp& where = op_of(level, "where", Domain::integer);
    const std::vector<float> condition = {0, -0.0f, 1, NAN, 0x1p-149f};
    const std::vector<int64_t> yes = {1, 2, 3, kMost, 5}, no = {-1, -2, -3, -4, -5};
    std::vector<int64_t> seen(5);
    const void* operands[] = {condition.data(), yes.data(), no.data()};
    where.run(seen.data(), operands, 5, nullptr);
    CHECK((seen == std::vector<int64_t>{-1, -2, 3, kMost, 5}));
  }
}

TEST("tile ops: reals to integers") {
  const std::vector<std::vector<float>> in = {unary_floats(20000)};
  const std::vector<int64_t> seen = run_everywhere<int64_t>("to_integer", in);
  for (size_t i = 0; i < seen.size(); ++i) {
    const float x = in[0][i];
    CHECK(seen[i] == (x >= 0x1p31f ? INT32_MAX : x >= -0x1p31f ? int64_t(x) : INT32_MIN));
  }
  const std::vector<int64_t> narrow = run_everywhere<int64_t>("to_int32", in);
  for (size_t i = 0; i < narrow.size(); ++i) {
    const float x = in[0][i];
    CHECK(narrow[i] == (x >= -0x1p31f && x < 0x1p31f ? int64_t(x) : INT32_MIN));
  }
}

// The same bits for every length, alignment and position, in place and not, and nothing written past the end. Some
// elements are of the kind for which trigonometry and division leave their usual path.
TEST("tile ops: any length and alignment, in place") {
  constexpr size_t kMany = 200, kGuard = 64;
  const double constants[] = {1, 2, 3};
  std::vector<float> reals[3];
  std::vector<int64_t> integers[3];
  for (int k = 0; k < 3; ++k)
    for (size_t i = 0; i < kMany; ++i) {
      reals[k].push_back(i % 37 == 5 ? random_float() : i % 53 == 7 ? special_floats()[i % 40] : ordinary_float());
      integers[k].push_back(int64_t(random_bits()()) >> (random_bits()() % 64));
    }
  for (const char* level : levels())
    for (const TileOp& op : detail::tile_ops(level)) {
      const std::string what = std::string(level) + " " + op.name;
      const auto size = [](Domain domain) { return domain == Domain::real ? sizeof(float) : sizeof(int64_t); };
      const TileOp& reference = op_of("portable", op.name, op.in);
      const bool where = !std::strcmp(op.name, "where");
      const uint8_t* source[3];
      size_t bytes[3];
      for (int k = 0; k < op.arity; ++k) {
        const Domain domain = where && k == 0 ? Domain::real : op.in;
        source[k] = domain == Domain::real ? reinterpret_cast<const uint8_t*>(reals[k].data())
                                           : reinterpret_cast<const uint8_t*>(integers[k].data());
        bytes[k] = size(domain);
      }
      std::vector<uint8_t> wanted(kMany * size(op.out));
      for (size_t i = 0; i < kMany; ++i) {
        const void* in[3] = {};
        for (int k = 0; k < op.arity; ++k) in[k] = source[k] + i * bytes[k];
        reference.run(&wanted[i * size(op.out)], in, 1, constants);
      }
      std::vector<uint8_t> buffers[4];  // three inputs and a result
      for (auto& buffer : buffers) buffer.resize(8 + kMany * sizeof(int64_t) + kGuard);
      const auto check = [&](size_t n, size_t shift, int in_place) {
        const void* in[3] = {};
        for (int k = 0; k < op.arity; ++k) {
          uint8_t* to = buffers[k].data() + shift * size_t(k + 1) % 8;
          std::memcpy(to, source[k], n * bytes[k]);
          in[k] = to;
        }
        std::vector<uint8_t>& result = buffers[in_place < 0 ? 3 : in_place];
        const size_t offset = in_place < 0 ? shift : shift * size_t(in_place + 1) % 8, length = n * size(op.out);
        std::fill(result.begin() + offset + length, result.end(), 0xa5);
        op.run(result.data() + offset, in, n, constants);
        if (std::memcmp(result.data() + offset, wanted.data(), length))
          return testing::fail(__FILE__, __LINE__, what + " differs at n = " + std::to_string(n));
        for (size_t i = offset + length; i < result.size(); ++i)
          if (result[i] != 0xa5)
            return testing::fail(__FILE__, __LINE__, what + " wrote past the end at n = " + std::to_string(n));
      };
      for (size_t n = 0; n <= kMany; n += n < 70 ? 1 : 13) {
        for (size_t shift : {0, 4, 3}) check(n, shift, -1);
        for (int k = 0; k < op.arity; ++k)
          if (bytes[k] == size(op.out)) check(n, 4, k);
      }
    }
}

TEST("tile ops: rounding to SEN169 in fp32") {
  std::vector<float> values = unary_floats(100000);
  for (uint32_t code = 0; code < 0x7fff; ++code) {  // the middle between neighbours
    const double next = code == 0x7ffd ? 0x1.ffp32 : sen169_to_float(uint16_t(code + 1));
    const float middle = float((double(sen169_to_float(uint16_t(code))) + next) / 2);
    for (float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (const char* level : levels())
    for (size_t first : {0, 1, 7}) {
      std::vector<float> seen(values.begin() + first, values.end());
      detail::round_to_sen169(level, seen.data(), seen.size());
      for (size_t i = 0; i < seen.size(); ++i) {
        const float wanted = sen169_to_float(sen169_from_float(values[first + i]));
        CHECK(std::bit_cast<uint32_t>(seen[i]) == std::bit_cast<uint32_t>(wanted));
      }
    }
  float one = 1 + 0x1p-10f;
  round_to_sen169(&one, 1);
  CHECK(one == 1 + 0x1p-9f);
}

// What is left of them after rounding is the rounding's: a 250th of a unit of SEN169 is 2^-17.
TEST("tile ops: short ones, on every code and around") {
  const struct {
    const char* name;
    double (*wanted)(double x);
  } ops[] = {{"exp", [](double x) { return std::exp(x); }}, {"silu", [](double x) { return x / (1 + std::exp(-x)); }}};
  const std::vector<float> in = unary_floats(50000);
  for (const auto& op : ops) {
    CHECK(find_short_op(op.name) && find_short_op(op.name) != find_tile_op(op.name, Domain::real));
    std::vector<float> first;
    for (const char* level : levels()) {
      const auto table = detail::short_ops(level);
      const auto found = std::find_if(table.begin(), table.end(),
                                      [&](const TileOp& each) { return std::string_view(each.name) == op.name; });
      const std::vector<float> seen = run<float>(*found, std::vector<std::vector<float>>{in}, {});
      if (first.empty()) first = seen;
      CHECK(std::memcmp(seen.data(), first.data(), seen.size() * sizeof(float)) == 0);
    }
    for (size_t i = 0; i < in.size(); ++i) {
      const double wanted = op.wanted(in[i]);
      if (std::isnan(wanted) || std::fabs(wanted) > FLT_MAX) {
        CHECK(std::bit_cast<uint32_t>(first[i]) ==
              std::bit_cast<uint32_t>(float(std::isnan(wanted) ? std::nanf("") : wanted)));
      } else {
        CHECK(std::fabs(first[i] - wanted) <= std::fabs(wanted) * 0x1p-17 + FLT_TRUE_MIN);
      }
    }
  }
  CHECK(find_short_op("add") == nullptr);
}

TEST("tile ops: fold") {
  for (size_t n = 1; n <= 128; n *= 2) {
    std::vector<float> values(n);
    for (float& value : values) value = ordinary_float();
    std::vector<float> tree = values;
    for (size_t half = n / 2; half != 0; half /= 2)
      for (size_t i = 0; i < half; ++i) tree[i] += tree[i + half];
    for (const char* level : levels()) {
      CHECK(fold(op_of(level, "add", Domain::real), values.data(), n) == tree[0]);
      CHECK(fold(op_of(level, "maximum", Domain::real), values.data(), n) ==
            *std::max_element(values.begin(), values.end()));
    }
  }
  const float values[256] = {};
  const TileOp& add = *find_tile_op("add", Domain::real);
  for (size_t n : {0, 3, 256}) CHECK_THROWS(fold(add, values, n), InvalidProgram, "a power of two");
  CHECK_THROWS(fold(*find_tile_op("exp", Domain::real), values, 4), InvalidProgram, "with exp");
  CHECK_THROWS(fold(*find_tile_op("add", Domain::integer), values, 4), InvalidProgram, "two reals");
}
