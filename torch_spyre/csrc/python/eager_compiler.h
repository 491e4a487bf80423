// The compiler of eager kernels, as C++ calls it: torch_spyre.eager.compile_call.
#pragma once

#include "aten/eager_kernels.h"

namespace torch_spyre {

// Compiles a kernel for calls like this one, which has `tensors` tensors on the card. `scalar_arguments` are the
// positions of the arguments whose values the kernel may leave to its launches.
std::shared_ptr<const EagerKernel> compile_eager_kernel(const c10::OperatorHandle& op,
                                                        c10::ArrayRef<c10::IValue> arguments, size_t tensors,
                                                        c10::ArrayRef<size_t> scalar_arguments, c10::Device device);

}  // namespace torch_spyre
