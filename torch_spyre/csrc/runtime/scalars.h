#pragma once

#include <c10/core/ScalarType.h>

namespace torch_spyre {

// A number as a tensor of this dtype would bring it to the card; whole numbers for dtypes of integers.
double as_kept(double value, c10::ScalarType dtype);

}  // namespace torch_spyre
