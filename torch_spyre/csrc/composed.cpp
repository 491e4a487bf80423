// Ops that are made of others which the card has, where PyTorch would look for a kernel of the device.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/native_dropout_native.h>
#include <torch/library.h>

#include "fallback.h"

namespace torch_spyre {

namespace {

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  return self.sizes() == other.sizes() && (self.numel() == 0 || at::eq(self, other).all().item<bool>());
}

// Random numbers are the generator's; what is made of them is the card's work.
using Generator = std::optional<at::Generator>;

at::Tensor normal_around(const at::Tensor& mean, double std, Generator generator) {
  return at::empty(mean.sizes(), mean.options()).normal_(0, std, std::move(generator)).add_(mean);
}

at::Tensor normal_scaled(double mean, const at::Tensor& std, Generator generator) {
  return at::empty(std.sizes(), std.options()).normal_(0, 1, std::move(generator)).mul_(std).add_(mean);
}

at::Tensor normal_both(const at::Tensor& mean, const at::Tensor& std, Generator generator) {
  const auto size = at::infer_size(mean.sizes(), std.sizes());
  return at::empty(size, mean.options()).normal_(0, 1, std::move(generator)).mul_(std).add_(mean);
}

// Several draws with replacement go through a table that only the host's kernel builds.
void multinomial(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  const int64_t draws = arguments[1].toInt();
  const bool replacement = arguments[2].toBool();
  if (replacement && draws != 1) return run_or_fall_back(op, stack);
  at::Tensor drawn =
      at::native::multinomial(arguments[0].toTensor(), draws, replacement, arguments[3].toOptional<at::Generator>());
  torch::jit::drop(*stack, 4);
  stack->emplace_back(std::move(drawn));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("equal", equal);
  m.impl("native_dropout", TORCH_FN(at::native::native_dropout_cpu));
  m.impl("normal.Tensor_float", normal_around);
  m.impl("normal.float_Tensor", normal_scaled);
  m.impl("normal.Tensor_Tensor", normal_both);
  m.impl("multinomial", torch::CppFunction::makeFromBoxedFunction<&multinomial>());
}

}  // namespace torch_spyre
