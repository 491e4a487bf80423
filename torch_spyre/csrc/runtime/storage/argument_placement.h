// The placement of a kernel's arguments in device memory, which kernels are compiled for.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "card/card.h"

namespace torch_spyre {

struct ArgumentPlacement {
  const spyre::Layout* layout;
  int64_t offset;        // host elements from the start of the memory
  int64_t first_sharer;  // position of the first argument in the same memory
};
std::vector<ArgumentPlacement> argument_placements(const std::vector<at::Tensor>& tensors);

// Where the elements of a tensor are on the card, as the nearest place to the start of its memory at which a tensor of
// the same sizes and strides has its elements at the same distances, and how many bytes, whole sticks, it is from
// there. A kernel for the tensor at that place serves this one too, from that byte on.
struct MovedArgument {
  int64_t offset;  // host elements from the start of the memory
  int64_t shift;   // bytes on the card
};
MovedArgument moved_to_start(const at::Tensor& tensor);
// The tensor at that place.
at::Tensor at_place(const at::Tensor& tensor, const MovedArgument& place);
// The same for all tensors of a call. Those that share memory with another of them stay where they are: a kernel knows
// how far apart they are.
using MovedArguments = c10::SmallVector<MovedArgument, 8>;
MovedArguments moved_to_start(c10::ArrayRef<const at::Tensor*> tensors);
// All tensors of a call where they are.
MovedArguments unmoved(c10::ArrayRef<const at::Tensor*> tensors);

}  // namespace torch_spyre
