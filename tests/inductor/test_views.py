"""A size seen in another size: strides as PyTorch finds them."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torch_spyre._inductor.loop_ir.builder import Value
from torch_spyre._inductor.lowerings.views import _strides_as


@st.composite
def views(draw):
    """A strided tensor, and another size with as many elements."""
    x = torch.empty(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4)), device="meta")
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["transpose", "narrow", "expand"]))
        if kind == "expand":
            x = x.unsqueeze(0).expand(2, *x.shape)
        elif x.dim():
            dim = draw(st.integers(0, x.dim() - 1))
            x = x.transpose(0, dim) if kind == "transpose" else x.narrow(dim, 0, max(1, x.size(dim) - 1))
    size, rest = [], x.numel()
    while rest > 1:
        size.append(draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
        rest //= size[-1]
        assume(len(size) < 8)
    return x, size


@settings(max_examples=500, deadline=None)
@given(views())
def test_views_are_pytorchs(case):
    x, size = case
    found = _strides_as(Value("x", x.dtype, tuple(x.shape), tuple(x.stride())), size)
    try:
        want = x.view(size).stride()
    except RuntimeError:
        assert found is None
        return
    # Along a dimension of one there is nowhere to go.
    assert found is not None
    assert [s for s, n in zip(found, size, strict=True) if n > 1] == [
        s for s, n in zip(want, size, strict=True) if n > 1
    ]
