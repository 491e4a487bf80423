// What torch.nn.SyncBatchNorm asks of a device: batch norm whose statistics come from several ranks. Statistics are
// float32 for inputs of halves too, as on other devices.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace torch_spyre {

namespace {

using Optional = std::optional<at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;

bool is_given(const Optional& tensor) { return tensor && tensor->defined(); }

// One value for each channel, beside the elements of an input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> size(input.dim(), 1);
  size[1] = -1;
  return values.to(at::kFloat).view(size);
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < input.dim(); ++i)
    if (i != 1) dims.push_back(i);
  return dims;
}

Pair batch_norm_stats(const at::Tensor& input, double eps) {
  const std::vector<int64_t> dims = all_but_channels(input);
  const at::Tensor x = input.to(at::kFloat), mean = x.mean(dims);
  const at::Tensor variance = (x - by_channel(mean, input)).square().mean(dims);
  return {mean, at::rsqrt(variance + eps)};
}

// `means` and `scales` have a row for each rank.
Pair gather_stats(const at::Tensor&, const at::Tensor& means, const at::Tensor& scales, const Optional& running_mean,
                  const Optional& running_variance, double momentum, double eps, const at::Tensor& counts) {
  const at::Tensor number = counts.to(at::kFloat).view({-1, 1}), total = number.sum();
  const at::Tensor mean = (means * number).sum(0) / total;
  const at::Tensor variances = scales.square().reciprocal() - eps + (means - mean).square();
  const at::Tensor variance = (variances * number).sum(0) / total;
  if (is_given(running_mean)) running_mean->mul_(1 - momentum).add_(mean, momentum);
  if (is_given(running_variance)) running_variance->mul_(1 - momentum).add_(variance * (total / (total - 1)), momentum);
  return {mean, at::rsqrt(variance + eps)};
}

at::Tensor normalize(const at::Tensor& input, const Optional& weight, const Optional& bias, const at::Tensor& mean,
                     const at::Tensor& scale, double) {
  at::Tensor out = (input.to(at::kFloat) - by_channel(mean, input)) * by_channel(scale, input);
  if (is_given(weight)) out = out * by_channel(*weight, input);
  if (is_given(bias)) out = out + by_channel(*bias, input);
  return out.to(input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_sums(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& scale,
    const Optional& weight, bool input_wanted, bool weight_wanted, bool bias_wanted) {
  const std::vector<int64_t> dims = all_but_channels(input);
  const at::Tensor given = gradient.to(at::kFloat), sum = given.sum(dims);
  const at::Tensor with_input = (given * (input.to(at::kFloat) - by_channel(mean, input))).sum(dims);
  const at::ScalarType dtype = is_given(weight) ? weight->scalar_type() : at::kFloat;
  return {input_wanted ? sum : at::Tensor(), input_wanted ? with_input : at::Tensor(),
          weight_wanted ? (with_input * scale).to(dtype) : at::Tensor(), bias_wanted ? sum.to(dtype) : at::Tensor()};
}

// The sums are those of all ranks.
at::Tensor backward_of_input(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                             const at::Tensor& scale, const Optional& weight, const at::Tensor& sum,
                             const at::Tensor& with_input, const at::Tensor& counts) {
  const at::Tensor total = counts.sum().to(at::kFloat);
  const at::Tensor centered = input.to(at::kFloat) - by_channel(mean, input);
  const at::Tensor slope = by_channel(with_input / total * scale.square(), input);
  at::Tensor out = gradient.to(at::kFloat) - by_channel(sum / total, input) - centered * slope;
  out = out * by_channel(is_given(weight) ? scale * weight->to(at::kFloat) : scale, input);
  return out.to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", batch_norm_stats);
  m.impl("batch_norm_gather_stats_with_counts", gather_stats);
  m.impl("batch_norm_elemt", normalize);
  m.impl("batch_norm_backward_reduce", backward_sums);
  m.impl("batch_norm_backward_elemt", backward_of_input);
}

}  // namespace torch_spyre
