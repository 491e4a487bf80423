"""Attention: what it takes, what it refuses, and rows that attend to nothing."""

import pytest
import torch
import torch.nn.functional as F

SDPA = F.scaled_dot_product_attention
BOTH = [SDPA, torch.compile(SDPA)]


def numbers(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype).to("spyre")


def compared(attend, *args, **given):
    """Against fp32 on the CPU: the result is rounded once, from fp32."""
    torch._dynamo.reset()
    with torch.spyre.fallback("error"):
        got = attend(*args, **given).cpu().float()
    given = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    expected = SDPA(*(each.cpu().float() for each in args), **given)
    assert got.shape == expected.shape
    assert ((got - expected).abs() <= 2**-9 * expected.abs() + 2**-16).all(), (got - expected).abs().max()


@pytest.mark.parametrize("attend", BOTH, ids=["eager", "compiled"])
def test_masks(attend):
    torch.manual_seed(0)
    q, k, v = numbers(2, 4, 33, 64), numbers(2, 4, 40, 64), numbers(2, 4, 40, 80)
    keep = torch.rand(33, 40) > 0.3
    keep[5] = False  # a row without a key is 0
    compared(attend, q, k, v, attn_mask=keep.to("spyre"))
    compared(attend, q, k, v, attn_mask=torch.randn(33, 40).to("spyre"))
    compared(attend, q, k, v, is_causal=True, scale=0.3)


@pytest.mark.parametrize("shapes", [((2, 0, 8), (2, 4, 8)), ((2, 4, 8), (2, 0, 8)), ((2, 4, 0), (2, 5, 0))], ids=str)
def test_nothing_to_attend_to(shapes):
    q, k = (numbers(*shape) for shape in shapes)
    compared(SDPA, q, k, k)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ([torch.ones(2, 4, 8, dtype=torch.int32, device="spyre")] * 3, {}), "need one real dtype"),
        (
            lambda: ([numbers(4, 8), numbers(4, 8, dtype=torch.float32), numbers(4, 8)], {}),
            "need one real dtype",
        ),
        (
            lambda: ([numbers(4, 8)] * 3, {"attn_mask": numbers(4, 4), "is_causal": True}),
            "attn_mask and is_causal=True exclude each other",
        ),
        (lambda: ([numbers(8)] * 3, {}), r"need 2 dimensions, they have \[1, 1, 1\]"),
        (
            lambda: ([numbers(4, 8)] * 3, {"attn_mask": torch.ones(4, 4, dtype=torch.int32, device="spyre")}),
            "attn_mask is",
        ),
        (
            lambda: ([numbers(1, 3, 4, 8), *[numbers(1, 2, 4, 8)] * 2], {"enable_gqa": True}),
            "2 heads of keys do not divide 3 heads of queries",
        ),
    ],
    ids=["integers", "mixed", "both", "flat", "mask", "heads"],
)
def test_refuses(make, said):
    args, given = make()
    with pytest.raises(RuntimeError, match=said):
        SDPA(*args, **given)


@pytest.mark.parametrize("sizes", [((3, 4), (3, 5), (3, 4)), ((3, 4), (3, 4), (2, 4))], ids=["depth", "length"])
def test_sizes_that_do_not_fit_are_an_error(sizes):
    query, key, value = (torch.ones(1, 1, *size, device="spyre") for size in sizes)
    with pytest.raises(RuntimeError, match="size"):
        torch.nn.functional.scaled_dot_product_attention(query, key, value)
