// Composite ops on tensors of any kind: comparison, copies, writes by index.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/min.h>
#include <ATen/ops/one_hot_native.h>
#include <torch/library.h>

#include <vector>

#include "aten/dispatch.h"

namespace torch_spyre {

namespace {

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  return self.sizes() == other.sizes() && (self.numel() == 0 || at::eq(self, other).all().item<bool>());
}

// PyTorch refuses negative labels on the host only.
at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  TORCH_CHECK(classes != -1 || self.numel() == 0 || self.min().item<int64_t>() >= 0,
              "Class values must be non-negative.");
  return at::native::one_hot(self, classes);
}

// PyTorch's own kernel clones the whole storage, whose size on the host includes padding.
at::Tensor copy_of(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  at::Tensor result = at::has_internal_overlap(self) == at::MemOverlap::Yes
                          ? self.clone()
                          : at::empty_strided(self.sizes(), self.strides(), self.options());
  return result.copy_(source, non_blocking);
}

std::vector<at::Tensor> foreach_copy(at::TensorList self, at::TensorList sources, bool non_blocking) {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < self.size(); ++i) results.push_back(copy_of(self[i], sources[i], non_blocking));
  return results;
}

// The gradient of x[indices].
at::Tensor& index_put(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                      bool accumulate, bool /*unsafe*/) {
  return self.index_put_(indices, values, accumulate);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("equal", equal);
  m.impl("one_hot", one_hot);
  m.impl("copy", copy_of);
  m.impl("_foreach_copy", foreach_copy);
  m.impl("_index_put_impl_", index_put);
  // PyTorch's own kernels do not allow numbers (0-dim tensors) on the host next to tensors of the card.
  for (const char* name : {"clamp_.Tensor", "addcdiv_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&dispatch_op>());
}

}  // namespace torch_spyre
