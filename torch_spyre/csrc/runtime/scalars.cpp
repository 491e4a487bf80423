#include "runtime/scalars.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

namespace torch_spyre {

namespace {

// On the card: what is larger would become infinite, a Half on the way out.
constexpr double kLargestHalf = 65472, kLargest = (2.0 - 3.0 / 512) * (1LL << 32);

double rounded_on_the_host(double value, c10::ScalarType dtype) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case c10::ScalarType::Float:
      return single;
    case c10::ScalarType::Half:
      return c10::Half(single);
    case c10::ScalarType::BFloat16:
      return c10::BFloat16(single);
    case c10::ScalarType::Float8_e4m3fn:
      return c10::Float8_e4m3fn(single);
    case c10::ScalarType::Float8_e5m2:
      return c10::Float8_e5m2(single);
    default:
      return value;
  }
}

}  // namespace

double as_kept(double value, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Bool) return value != 0;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) return std::trunc(value) + 0.0;  // there is one zero
  value = rounded_on_the_host(value, dtype);
  const bool half = dtype == c10::ScalarType::Half;
  if ((!half && dtype != c10::ScalarType::BFloat16) || !std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(value), &exponent);
  value = std::copysign(std::ldexp(std::floor(mantissa * 1024 + 0.5), exponent - 10), value);
  const double largest = half ? kLargestHalf : kLargest;
  return std::clamp(value, -largest, largest);
}

}  // namespace torch_spyre
