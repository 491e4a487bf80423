// Composite ops of linear algebra with tolerances: pseudo-inverse and matrix rank. PyTorch would compute with
// tolerances in float64, which the card does not have.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>

namespace torch_spyre {

namespace {

// A tolerance as a 0-dim tensor on the host: there it may be float64.
std::optional<at::Tensor> on_host(std::optional<double> number) {
  if (!number) return std::nullopt;
  return at::scalar_tensor(*number, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor pinv(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  return at::linalg_pinv(self, on_host(atol), on_host(rtol), hermitian);
}

at::Tensor& pinv_out(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol, bool hermitian,
                     at::Tensor& out) {
  return at::linalg_pinv_out(out, self, on_host(atol), on_host(rtol), hermitian);
}

// The number of singular values above a tolerance.
at::Tensor matrix_rank(const at::Tensor& self, const std::optional<at::Tensor>& atol,
                       const std::optional<at::Tensor>& rtol, bool hermitian) {
  const at::Tensor values = hermitian ? at::linalg_eigvalsh(self).abs() : at::linalg_svdvals(self);
  if (values.size(-1) == 0)
    return at::zeros(values.sizes().slice(0, values.dim() - 1), values.options().dtype(at::kLong));
  const double epsilon = std::numeric_limits<float>::epsilon() * std::max(self.size(-1), self.size(-2));
  at::Tensor tolerance = values.amax(-1, /*keepdim=*/true);
  if (rtol) {
    tolerance = tolerance * rtol->unsqueeze(-1);
  } else {
    tolerance =
        atol ? at::where(atol->unsqueeze(-1) > 0, at::zeros_like(tolerance), tolerance * epsilon) : tolerance * epsilon;
  }
  if (atol) tolerance = at::maximum(tolerance, atol->unsqueeze(-1).to(tolerance.scalar_type()));
  return values.gt(tolerance).sum(-1);
}

at::Tensor matrix_rank_numbers(const at::Tensor& self, std::optional<double> atol, std::optional<double> rtol,
                               bool hermitian) {
  const auto number = [&](std::optional<double> value) -> std::optional<at::Tensor> {
    if (!value) return std::nullopt;
    return at::full({}, *value, self.options().dtype(at::kFloat));
  };
  return matrix_rank(self, number(atol), number(rtol), hermitian);
}

at::Tensor matrix_rank_tolerance(const at::Tensor& self, double tolerance, bool hermitian) {
  return matrix_rank_numbers(self, tolerance, 0.0, hermitian);
}

template <typename Library>
void register_linalg(Library& m) {
  m.impl("linalg_pinv.atol_rtol_float", pinv);
  m.impl("linalg_pinv.atol_rtol_float_out", pinv_out);
  m.impl("linalg_matrix_rank", matrix_rank_tolerance);
  m.impl("linalg_matrix_rank.atol_rtol_float", matrix_rank_numbers);
  m.impl("linalg_matrix_rank.atol_rtol_tensor", matrix_rank);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_linalg(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_linalg(m); }

}  // namespace torch_spyre
