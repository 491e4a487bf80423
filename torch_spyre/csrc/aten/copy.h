#pragma once

#include <c10/core/Scalar.h>

#include "runtime/device.h"

namespace torch_spyre {

// One element's bits in the card's format of this dtype. Raises for numbers the dtype cannot hold.
uint32_t encode_constant(const at::Scalar& value, at::ScalarType dtype);

// Whether int64 data going to the card warns.
bool downcast_warning();
void set_downcast_warning(bool on);

}  // namespace torch_spyre
