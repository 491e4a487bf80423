// Launches of prepared kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "card/card.h"

namespace torch_spyre {

// Queues a kernel on the current stream of the tensors' card and returns. `runtime_scalars` are the values of the
// scalars that the plan leaves to its launches; `shifts`, where given, says for each tensor at which byte of its memory
// the argument begins (runtime/storage/argument_placement.h).
void launch_jobplan(const std::shared_ptr<const spyre::JobPlan>& plan, c10::ArrayRef<const at::Tensor*> tensors,
                    const std::vector<double>& runtime_scalars = {}, c10::ArrayRef<int64_t> shifts = {});

}  // namespace torch_spyre
