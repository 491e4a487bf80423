// Composite ops of neural networks: recurrent cells, batch norm, cross entropy, gradient scaling.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace torch_spyre {

namespace {

using Optional = std::optional<at::Tensor>;

// --- recurrent cells: PyTorch asks every device but the host for a fused cell. Composed of other ops, for autograd
// too, they need no derivatives of their own.

at::Tensor with_bias(const at::Tensor& gates, const Optional& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input, const at::Tensor& hidden,
                                                         const at::Tensor& cell, const Optional& input_bias,
                                                         const Optional& hidden_bias) {
  const at::Tensor gates = with_bias(input, input_bias) + with_bias(hidden, hidden_bias);
  const auto part = gates.chunk(4, 1);  // in, forget, cell, out
  const at::Tensor next = part[1].sigmoid() * cell + part[0].sigmoid() * part[2].tanh();
  return {part[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& state,
                                            const Optional& input_bias, const Optional& hidden_bias) {
  const at::Tensor in = with_bias(input, input_bias), own = with_bias(hidden, hidden_bias);
  const auto i = in.chunk(3, 1), h = own.chunk(3, 1);  // reset, update, new
  const at::Tensor fresh = (i[2] + h[2] * (i[0] + h[0]).sigmoid()).tanh();
  return {(state - fresh) * (i[1] + h[1]).sigmoid() + fresh, in};
}

// --- batch norm

using Statistics = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

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

// PyTorch would keep the statistics of an empty batch in float64.
at::Tensor any_batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& mean,
                          const Optional& variance, bool training, double momentum, double eps, bool fused) {
  if (input.sym_numel() != 0)
    return at::native::batch_norm(input, weight, bias, mean, variance, training, momentum, eps, fused);
  at::Tensor out = input.clone();
  if (weight && weight->defined()) out = out * weight->select(0, 0);
  if (bias && bias->defined()) out = out + bias->select(0, 0);
  return out;
}

// PyTorch's own kernel, except for the mean over smoothed and weighted labels. Its divisor is a sum over the labels
// that are not ignored, and PyTorch selects those, so that the host would have to know how many there are.
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

// --- gradient scaling: the flag for infinite gradients stays on the card, so that the host does not wait for it

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

template <typename Library>
void register_for_autograd_too(Library& m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("batch_norm", any_batch_norm);
  m.impl("cross_entropy_loss", cross_entropy_loss);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_for_autograd_too(m); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_for_autograd_too(m);
  m.impl("_native_batch_norm_legit", batch_norm);
  m.impl("_native_batch_norm_legit.no_stats", batch_norm_of_itself);
  m.impl("_batch_norm_with_update", batch_norm_with_update);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", unscale_and_check);
  m.impl("_amp_update_scale_", update_scale);
}

}  // namespace torch_spyre
