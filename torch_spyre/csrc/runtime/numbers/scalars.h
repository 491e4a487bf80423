// Single numbers in the card's number formats.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

namespace torch_spyre {

// The value of a number after an upload in a tensor of this dtype: rounded, saturated, for integers truncated.
double round_to_device(double value, c10::ScalarType dtype);

// One element's bits in the card's format of this dtype. Raises for numbers the dtype cannot hold.
uint32_t encode_constant(const at::Scalar& value, at::ScalarType dtype);

}  // namespace torch_spyre
