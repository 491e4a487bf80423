// Composite random ops: the generator draws numbers on the host, and the card computes with them.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <limits>
#include <tuple>

#include "aten/dispatch.h"
#include "runtime/device/generator.h"

namespace torch_spyre {

namespace {

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

// The host's kernel compares one float32 number for each element with the probability.
at::Tensor& bernoulli_by(at::Tensor& self, const at::Tensor& p, Generator generator) {
  TORCH_CHECK(at::logical_and(p.ge(0), p.le(1)).all().item<bool>(), "Expected p_in >= 0 && p_in <= 1 to be true");
  const at::Tensor drawn = at::empty(self.sizes(), self.options().dtype(at::kFloat));
  return self.copy_(drawn.uniform_(0, 1, std::move(generator)).lt(p.to(self.device())));
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// Without bounds an int64 gets as many random bits as the card keeps. DataLoader draws its seeds like this.
void random_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 2).toTensor();
  if (self.scalar_type() != at::kLong) return generate_on_host(op, stack);
  at::Tensor drawn = at::empty(self.sizes(), self.options().device(at::kCPU));
  const Generator generator = torch::jit::peek(*stack, 1, 2).toOptional<at::Generator>();
  drawn.random_(host_generator(generator, self.device().index())).bitwise_and_(std::numeric_limits<int32_t>::max());
  self.copy_(drawn);
  torch::jit::drop(*stack, 1);
}

// Several draws with replacement use a table that only the host's kernel builds.
void multinomial(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 4);
  const int64_t draws = arguments[1].toInt();
  const bool replacement = arguments[2].toBool();
  if (replacement && draws != 1) return dispatch_op(op, stack);
  at::Tensor drawn =
      at::native::multinomial(arguments[0].toTensor(), draws, replacement, arguments[3].toOptional<at::Generator>());
  torch::jit::drop(*stack, 4);
  stack->emplace_back(std::move(drawn));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("bernoulli_.Tensor", bernoulli_by);
  m.impl("native_dropout", native_dropout);
  m.impl("random_", torch::CppFunction::makeFromBoxedFunction<&random_integers>());
  m.impl("normal.Tensor_float", normal_around);
  m.impl("normal.float_Tensor", normal_scaled);
  m.impl("normal.Tensor_Tensor", normal_both);
  m.impl("multinomial", torch::CppFunction::makeFromBoxedFunction<&multinomial>());
}

}  // namespace torch_spyre
