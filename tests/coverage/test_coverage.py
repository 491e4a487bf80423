"""A part of `make coverage` that is quick: one sample per op and dtype, in this process."""

import pytest

EAGER = """
    abs add addcmul addmm all amax any argmax atan2 baddbmm bitwise_and bmm cat ceil chunk clamp clone copysign
    cumsum diagonal div.floor_rounding einsum eq erf exp expand fill flip floor_divide fmod full_like gather
    index_put.forms index_select isnan kron le lerp log1p log_softmax logaddexp logical_and logsumexp masked_fill matmul
    maximum mean movedim mul nan_to_num neg nn.functional.conv2d.forms nn.functional.gelu.forms
    nn.functional.layer_norm nn.functional.linear nn.functional.mse_loss nn.functional.pad.reflect
    nn.functional.rms_norm nn.functional.scaled_dot_product_attention.forms nn.functional.silu nn.functional.softplus
    pow prod remainder repeat reshape roll rsqrt sigmoid softmax split sqrt squeeze stack std sum take_along_dim tanh
    to.dtypes topk transpose tril unfold var where
"""
INTEGERS = """
    abs add all amax any argmax bitwise_and cat clamp cumsum div.floor_rounding eq exp flip floor_divide fmod gather
    index_put.forms index_select isnan masked_fill maximum mean mul prod remainder sum to.dtypes topk tril where
"""
COMPILED = """
    add addmm amax cat cumsum exp flip gather index_put.forms matmul mean nn.functional.conv2d.forms
    nn.functional.gelu.forms nn.functional.layer_norm nn.functional.scaled_dot_product_attention.forms prod softmax sum
    topk where
"""


def run(name: str, mode: str, *dtypes: str) -> None:
    """The middle one of an op's samples is right, and the card did it."""
    import torch

    from tests.coverage.check import check
    from tests.coverage.ops import MUST_BE_NATIVE, every

    op = every()[name]
    assert name in MUST_BE_NATIVE
    for dtype in [dtype for dtype in op.dtypes if str(dtype).removeprefix("torch.") in dtypes]:
        (sample,) = op.samples(dtype, 1)
        torch._dynamo.reset()
        result = check(op, dtype, 0, sample, mode)
        assert result.outcome == "right" and result.native, result


@pytest.mark.parametrize("name", EAGER.split())
def test_eager(name: str) -> None:
    run(name, "eager", "float16", "float32")


@pytest.mark.parametrize("name", INTEGERS.split())
def test_integers(name: str) -> None:
    run(name, "eager", "int64")


@pytest.mark.parametrize("name", COMPILED.split())
def test_compiled(name: str) -> None:
    run(name, "compiled", "float16")


def test_page_says_that_named_ops_are_native() -> None:
    from tests.coverage.ops import MUST_BE_NATIVE
    from tests.coverage.page import PATH, native_ops

    assert not MUST_BE_NATIVE - native_ops(PATH.read_text())
