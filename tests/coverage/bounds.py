"""The kind of each op of PyTorch's database, and the comparison that the theory of error bounds gives for it.

The reference is PyTorch on the host in float64, from the inputs that the card holds (copied there and back). The card
computes in fp32 and rounds the result of each of its ops once. What follows, and no more, is allowed:

- **exact**: integers, bools, and ops that only move or choose numbers. A number given in Python rounds as it enters.
- **element**: one rounding, unit · |y|. The unit is 2^-9 for float16 and bfloat16, which both are SEN169 on the card,
  and 2^-21 for float32, whose functions are polynomials.
- **sum**: one rounding, and the order in which K numbers or products are added: unit · |y| + K · 2^-24 · Σ|ab|.
- **composed**: its parts add up. PyTorch's decompositions take the op apart on the host; each part is one of the above,
  and what its inputs may be off reaches its result as far as moving them by that much moves it. Behind a part that
  exceeds the largest number of the format, nothing is said.
- **spectral**: singular values and eigenvalues are off by a unit of the largest one, a condition number c by c units.

A bfloat16 loses half of its own unit more, 2^-8 · |y|, on the way out of the card, and numbers below the smallest of a
format are nothing. An op that ran on the CPU gives what the CPU gives in that dtype, rounded into the card's format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from torch_spyre.compare import parts
from torch_spyre.compare.error_bounds import difference, format_of, inside, rounding, same, smallest

from .ops import NAMED, Op

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]

# --- The table: whatever is in neither list is an element

_EXACT = """
    alias_copy as_strided_copy diagonal_copy expand_copy narrow_copy permute_copy squeeze_copy t_copy transpose_copy
    unbind_copy unfold_copy unsqueeze_copy view_copy split_with_sizes_copy swapaxes block_diag cartesian_prod
    combinations nn.functional.channel_shuffle conj conj_physical resolve_conj resolve_neg real gather take
    take_along_dim index_select __getitem__ index_copy index_fill slice_scatter select_scatter diagonal_scatter
    as_strided_scatter masked_scatter nn.functional.embedding put abs ceil clamp clamp_max clamp_min copysign floor
    fmax fmin fmod frac masked_fill max.binary maximum min.binary minimum neg positive round round.decimals_0 sgn
    sign trunc where nn.functional.relu nn.functional.relu6 nn.functional.hardtanh nn.functional.hardshrink
    nn.functional.threshold amax amin aminmax cummax cummin max.reduction_no_dim max.reduction_with_dim
    min.reduction_no_dim min.reduction_with_dim median nanmedian kthvalue mode msort sort nn.functional.max_pool1d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.interpolate.nearest
    nn.functional.upsample_nearest ones ones_like new_ones zeros zeros_like new_zeros zero_ eye
"""
EXACT = frozenset(f"{NAMED['shapes and views']} {_EXACT}".split()) - {"topk"}

_COMPOSED = """
    nn.functional.grid_sample grid_sampler_2d grid_sampler_3d
    special.ndtr signal.windows.bartlett signal.windows.blackman signal.windows.cosine signal.windows.exponential
    signal.windows.gaussian signal.windows.general_cosine signal.windows.general_hamming signal.windows.hamming
    signal.windows.hann signal.windows.kaiser signal.windows.nuttall
    sum mean nansum nanmean sum_to_size cumsum cumprod prod trace std std.unbiased std_mean std_mean.unbiased var
    var.unbiased var_mean var_mean.unbiased norm norm.fro norm.inf linalg.vector_norm linalg.norm linalg.matrix_norm
    logsumexp softmax log_softmax nn.functional.softmin torch.ops.aten._safe_softmax.default _softmax_backward_data
    masked.sum masked.mean masked.prod masked.std masked.var masked.norm masked.normalize masked.logsumexp
    masked.softmax masked.softmin masked.log_softmax masked.cumsum masked.cumprod cov corrcoef trapezoid trapz
    cumulative_trapezoid nn.functional.layer_norm nn.functional.rms_norm nn.functional.group_norm
    nn.functional.batch_norm nn.functional.instance_norm nn.functional.normalize nn.functional.local_response_norm
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update renorm mm
    bmm addmm addmm.decomposed addmv addbmm addr baddbmm matmul __rmatmul__ mv dot vdot inner einsum tensordot
    nn.functional.linear nn.functional.bilinear linalg.multi_dot linalg.vecdot linalg.matrix_power linalg.cross
    cross addcmul addcdiv lerp logit sinc gradient diff dist nn.functional.tanhshrink cdist nn.functional.conv1d
    nn.functional.conv2d nn.functional.conv2d.forms nn.functional.conv3d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.avg_pool1d nn.functional.avg_pool2d
    nn.functional.avg_pool3d nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_avg_pool3d nn.functional.interpolate.bilinear nn.functional.interpolate.forms
    nn.functional.interpolate.linear nn.functional.interpolate.trilinear nn.functional.interpolate.bicubic
    nn.functional.interpolate.area nn.functional.upsample_bilinear nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention.forms nn.functional.multi_head_attention_forward
    nn.functional.embedding_bag index_add index_put index_put.forms scatter scatter_add scatter_reduce.mean
    scatter_reduce.prod scatter_reduce.sum index_reduce.mean index_reduce.prod _unsafe_masked_index_put_accumulate
    nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss nn.functional.l1_loss
    nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.kl_div nn.functional.binary_cross_entropy
    nn.functional.binary_cross_entropy_with_logits nn.functional.poisson_nll_loss nn.functional.gaussian_nll_loss
    nn.functional.hinge_embedding_loss nn.functional.cosine_embedding_loss nn.functional.margin_ranking_loss
    nn.functional.soft_margin_loss nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss
    nn.functional.multilabel_soft_margin_loss nn.functional.triplet_margin_loss
    nn.functional.triplet_margin_with_distance_loss nn.functional.cosine_similarity nn.functional.pairwise_distance
    nn.functional.linear_cross_entropy nn.functional.linear_cross_entropy.chunked
    nn.functional.linear_cross_entropy.chunked_none
