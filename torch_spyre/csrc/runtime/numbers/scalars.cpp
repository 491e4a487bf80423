#include "runtime/numbers/scalars.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

#include "runtime/numbers/dtypes.h"

namespace torch_spyre {

namespace {

// The largest finite values: of a Half on the way back to the host, and of the card's 16-bit numbers.
constexpr double kLargestHalf = 65472, kLargest = (2.0 - 3.0 / 512) * (1LL << 32);

double round_on_host(double value, c10::ScalarType dtype) {
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

double round_to_device(double value, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Bool) return value != 0;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) return std::trunc(value) + 0.0;  // there is one zero
  value = round_on_host(value, dtype);
  const bool half = dtype == c10::ScalarType::Half;
  if ((!half && dtype != c10::ScalarType::BFloat16) || !std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(value), &exponent);
  value = std::copysign(std::ldexp(std::floor(mantissa * 1024 + 0.5), exponent - 10), value);
  const double largest = half ? kLargestHalf : kLargest;
  return std::clamp(value, -largest, largest);
}

uint32_t encode_constant(const at::Scalar& value, at::ScalarType dtype) {
  union {
    float number;
    uint32_t bits;
  } as;
  switch (dtype) {
    case at::kHalf:
      value.to<at::Half>();  // raises what PyTorch raises for a number that fp16 cannot hold
      return spyre::sen169_from_float(value.to<float>());
    case at::kBFloat16:
      return spyre::sen169_from_float(value.to<float>());
    case at::kBool:
      return spyre::sen169_from_float(value.to<bool>() ? 1.0f : 0.0f);
    case at::kFloat:
      as.number = value.to<float>();
      return as.bits;
    case at::kChar:
      return static_cast<uint8_t>(value.to<int8_t>());
    case at::kShort:
      return static_cast<uint16_t>(value.to<int16_t>());
    case at::kByte:
      return value.to<uint8_t>();
    case at::kInt:
      return static_cast<uint32_t>(value.to<int32_t>());
    case at::kLong: {
      const auto whole = value.to<int64_t>();
      TORCH_CHECK_VALUE(whole == static_cast<int32_t>(whole), "int64 value ", whole,
                        " does not fit the card, which keeps int64 in 32 bits.");
      return static_cast<uint32_t>(static_cast<int32_t>(whole));
    }
    case at::kFloat8_e4m3fn:
      return value.to<at::Float8_e4m3fn>().x;
    case at::kFloat8_e5m2:
      return value.to<at::Float8_e5m2>().x;
    default:
      host_type(dtype);  // raises
      return 0;
  }
}

}  // namespace torch_spyre
