#include "runtime/numbers/dtypes.h"

#include <c10/util/Exception.h>

#include <utility>

namespace torch_spyre {

namespace {

constexpr std::pair<at::ScalarType, spyre::HostType> kTypes[] = {
    {at::kHalf, spyre::HostType::F16},
    {at::kBFloat16, spyre::HostType::BF16},
    {at::kFloat, spyre::HostType::F32},
    {at::kFloat8_e4m3fn, spyre::HostType::F8E4M3},
    {at::kFloat8_e5m2, spyre::HostType::F8E5M2},
    {at::kChar, spyre::HostType::I8},
    {at::kShort, spyre::HostType::I16},
    {at::kByte, spyre::HostType::U8},
    {at::kInt, spyre::HostType::I32},
    {at::kLong, spyre::HostType::I64},
    {at::kBool, spyre::HostType::Bool},
};

}  // namespace

bool is_supported(at::ScalarType dtype) {
  for (const auto& [scalar, host] : kTypes)
    if (scalar == dtype) return true;
  return false;
}

spyre::HostType host_type(at::ScalarType dtype) {
  for (const auto& [scalar, host] : kTypes)
    if (scalar == dtype) return host;
  const char* near = c10::isComplexType(dtype)           ? "torch.complex64"
                     : c10::isIntegralType(dtype, false) ? "torch.int32"
                     : c10::elementSize(dtype) == 1      ? "torch.float8_e4m3fn"
                                                         : "torch.float32";
  TORCH_CHECK_TYPE(false, "Spyre backend does not support dtype ", dtype_name(dtype),
                   ": the card has no such number format. Convert first, for example with .to(", near, ").");
}

std::string dtype_name(at::ScalarType dtype) { return "torch." + std::string(c10::getDtypeNames(dtype).first); }

}  // namespace torch_spyre
