// PyTorch dtypes and the host types that the card's transfers convert from and to.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "card/card.h"

namespace torch_spyre {

// The host type of a dtype. Raises TypeError for a dtype that the card has no number format for.
spyre::HostType host_type(at::ScalarType dtype);
bool is_supported(at::ScalarType dtype);
// The name that Python users know: "torch.float16".
std::string dtype_name(at::ScalarType dtype);

}  // namespace torch_spyre
