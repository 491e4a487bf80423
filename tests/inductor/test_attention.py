"""Attention as one op of the card: what it computes, how it is laid out, and that nothing else changes a bit."""

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.errors import Unsupported
from torch_spyre.ops.attention import written_out

SDPA = F.scaled_dot_product_attention
UNIT = 2.0**-24  # of fp32


def numbers(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype).to("spyre")


def on_the_host(given):
    return {name: each.cpu() if isinstance(each, torch.Tensor) else each for name, each in given.items()}


def is_right(got, q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Against doubles, with what fp32 may miss inside and one rounding on the way out."""
    q, k, v = (each.cpu().double() for each in (q, k, v))
    if enable_gqa:
        k, v = (each.repeat_interleave(q.size(-3) // each.size(-3), -3) for each in (k, v))
    scale = q.size(-1) ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale
    off = UNIT * (q.size(-1) + 2) * scale * (q.abs() @ k.abs().transpose(-2, -1))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        chosen = attn_mask.dtype == torch.bool
        scores = torch.where(attn_mask, scores, -torch.inf) if chosen else scores + attn_mask.double()
    off = torch.where(scores == -torch.inf, 0.0, off + UNIT * scores.abs()).amax(-1, keepdim=True)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)).nan_to_num(0.0)  # a row that attends to nothing is 0
    weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
    expected = weights @ v
    keys = k.size(-2)
    inside = (weights @ v.abs()) * (4 * off + UNIT * (2 * keys + 16 * (keys // 64 + 2)))
    rounding = 0.0 if got.dtype == torch.float32 else 2.0**-10
    bound = inside + rounding * (expected.abs() + inside) + 2.0**-40
    assert got.shape == expected.shape
    missed = (got.cpu().double() - expected).abs()
    assert (missed <= bound).all(), (missed / bound).max()


def compiled(function, *args, **settings):
    torch._dynamo.reset()
    with config.patch(**settings), torch.spyre.fallback("error"), torch.no_grad():
        return torch.compile(function, fullgraph=True)(*args)


def both_ways(args, **given):
    with torch.spyre.fallback("error"):
        eager = SDPA(*args, **given)
    is_right(eager, *args, **on_the_host(given))
    assert torch.equal(compiled(lambda *args: SDPA(*args, **given), *args).cpu(), eager.cpu())


SHAPES = [
    [(5, 64), (7, 64), (7, 64)],
    [(2, 40, 96), (2, 70, 96), (2, 70, 32)],
    [(1, 3, 130, 64), (1, 3, 200, 64), (1, 3, 200, 128)],
    [(2, 2, 1, 128), (2, 2, 191, 128), (2, 2, 191, 128)],
    [(1, 2, 33, 72), (1, 2, 65, 72), (1, 2, 65, 72)],
    [(1, 1, 20, 256), (1, 1, 20, 256), (1, 1, 20, 256)],
    [(1, 2, 9, 1), (1, 2, 3, 1), (1, 2, 3, 1)],
    [(2, 3, 10, 64), (1, 3, 10, 64), (1, 1, 10, 64)],
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_values(shapes, dtype):
    torch.manual_seed(0)
    both_ways([numbers(*shape, dtype=dtype) for shape in shapes])


@pytest.mark.parametrize(
    "mask", [(40, 70), (3, 1, 40, 70), (3, 1, 1, 70), (1, 6, 40, 70), (40, 1), (1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.float32], ids=str)
def test_masks(mask, dtype):
    torch.manual_seed(1)
    args = [numbers(3, 6, 40, 64), numbers(3, 2, 70, 64), numbers(3, 2, 70, 64)]
    given = torch.randn(mask)
    both_ways(args, attn_mask=(given > 0 if dtype == torch.bool else given.to(dtype)).to("spyre"), enable_gqa=True)


def test_causal():
    torch.manual_seed(2)
    for rows, keys in ((130, 130), (70, 200), (200, 70)):
        both_ways(
            [numbers(1, 4, rows, 64), numbers(1, 2, keys, 64), numbers(1, 2, keys, 64)], is_causal=True, enable_gqa=True
        )


@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(st.data())
def test_any_shape(data):
    size = lambda most: data.draw(st.integers(1, most))  # noqa: E731
    batch, heads, group, rows, keys, depth, width = (size(n) for n in (2, 3, 4, 70, 140, 140, 140))
    dtype = data.draw(st.sampled_from([torch.float16, torch.float32]))
    torch.manual_seed(0)
    args = [
        numbers(batch, heads * group, rows, depth, dtype=dtype),
        numbers(batch, heads, keys, depth, dtype=dtype),
        numbers(batch, heads, keys, width, dtype=dtype),
    ]
    given = {"enable_gqa": True, "is_causal": data.draw(st.booleans())}
    if not given["is_causal"] and data.draw(st.booleans()):
        given["attn_mask"] = (torch.rand(rows, keys) > 0.5).to("spyre")
    with torch.spyre.fallback("error"):
        is_right(SDPA(*args, **given), *args, **on_the_host(given))


def attended(steps):
    """The one attention among the steps."""
    (step,) = (step for step in steps if step["op"] == "attention")
    return step


def test_heads_that_share_keys_read_them_in_place(programs):
    """Without the op's own notion of groups, and with copies of the keys for each head."""
    torch.manual_seed(3)
    q, k, v = numbers(2, 8, 65, 64), numbers(2, 2, 100, 64), numbers(2, 2, 100, 64)

    def repeated(q, k, v):
        k, v = (each[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, 100, 64) for each in (k, v))
        return SDPA(q, k, v)

    results = []
    for function in (repeated, lambda q, k, v: SDPA(q, k, v, enable_gqa=True)):
        results.append(compiled(function, q, k, v).cpu())
        (step,) = programs.pop()
        assert step["extents"][-4:] == [65, 64, 100, 64]
        group = step["extents"].index(4)
        assert [operand["strides"][group] for operand in step["operands"][2:4]] == [0, 0]
    assert torch.equal(*results)


def test_projections_are_read_and_written_as_they_lie(programs):
    """q, k, v as views of [batch, length, heads * depth], the result as one."""
    torch.manual_seed(4)
    q, k, v = numbers(1, 100, 512), numbers(1, 100, 256), numbers(1, 100, 256)

    def heads(each):
        return each.unflatten(-1, (-1, 128)).transpose(1, 2)

    def attend(q, k, v):
        q, k, v = (heads(each * 2) for each in (q, k, v))
        return SDPA(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2) * 2

    got = compiled(attend, q, k, v)
    steps = programs.pop()
    attended(steps)
    assert (
        sum(step["op"] in ("copy", "restickify") for step in steps if not step["operands"][1].get("core_strides")) == 0
    )
    one = SDPA(*(heads(each * 2) for each in (q, k, v)), is_causal=True, enable_gqa=True)
    assert torch.equal(got.cpu(), (one.transpose(1, 2).flatten(2) * 2).cpu())


def test_a_cache_is_read_in_place(programs):
    torch.manual_seed(5)
    keys, values = numbers(2, 2, 192, 64), numbers(2, 2, 192, 64)
    q = numbers(2, 8, 1, 64)
    keep = (torch.arange(192) < 130).to("spyre")[None, None, None]
    got = compiled(lambda q, k, v, m: SDPA(q, k, v, attn_mask=m, enable_gqa=True), q, keys, values, keep)
    assert [step["op"] for step in programs.pop()] == ["attention"]
    part = compiled(lambda q, k, v: SDPA(q, k[:, :, :130], v[:, :, :130], enable_gqa=True), q, keys, values)
    assert [step["op"] for step in programs.pop()] == ["attention"]
    is_right(got, q, keys, values, keep.cpu(), enable_gqa=True)
    assert torch.equal(got.cpu(), part.cpu())


def test_a_cache_is_written_in_place(programs):
    """New keys and values are all that goes there."""
    torch.manual_seed(12)
    keys, values = numbers(1, 2, 192, 64), numbers(1, 2, 192, 64)
    q, new, slot = numbers(1, 8, 1, 64), numbers(1, 2, 1, 64), torch.tensor([130], device="spyre")
    expected = [each.cpu().index_copy(2, slot.cpu(), new.cpu()) for each in (keys, values)]

    def attend(q, new, slot):
        keys.index_copy_(2, slot, new)
        values.index_copy_(2, slot, new)
        return SDPA(q, keys, values, enable_gqa=True)

    got = compiled(attend, q, new, slot)
    assert not [step for step in programs.pop() if step["op"] == "copy"]
    assert torch.equal(keys.cpu(), expected[0]) and torch.equal(values.cpu(), expected[1])
    is_right(got, q, *expected, enable_gqa=True)


def block(x, wq, wk, wv, wo):
    q, k, v = ((x @ w).unflatten(-1, (-1, 64)).transpose(1, 2) for w in (wq, wk, wv))
    return x + SDPA(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2) @ wo


def test_plans_change_no_bit():
    torch.manual_seed(6)
    args = [numbers(2, 80, 256), numbers(256, 256), numbers(256, 128), numbers(256, 128), numbers(256, 256)]
    args = [args[0], *(each / 16 for each in args[1:])]
    expected = compiled(block, *args).cpu()
    for given in ({"sencores": 1}, {"sencores": 7}, {"lx_planning": False}, {"sencores": 5, "lx_planning": False}):
        assert torch.equal(compiled(block, *args, **given).cpu(), expected), given


def test_cores_share_rows_and_heads_alone(programs):
    compiled(lambda q, k, v: SDPA(q, k, v, enable_gqa=True), numbers(1, 2, 512, 64), *[numbers(1, 1, 512, 64)] * 2)
    (step,) = programs.pop()
    assert step["slices"][-3:] == [1, 1, 1]
    assert torch.tensor(step["slices"]).prod() > 16


def test_gradients_take_ops_that_have_them(programs):
    torch.manual_seed(7)
    args = [numbers(1, 2, 30, 64).requires_grad_() for _ in range(3)]
    host = [each.detach().cpu().float().requires_grad_() for each in args]
    for attend in (SDPA, torch.compile(SDPA, fullgraph=True)):
        out = attend(*args, is_causal=True)
        found = torch.autograd.grad(out.float().sum(), args)
        wanted = torch.autograd.grad(SDPA(*host, is_causal=True).sum(), host)
        for got, want in zip(found, wanted, strict=True):
            assert torch.allclose(got.cpu().float(), want, atol=2e-2, rtol=2e-2)
    assert not any(step["op"] == "attention" for steps in programs for step in steps)
    with torch.no_grad():
        compiled(SDPA, *args)
    assert attended(programs.pop())


def test_gradients_of_functions():
    """In forward mode, and mapped."""
    torch.manual_seed(11)
    x, tangent = torch.randn(2, 5, 64), torch.randn(2, 5, 64)

    def loss(x):
        return (SDPA(x, x * 2, x) ** 2).sum()

    ways = [
        lambda x, t: torch.func.jvp(loss, (x,), (t,))[1],
        lambda x, t: torch.func.grad(loss)(x),
        lambda x, t: torch.func.vmap(torch.func.grad(loss))(x),
    ]
    for way in ways:
        got, expected = way(x.to("spyre"), tangent.to("spyre")).cpu(), way(x, tangent)
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_what_the_op_does_not_take_is_written_out():
    """Keys with more batches than the queries have."""
    torch.manual_seed(8)
    q, k, v = numbers(1, 2, 10, 64), numbers(3, 2, 20, 64), numbers(3, 2, 20, 64)
    with torch.spyre.fallback("error"):
        is_right(SDPA(q, k, v), q, k, v)


def test_the_op_and_its_written_form_agree():
    torch.manual_seed(9)
    args = [numbers(1, 4, 70, 64), numbers(1, 2, 90, 64), numbers(1, 2, 90, 64)]
    with torch.spyre.fallback("error"):
        is_right(written_out(*args, None, True, 0.2, True), *args, is_causal=True, scale=0.2, enable_gqa=True)
        is_right(
            SDPA(*args, is_causal=True, scale=0.2, enable_gqa=True), *args, is_causal=True, scale=0.2, enable_gqa=True
        )


def test_rows_in_tiles():
    torch.manual_seed(10)
    args = [numbers(1, 2, 64, 64) for _ in range(3)]

    def hinted(causal):
        def attend(q, k, v):
            with spyre_hint(named_dims=["B", "H", "Q", "E"], num_tiles_per_dim={"Q": 2}):
                return SDPA(q, k, v, is_causal=causal)

        return attend

    assert torch.equal(compiled(hinted(False), *args).cpu(), SDPA(*args).cpu())
    with pytest.raises(Exception, match="attention, which counts positions") as refused:
        compiled(hinted(True), *args)
    assert Unsupported.__name__ in str(refused.type) + str(refused.value)


CODE = """
import hashlib, torch
import torch.nn.functional as F

def digest():
    torch.manual_seed(0)
    found = hashlib.sha256()
    for q, k, causal in (((2, 4, 70, 64), (2, 2, 130, 64), True), ((1, 8, 1, 72), (1, 2, 200, 72), False)):
        args = [torch.randn(shape).half().to("spyre") for shape in (q, k, k)]
        out = F.scaled_dot_product_attention(*args, is_causal=causal, enable_gqa=True)
        found.update(out.cpu().view(torch.int16).numpy().tobytes())
    return found.hexdigest()
"""


def test_strict_mode_and_plain_machines_give_the_same_bits(program):
    here: dict = {}
    exec(CODE, here)
    settings = {"SPYRE_CARD": "strict", "SPYRE_SIMD": "portable", "SPYRE_THREADS": "1", "SENCORES": "5"}
    assert program(CODE + "print(digest())", **settings).strip() == here["digest"]()
