"""A part of `make coverage` that is quick: one sample per op and dtype, in this process."""

import pytest

EAGER = """
    abs add addcmul addmm all amax any arange argmax atan2 baddbmm bitwise_and bmm cat ceil chunk clamp clone copysign
    cumsum diagonal div.floor_rounding einsum eq erf exp expand fill flip floor_divide fmod full_like gather index_add
    index_put index_select isnan kron le lerp log1p log_softmax logaddexp logical_and logsumexp masked_fill matmul
    maximum mean movedim mul nan_to_num narrow neg nn.functional.avg_pool2d nn.functional.conv2d nn.functional.embedding
    nn.functional.gelu nn.functional.layer_norm nn.functional.linear nn.functional.mse_loss nn.functional.pad.reflect
    nn.functional.rms_norm nn.functional.scaled_dot_product_attention.forms nn.functional.silu nn.functional.softplus
    pow prod remainder repeat reshape roll rsqrt scatter_add sigmoid softmax split sqrt squeeze stack std sum
    take_along_dim tanh topk transpose tril unfold var where
"""
COMPILED = """
    add addmm amax cat cumsum exp flip gather index_put matmul mean nn.functional.gelu
    nn.functional.layer_norm nn.functional.scaled_dot_product_attention.forms pow scatter_add softmax sum topk where
"""


def run(name: str, mode: str) -> None:
    """The middle one of an op's samples, for the first and the last dtype that it takes."""
    import torch

    from tests.coverage.check import check
    from tests.coverage.ops import MUST_BE_NATIVE, every

    op = every()[name]
    assert name in MUST_BE_NATIVE
    torch._dynamo.reset()
    for dtype in {op.dtypes[0], [d for d in op.dtypes if d != torch.bool][-1]}:
        (sample,) = op.samples(dtype, 1)
        result = check(op, dtype, 0, sample, mode)
        assert result.outcome == "right" and not result.elsewhere(), result


@pytest.mark.parametrize("name", EAGER.split())
def test_eager(name: str) -> None:
    run(name, "eager")


@pytest.mark.parametrize("name", COMPILED.split())
def test_compiled(name: str) -> None:
    run(name, "compiled")


def test_page_says_that_named_ops_are_native() -> None:
    from tests.coverage.ops import MUST_BE_NATIVE
    from tests.coverage.page import PATH, native_ops

    assert not MUST_BE_NATIVE - native_ops(PATH.read_text())
