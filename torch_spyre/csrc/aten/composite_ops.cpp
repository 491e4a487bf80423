// Ops that are made of others which the card has, where PyTorch would look for a kernel of the device: some of their
// parts are not the compiler's, or they write into tensors that are not their results, or PyTorch's way leaves the
// card.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/min.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>
#include <tuple>
#include <vector>

#include "aten/fallback.h"
#include "runtime/generator.h"

namespace torch_spyre {

namespace {

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  return self.sizes() == other.sizes() && (self.numel() == 0 || at::eq(self, other).all().item<bool>());
}

// PyTorch looks for labels below zero on the host only. Where it asks the card for the largest anyway, so do we.
at::Tensor one_hot(const at::Tensor& self, int64_t classes) {
  TORCH_CHECK(classes != -1 || self.numel() == 0 || self.min().item<int64_t>() >= 0,
              "Class values must be non-negative.");
  return at::native::one_hot(self, classes);
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

// The host's kernel compares float32 numbers with the probabilities, one for each element.
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

// Without bounds int64 is as wide as the card keeps it. DataLoader draws its seeds like this.
void random_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 2).toTensor();
  if (self.scalar_type() != at::kLong) return make_on_host(op, stack);
  at::Tensor drawn = at::empty(self.sizes(), self.options().device(at::kCPU));
  const Generator generator = torch::jit::peek(*stack, 1, 2).toOptional<at::Generator>();
  drawn.random_(host_generator(generator, self.device().index())).bitwise_and_(std::numeric_limits<int32_t>::max());
  self.copy_(drawn);
  torch::jit::drop(*stack, 1);
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

// PyTorch's own clones the whole storage, whose size on the host counts padding.
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

using Statistics = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

Statistics batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& mean,
                      at::Tensor& variance, bool training, double momentum, double eps) {
  return at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
}

Statistics batch_norm_of_itself(const at::Tensor& input, const Optional& weight, const Optional& bias, bool training,
                                double momentum, double eps) {
  return at::native_batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& mean, at::Tensor& variance,
    double momentum, double eps) {
  auto [out, save_mean, save_scale] = batch_norm(input, weight, bias, mean, variance, true, momentum, eps);
  return {out, save_mean, save_scale, at::empty({0}, input.options().dtype(at::kByte))};
}

// PyTorch's own, but for the mean of smoothed and weighted labels: its divisor is a sum over the labels that count,
// which PyTorch selects, so that the host has to know how many there are.
at::Tensor cross_entropy_loss(const at::Tensor& input, const at::Tensor& target, const Optional& weight,
                              int64_t reduction, c10::SymInt ignored, double smoothing) {
  const bool selects = smoothing > 0 && weight && weight->defined() && reduction == at::Reduction::Mean &&
                       input.sizes() != target.sizes();
  if (!selects) return at::native::cross_entropy_loss_symint(input, target, weight, reduction, ignored, smoothing);
  const int64_t classes = input.dim() == 1 ? 0 : 1;
  std::vector<int64_t> along(input.dim(), 1);
  along[classes] = -1;
  const at::Tensor likelihood = at::log_softmax(input, classes);
  const at::Tensor counts = target != ignored;
  const at::Tensor everywhere = -(likelihood * weight->view(along)).sum(classes) * counts;
  const at::Tensor labels = target.where(counts, at::zeros_like(target));
  const at::Tensor divisor = (weight->index_select(0, labels.flatten()).view(labels.sizes()) * counts).sum();
  const at::Tensor exact = at::nll_loss_nd_symint(likelihood, target, weight, reduction, ignored);
  return (1 - smoothing) * exact + everywhere.sum() / divisor * (smoothing / static_cast<double>(input.size(classes)));
}

// PyTorch would keep statistics of nothing in float64.
at::Tensor any_batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& mean,
                          const Optional& variance, bool training, double momentum, double eps, bool fused) {
  if (input.sym_numel() != 0)
    return at::native::batch_norm(input, weight, bias, mean, variance, training, momentum, eps, fused);
  at::Tensor out = input.clone();
  if (weight && weight->defined()) out = out * weight->select(0, 0);
  if (bias && bias->defined()) out = out + bias->select(0, 0);
  return out;
}

// Gradient scaling: what is found stays on the card, so that nothing waits for it here.
void unscale_and_check(at::TensorList gradients, at::Tensor& found, const at::Tensor& inverse) {
  for (at::Tensor gradient : gradients) {
    found.copy_(at::maximum(found, at::isfinite(gradient).all().logical_not()));
    gradient.mul_(inverse);
  }
}

at::Tensor& update_scale(at::Tensor& scale, at::Tensor& successes, const at::Tensor& found, double growth,
                         double backoff, int64_t interval) {
  const at::Tensor failed = found != 0, next = successes + 1, due = next == interval;
  const at::Tensor larger = scale * growth;
  const at::Tensor grown = larger.where(due.logical_and(at::isfinite(larger)), scale);
  scale.copy_((scale * backoff).where(failed, grown));
  successes.copy_(next.masked_fill(failed.logical_or(due), 0));
  return scale;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("batch_norm", any_batch_norm);
  m.impl("cross_entropy_loss", cross_entropy_loss);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm", any_batch_norm);
  for (const char* name : {"clamp_.Tensor", "addcdiv_"})  // PyTorch would not let numbers on the host come along
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_or_fall_back>());
  m.impl("equal", equal);
  m.impl("cross_entropy_loss", cross_entropy_loss);
  m.impl("bernoulli_.Tensor", bernoulli_by);
  m.impl("copy", copy_of);
  m.impl("_foreach_copy", foreach_copy);
  m.impl("_index_put_impl_", index_put);
  m.impl("native_dropout", native_dropout);
  m.impl("random_", torch::CppFunction::makeFromBoxedFunction<&random_integers>());
  m.impl("one_hot", one_hot);
  m.impl("normal.Tensor_float", normal_around);
  m.impl("normal.float_Tensor", normal_scaled);
  m.impl("normal.Tensor_Tensor", normal_both);
  m.impl("multinomial", torch::CppFunction::makeFromBoxedFunction<&multinomial>());
  m.impl("_native_batch_norm_legit", batch_norm);
  m.impl("_native_batch_norm_legit.no_stats", batch_norm_of_itself);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", unscale_and_check);
  m.impl("_amp_update_scale_", update_scale);
  m.impl("_batch_norm_with_update", batch_norm_with_update);
}

}  // namespace torch_spyre
