"""Which ops are covered: all of PyTorch's OpInfo database, a few samples of our own, and what is said about them.

Everything here is a table. An op is known by its OpInfo's name, with the variant's behind a dot where there are more.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput

# Random ops seed generators before they draw, on every device. That is no part of the op, and breaks graphs.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool)

Make = Callable[..., Tensor]


@dataclass(frozen=True)
class Op:
    """A function that is called as ``function(sample.input, *sample.args, **sample.kwargs)``."""

    name: str
    function: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...]
    generate: Callable[[torch.dtype], Iterator[SampleInput]]

    def samples(self, dtype: torch.dtype, most: int) -> list[SampleInput]:
        """At most so many samples, spread evenly over all there are, and the same ones each time."""
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        found = list(islice(self.generate(dtype), 200))
        if len(found) <= most:
            return found
        return [found[(2 * i + 1) * len(found) // (2 * most)] for i in range(most)]


# --- What has no OpInfo, or none with these arguments

HALF_AND_FLOAT = (torch.float16, torch.bfloat16, torch.float32)


def _attention(make: Make) -> Iterator[SampleInput]:
    query, key, value = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
    yield SampleInput(query, key, value, attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(2))
    yield SampleInput(query, key, value, attn_mask=make(5, 7), scale=0.3)
    yield SampleInput(query, key, value, is_causal=True, dropout_p=0.0)
    yield SampleInput(query, make(2, 2, 7, 8), make(2, 2, 7, 8), enable_gqa=True)


def _convolution(make: Make) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 4, 9, 8), make(6, 2, 3, 3), make(6), stride=2, padding=1, groups=2)
    yield SampleInput(make(1, 3, 9, 8), make(5, 3, 3, 2), None, dilation=2, padding=(2, 1))
    yield SampleInput(make(1, 4, 7, 7), make(4, 1, 3, 3), make(4), padding="same", groups=4)
    yield SampleInput(make(2, 3, 6, 6), make(4, 3, 1, 1), make(4))


def _index_put(make: Make) -> Iterator[SampleInput]:
    rows, columns = torch.tensor([0, 2, 2, 4]), torch.tensor([1, 0, 0, 3])
    yield SampleInput(make(5, 4), (rows, columns), make(4), accumulate=True)
    yield SampleInput(make(5, 4), (rows,), make(4, 4), accumulate=True)
    yield SampleInput(make(5, 4), (torch.tensor([0, 2, 3]), torch.tensor([3, 1, 1])), make(3))
    yield SampleInput(make(5, 4), (None, torch.tensor([3, 1])), make(5, 2))


def _interpolation(make: Make) -> Iterator[SampleInput]:
    yield SampleInput(make(1, 3, 5, 4), scale_factor=2.0, mode="nearest")
    yield SampleInput(make(2, 2, 7, 6), size=(3, 9), mode="nearest")
    yield SampleInput(make(1, 3, 5, 4), size=(8, 7), mode="bilinear", align_corners=True)
    yield SampleInput(make(1, 3, 5, 4), scale_factor=(2.0, 0.5), mode="bilinear", align_corners=False)


def _gelu(make: Make) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 33), approximate="none")
    yield SampleInput(make(5, 33), approximate="tanh")


def _positions(make: Make) -> Iterator[SampleInput]:
    rows, columns = torch.tensor([0, 2, 2, 4]), torch.tensor([[1], [0]])
    yield SampleInput(make(5, 4, 3), (rows,))
    yield SampleInput(make(5, 4, 3), (slice(None), columns, slice(1, None)))
    yield SampleInput(make(5, 4, 3), (rows, Ellipsis, 1))
    yield SampleInput(make(5, 4, 3), (rows, columns, None))


def _repeats(make: Make) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), 2)
    yield SampleInput(make(3, 4), 3, dim=0)
    yield SampleInput(make(3, 4), 2, dim=-1)


def _one_hot(make: Make) -> Iterator[SampleInput]:
    yield SampleInput(make(7), 5)
    yield SampleInput(make(2, 3), 9)


def _casts(make: Make) -> Iterator[SampleInput]:
    for dtype in (*DTYPES, torch.int8, torch.uint8):
        yield SampleInput(make(3, 35), dtype)


def _copies_of_casts(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype, copy=True)


def _own(name: str, function: Callable[..., Any], dtypes: tuple[torch.dtype, ...], generate: Callable) -> Op:
    def samples(dtype: torch.dtype) -> Iterator[SampleInput]:
        low, high = (None, None) if dtype == torch.bool else (0, 5) if not dtype.is_floating_point else (-4, 4)
        return generate(lambda *size: torch.testing.make_tensor(size, dtype=dtype, device="cpu", low=low, high=high))

    return Op(name, function, dtypes, samples)


OWN = (
    _own(
        "nn.functional.scaled_dot_product_attention.forms", F.scaled_dot_product_attention, HALF_AND_FLOAT, _attention
    ),
    _own("nn.functional.conv2d.forms", F.conv2d, HALF_AND_FLOAT, _convolution),
    _own("nn.functional.interpolate.forms", F.interpolate, HALF_AND_FLOAT, _interpolation),
    _own("nn.functional.gelu.forms", F.gelu, HALF_AND_FLOAT, _gelu),
    _own("index_put.forms", torch.index_put, DTYPES, _index_put),
    _own("__getitem__.forms", operator.getitem, DTYPES, _positions),
    _own("repeat_interleave.forms", torch.repeat_interleave, DTYPES, _repeats),
    _own("nn.functional.one_hot.forms", F.one_hot, (torch.int64,), _one_hot),
    _own("to.dtypes", _copies_of_casts, DTYPES, _casts),
)

# --- What is left out, and why

LEFT_OUT = {
    "broadcast_shapes": "no tensors in it",
    "jiterator_2inputs_2outputs": "for CUDA only",
    "jiterator_4inputs_with_extra_args": "for CUDA only",
    "jiterator_binary": "for CUDA only",
    "jiterator_binary_return_by_ref": "for CUDA only",
    "jiterator_unary": "for CUDA only",
    "torch._scaled_mm": "for CUDA only",
    "torch._scaled_mm_v2": "for CUDA only",
    "torch.ops.aten._efficient_attention_forward": "for CUDA only",
    "torch.ops.aten._flash_attention_forward": "for CUDA only",
    "bmm.triton_optimized": "for CUDA only",
    "sparse.mm.reduce": "sparse tensors; the card has strided ones",
    "sparse.sampled_addmm": "sparse tensors; the card has strided ones",
    "to_sparse": "sparse tensors; the card has strided ones",
    "view_as_real": "complex inputs only",
    "imag": "complex inputs only",
    "nn.functional.silu.complex": "complex inputs only",
}

# --- Whose values cannot be compared: shapes, dtypes and devices of the results are

SHAPES_ONLY = {
    **dict.fromkeys(
        ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"],
        "memory that nothing was written to",
    ),
    **dict.fromkeys(["resize_", "resize_as_"], "new elements are memory that nothing was written to"),
    **dict.fromkeys(
        [
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "normal",
            "normal.in_place",
            "normal.number_mean",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "uniform",
            "nn.functional.alpha_dropout",
            "nn.functional.dropout",
            "nn.functional.dropout2d",
            "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout.with_train",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.rrelu",
            "pca_lowrank",
            "svd_lowrank",
        ],
        "random",
    ),
}

# --- Whose tensors, apart from the first, PyTorch wants on the host

ARGUMENTS_ON_HOST = {"tensor_split"}

# --- What crosses between host and card because it has to, and is no computation on the CPU

CROSSES: dict[str, tuple[str, str]] = {
    "__getitem__": ("in", "lists of positions come from Python"),
    "narrow": ("out", "a tensor that says where the view begins is read"),
    "nn.functional.one_hot": ("out", "without a number of classes, the largest value says it"),
    "nn.functional.one_hot.forms": ("out", "compiled, whether the classes are in range is read before they are used"),
    **dict.fromkeys(
        [name for name, why in SHAPES_ONLY.items() if why == "random"],
        ("in", "numbers are drawn on the host: a seed gives the CPU's"),
    ),
    "bernoulli": ("in out", "whether probabilities are between 0 and 1 is read before numbers are drawn"),
}

# --- Ops that have to run on the card itself, in both modes and for every dtype
#
# Where the samples of PyTorch ask for what no card can do, ours stand in ("forms"): shapes that depend on values (masks
# of bools as positions, numbers of repeats, classes to be counted), or dropout in attention.

NAMED = {
    "pointwise": """
        abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh ceil clamp clamp_max clamp_min copysign
        cos cosh deg2rad div.floor_rounding div.no_rounding_mode div.trunc_rounding eq erf erfc exp exp2 expm1
        floor floor_divide fmax fmin fmod frac ge gt hypot isclose isfinite isinf isnan isneginf isposinf isreal
        le lerp log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
        lt masked_fill max.binary maximum min.binary minimum mul nan_to_num ne neg positive pow rad2deg
        reciprocal remainder round round.decimals_0 rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt
        square sub tan tanh true_divide trunc where xlogy __radd__ __rdiv__ __rmod__ __rmul__ __rpow__ __rsub__
        __rand__ __ror__ __rxor__ bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
        bitwise_xor nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.gelu.forms
        nn.functional.glu nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
        nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish
        nn.functional.prelu nn.functional.relu nn.functional.relu6 nn.functional.selu nn.functional.silu
        nn.functional.softplus nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink
        nn.functional.threshold
    """,
    "casts": """
        bfloat16 bool byte char float half int long to.dtypes
    """,
    "reductions and softmax": """
        all amax amin aminmax any argmax argmin cumprod cumsum linalg.vector_norm logsumexp max.reduction_no_dim
        max.reduction_with_dim mean min.reduction_no_dim min.reduction_with_dim norm norm.fro norm.inf prod std
        std.unbiased std_mean std_mean.unbiased sum sum_to_size var var.unbiased var_mean var_mean.unbiased
        softmax log_softmax nn.functional.softmin
    """,
    "norms": """
        nn.functional.layer_norm nn.functional.rms_norm nn.functional.group_norm nn.functional.batch_norm
 nn.functional.instance_norm nn.functional.normalize
        native_layer_norm
    """,
    "products, convolutions, pooling, attention": """
        mm bmm addmm addmm.decomposed addmv addbmm addr baddbmm matmul __rmatmul__ mv dot vdot inner outer kron
        einsum tensordot nn.functional.linear nn.functional.bilinear linalg.multi_dot linalg.vecdot
        nn.functional.conv1d nn.functional.conv2d nn.functional.conv2d.forms nn.functional.avg_pool1d
        nn.functional.avg_pool2d nn.functional.max_pool1d nn.functional.max_pool2d
        nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_max_pool1d
        nn.functional.adaptive_max_pool2d nn.functional.interpolate.nearest nn.functional.interpolate.bilinear
        nn.functional.interpolate.forms nn.functional.upsample_nearest nn.functional.upsample_bilinear
        nn.functional.scaled_dot_product_attention.forms
        nn.functional.multi_head_attention_forward
    """,
    "indexing": """
        nn.functional.embedding gather take_along_dim index_select __getitem__.forms index_put index_put.forms
        index_add scatter scatter_add scatter_reduce.amax scatter_reduce.amin scatter_reduce.mean
        scatter_reduce.prod scatter_reduce.sum index_copy index_fill slice_scatter select_scatter
        diagonal_scatter as_strided_scatter
    """,
    "shapes and views": """
        cat stack column_stack hstack vstack dstack split split.list_args split_with_sizes chunk unsafe_chunk
        unsafe_split hsplit vsplit dsplit unbind expand expand_as broadcast_to broadcast_tensors repeat
        repeat_interleave.forms tile flip fliplr flipud roll rot90 constant_pad_nd nn.functional.pad.constant
        nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.replicate_negative unfold
        nn.functional.unfold diagonal linalg.diagonal diag diag_embed diagflat tril triu
        meshgrid.list_of_tensors meshgrid.variadic_tensors nn.functional.pixel_shuffle
        nn.functional.pixel_unshuffle T mT t H mH as_strided as_strided.partial_views atleast_1d atleast_2d
        atleast_3d clone contiguous flatten movedim narrow permute ravel reshape reshape_as select slice squeeze
        squeeze.multiple transpose unflatten unsqueeze view view_as topk
    """,
    "factories": """
        arange linspace full full_like new_full ones ones_like new_ones zeros zeros_like new_zeros eye
        nn.functional.one_hot.forms fill zero_ scalar_tensor
    """,
    "losses": """
        nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss
    """,
    "random numbers": """
        bernoulli normal normal.in_place normal.number_mean rand_like randint randint_like randn randn_like
        uniform
    """,
}
MUST_BE_NATIVE = frozenset(name for names in NAMED.values() for name in names.split())


@cache
def every() -> dict[str, Op]:
    """All ops that are covered, by name and in order."""
    found = {op.name: op for op in OWN}
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        dtypes = tuple(dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu"))
        if name not in LEFT_OUT and dtypes:
            found[name] = Op(name, info.op, dtypes, _generator(info))
    return dict(sorted(found.items()))


def _generator(info: Any) -> Callable[[torch.dtype], Iterator[SampleInput]]:
    return lambda dtype: iter(info.sample_inputs("cpu", dtype, requires_grad=False))