"""
COMPOSED = frozenset(_COMPOSED.split())

# What LAPACK computes is exact for a matrix that differs by a rounding of its largest part: the scale of the error.
SPECTRAL: dict[str, Callable[[Tensor], Tensor]] = {
    "linalg.svdvals": lambda y: y.abs().amax(-1, keepdim=True) if y.numel() else y,
    "linalg.eigvalsh": lambda y: y.abs().amax(-1, keepdim=True) if y.numel() else y,
    "linalg.cond": lambda y: y * y,
}

# Only the first result is compared: the others are statistics for the backward pass, which PyTorch defines differently
# (in float32; in evaluation, the running ones) for the CPU and for all other devices.
FIRST_ONLY = frozenset(
    ["native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"]
)


def kind(name: str) -> str:
    listed = {"exact": EXACT, "composed": COMPOSED, "spectral": SPECTRAL}
    return next((kind for kind, names in listed.items() if name in names), "element")


def _is_exact(name: str, call: Call) -> bool:
    if name == "put" and any(value is True for value in tree_leaves(call)):  # accumulate
        return False
    return name in EXACT and not any(isinstance(value, float) for value in tree_leaves(call))


def compare(
    op: Op, found: Any, like: Any, given: Callable[[], Call], shapes_only: bool = False, fell_back: bool = False
) -> str:
    """What is wrong with the results, empty if nothing; ``like`` is what the host gives in this dtype."""
    got, want = tree_leaves(found), tree_leaves(like)
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    if op.name in FIRST_ONLY:
        got, want = got[:1], want[:1]
    for g, w in zip(got, want, strict=True):
        if isinstance(g, Tensor) != isinstance(w, Tensor):
            return f"a {type(g).__name__}, not a {type(w).__name__}"
        if isinstance(w, Tensor) and (g.dtype != w.dtype or g.shape != w.shape):
            return f"{g.dtype} {list(g.shape)}, not {w.dtype} {list(w.shape)}"
    if shapes_only:
        return ""
    if fell_back and not _differ(got, want, [_rounded_once(w) for w in want]):
        return ""
    if op.name == "topk":
        return _topk(got, given())
    if not any(_real(x) for x in tree_leaves([given(), like])):
        return _differ(got, want, [None] * len(want))
    return _differ(got, *_reference(op, given, want))


def _reference(op: Op, given: Callable[[], Call], like: list[Any]) -> tuple[list[Any], list[Any]]:
    """The results in float64, and how far each may be off; None is not at all."""
    first, args, kwargs = _wide(given())
    exact = _is_exact(op.name, (first, args, kwargs))
    format = format_of(next((x.dtype for x in like if _real(x)), torch.float32))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        if kind(op.name) == "composed":
            results, errors = parts.bounded(lambda: op.function(first, *args, **kwargs), format)
        else:
            results = tree_leaves(op.function(first, *args, **kwargs))
            scale = SPECTRAL.get(op.name, torch.abs)
            errors = [
                format_of(w.dtype).unit * scale(r) if _real(w) else None for r, w in zip(results, like, strict=False)
            ]
    finally:
        torch.set_default_dtype(before)
    results, errors = results[: len(like)], errors[: len(like)]
    limits = [None if exact or not _real(w) else _limit(e, r, w) for r, e, w in zip(results, errors, like, strict=True)]
    return results, limits


def _limit(error: Tensor, result: Tensor, like: Tensor) -> Tensor:
    limit = error.double() + format_of(like.dtype).leaving * result.double().abs()
    return torch.where(result.isfinite(), limit, 0.0) + smallest(like.dtype)


def _wide(call: Call) -> Call:
    """The call in float64."""

    def widened(value: Any) -> Any:
        if _real(value):
            return value.double()
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    return tree_map(widened, call)


def _real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _rounded_once(want: Any) -> Tensor | None:
    if not isinstance(want, Tensor) or want.dtype not in (torch.float16, torch.bfloat16):
        return None
    return rounding(want.nan_to_num(0, 0, 0), want.dtype) + smallest(want.dtype)


def _differ(got: list[Any], want: list[Any], limits: list[Any]) -> str:
    for g, w, limit in zip(got, want, limits, strict=True):
        if not isinstance(w, Tensor):
            if g != w and not (isinstance(w, float) and math.isclose(g, w, rel_tol=2**-9)):
                return f"{g}, not {w}"
        elif limit is None:
            wanted = w.to(g.dtype)
            if not same(g, wanted):
                return difference(g, wanted, torch.zeros(()))
        elif not inside(g, w, limit).all():
            return difference(g, w, limit)
    return ""


def _topk(got: list[Any], call: Call) -> str:
    """Equal numbers may come in any order: positions are right if they are distinct and hold the values."""
    (x, args, kwargs), (values, positions) = call, got
    options = dict(zip(("k", "dim", "largest", "sorted"), args, strict=False)) | kwargs
    dim, largest = options.get("dim", -1), options.get("largest", True)
    want = torch.topk(x, options["k"], dim, largest, sorted=True).values
    found = values if options.get("sorted", True) else values.sort(dim, descending=largest).values
    if not same(found, want):
        return difference(found, want, torch.zeros(()))
    if not same(x.gather(dim, positions), values):
        return "positions that hold other values"
    return "a position twice" if x.dim() and (positions.sort(dim).values.diff(dim=dim) == 0).any() else ""
