// The placement of a kernel's arguments in device memory, which kernels are compiled for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "card/card.h"

namespace torch_spyre {

struct ArgumentPlacement {
  const spyre::Layout* layout;
  int64_t offset;        // host elements from the start of the memory
  int64_t first_sharer;  // position of the first argument in the same memory
};
std::vector<ArgumentPlacement> argument_placements(const std::vector<at::Tensor>& tensors);

}  // namespace torch_spyre
