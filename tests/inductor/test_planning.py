"""Plans of whole kernels: what is not made at all, how values lie, what neighbours agree on. No result changes."""

import gc

import pytest
import torch
import torch.nn.functional as F

from torch_spyre import timing
from torch_spyre._inductor import compiler, config
from torch_spyre._inductor.loop_ir import Access, Buffer, Kernel, LoopOp
from torch_spyre._inductor.planning import tile_products
from torch_spyre._inductor.planning.core_tiles import CoreTile, lx_placement
from torch_spyre._inductor.planning.search_space import repeated
from torch_spyre.ops.attention import written_out


def run(function, args, **settings):
    torch._dynamo.reset()
    with config.patch(**settings), torch.spyre.fallback("error"):
        result = torch.compile(function, fullgraph=True)(*args)
        return result.cpu() if isinstance(result, torch.Tensor) else [each.cpu() for each in result]


def half(*shape):
    return torch.randn(shape).half().to("spyre")


def grouped_attention(q, k, v):
    k, v = (each[:, :, None].expand(-1, -1, 3, -1, -1).reshape(q.shape[0], -1, *each.shape[-2:]) for each in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def rounded_late(x, w):
    return (torch.softmax(x.float(), -1) * 3).to(x.dtype).transpose(0, 1).contiguous() @ w


CASES = [
    (grouped_attention, [(2, 6, 65, 64), (2, 2, 65, 64), (2, 2, 65, 64)]),
    (rotated, [(1, 4, 33, 128), (1, 1, 33, 128), (1, 1, 33, 128)]),
    (rounded_late, [(70, 130), (70, 96)]),
]


@pytest.mark.parametrize(("function", "shapes"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_copies_that_are_not_made_change_nothing(function, shapes, programs):
    torch.manual_seed(0)
    args = [half(*shape) for shape in shapes]
    together = run(function, args)
    moves = [step for step in programs.pop() if step["op"] in ("copy", "restickify")]
    moves = [step for step in moves if step["operands"][0]["format"] != "IEEE_INT32"]  # positions of a causal mask
    # One part of the rotation is a copy of its operand, and a product wants rows along the sticks; everything else is
    # read where it is or made where it goes.
    assert len(moves) == (0 if function is grouped_attention else 1), moves
    for lx in (True, False):
        for cores in (1, 7, 32):
            assert torch.equal(run(function, args, lx_planning=lx, sencores=cores), together)
    if function is not grouped_attention:  # PyTorch's form of attention rounds elsewhere
        assert torch.equal(run(function, args, planning="op_by_op"), together)


def copied_twice(x):
    a = x * 2
    p, q = (torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device) for _ in range(2))
    p.copy_(a.t())
    q.copy_(a.t())
    q.add_(1)
    return p @ x, q @ x


def test_one_value_in_two_places():
    torch.manual_seed(0)
    x = half(64, 70)
    for got, expected in zip(run(copied_twice, [x]), copied_twice(x), strict=True):
        assert torch.equal(got, expected.cpu())


def test_sticks_of_other_dimensions_keep_their_place():
    """Both are one stick wide where they are walked: as the steps go, either could lie where the other does."""

    def doubled_in_place(x, parts):
        y = x.softmax(0)
        parts.add_(parts)
        return y

    torch.manual_seed(0)
    given = [half(256, 256) for _ in range(2)]
    given[1].copy_(given[0])
    expected = run(doubled_in_place, [given[0], given[0].view(256, 64, 4)], planning="op_by_op")
    assert torch.equal(run(doubled_in_place, [given[1], given[1].view(256, 64, 4)], sencores=1), expected)
    assert torch.equal(given[0].cpu(), given[1].cpu())


def test_an_argument_that_is_read_with_gaps_is_not_copied_with_them():
    """A copy in LX that has every other row serves no reader of all rows."""

    def rows(x):
        return torch.relu(x[:, 0:63:2]), x[:, 0:63] * 2, x[:, 0:63] + 1

    torch.manual_seed(0)
    x = half(32, 64, 512)
    expected = run(rows, [x], lx_planning=False)
    run(lambda x: torch.tanh(x * 3) * 2 + torch.exp(x), [x + 1])  # leaves something else in LX
    for got, right in zip(run(rows, [x]), expected, strict=True):
        assert torch.equal(got, right)


def test_scores_stay_with_their_head(programs):
    q, k, v = half(1, 32, 256, 128), half(1, 8, 256, 128), half(1, 8, 256, 128)
    run(lambda q, k, v: written_out(q, k, v, None, False, 0.125, True), [q, k, v])
    steps = programs.pop()
    first, second = (step for step in steps if step["op"] == "matmul")
    assert "lx" in first["operands"][0] and "lx" in second["operands"][1]
    large = [o for step in steps for o in step["operands"] if "argument" in o and o["format"] == "IEEE_FP32"]
    assert not large, "scores went through device memory"


def test_weights_along_the_depth_are_taken_as_rows(programs):
    x, w = half(3, 192), half(1000, 192)
    got = run(lambda x, w: x @ w.t(), [x, w])
    (product,) = (step for step in programs.pop() if step["op"] == "matmul")
    assert product["extents"] == [1000, 3, 192]
    assert torch.equal(got, run(lambda x, w: x @ w.t().contiguous().clone(), [x, w]))


@pytest.mark.parametrize("shape", [(64, 130), (3, 40, 200)], ids=str)
def test_public_planning_gives_the_same(shape):
    torch.manual_seed(0)
    x, w = half(*shape), half(shape[-1], 96)

    def block(x, w):
        return torch.softmax(F.silu(F.layer_norm(x, x.shape[-1:]) @ w), -1).float().sum(-2)

    assert torch.equal(run(block, [x, w], planning="op_by_op"), run(block, [x, w]))


def test_public_planning_launches_every_product_by_itself(programs):
    x, w, v = half(64, 128), half(128, 192), half(192, 64)
    run(lambda x, w, v: torch.relu(x @ w) @ v + 1, [x, w, v], planning="op_by_op")
    launched = [[step["op"] for step in steps] for steps in programs]
    assert launched == [["matmul"], ["elementwise"], ["matmul"], ["elementwise"]]


def swiglu(x, gate, up, down):
    return (F.silu(x @ gate) * (x @ up)) @ down


@pytest.mark.parametrize("cores", [1, 5, 32])
def test_products_in_tiles_of_columns(cores, programs, monkeypatch):
    torch.manual_seed(0)
    args = [half(70, 96), half(96, 256), half(96, 256), half(256, 128)]
    whole = run(swiglu, args, sencores=cores)
    assert [step["extents"][1] for step in programs.pop() if step["op"] == "matmul"] == [256, 256, 128]
    monkeypatch.setattr(tile_products, "_tiles", lambda *_: 2)
    assert torch.equal(run(swiglu, args, sencores=cores), whole)
    products = [step for step in programs.pop() if step["op"] == "matmul"]
    assert [step["extents"][1] for step in products] == [128] * 4 + [128]
    assert all("lx" in step["operands"][0] for step in products[:4])


def test_tiles_where_the_accumulators_overflow():
    """The gate of Granite 3.3 8B, 512 rows: five tiles that 8 cores share evenly; a deep or a small one is left."""
    assert [_tiles_of(m, n, k) for m, n, k in ((512, 12800, 4096), (512, 12800, 65536), (512, 4096, 4096))] == [5, 1, 1]


def _tiles_of(m, n, k):
    buffers = {"y": Buffer("y", torch.float16, (m, n), (n, 1))}
    op = LoopOp(
        "matmul", (m, n, k), Access("y", (n, 1, 0)), (Access("x", (k, 0, 1)), Access("w", (0, 1, n))), reduced=1
    )
    return tile_products._tiles(Kernel("k", buffers, [op]), op, 32)


@pytest.mark.parametrize("function", [grouped_attention, swiglu], ids=lambda each: each.__name__)
def test_no_plan_is_faster_than_the_bound(function, monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    shapes = CASES[0][1] if function is grouped_attention else [(64, 256), (256, 640), (256, 640), (640, 256)]
    for settings in ({}, {"sencores": 3}):
        with timing.record() as found:
            run(function, [half(*shape) for shape in shapes], plan_bound=True, **settings)
        (launch,) = found.launches
        modelled = sum(step["us"] for step in launch.plan.step_times())
        assert 0 < launch.code["bound_us"] <= modelled + 1e-6


def test_equal_layers_are_found():
    assert repeated(list("xxabcabcabcabcyy")) == (2, 3, 14)
    assert repeated(list("abcdefgh")) == (0, 0, 0)
    assert repeated(list("abcabcabc")) == (0, 0, 0)  # too few to be worth it


def part(origin, size, *apart):
    return CoreTile(origin, apart, size)


def test_what_a_core_may_keep():
    rows = part((0, 0), (2, 64), (0, 0), (2, 0), (4, 0))
    assert lx_placement([rows], [rows]).size == (2, 64)
    assert lx_placement([rows], [part((0, 0), (2, 64), (0, 0), (2, 0))]), "fewer cores may read"
    assert lx_placement([part((0, 0), (2, 64), (0, 0))], [rows]) is None, "nobody wrote what the others read"
    assert lx_placement([rows], [part((0, 0), (3, 64), (0, 0), (2, 0), (4, 0))]) is None, "a row of the neighbour's"
    assert lx_placement([rows], [part((1, 0), (1, 64), (0, 0), (2, 0), (4, 0))]), "a part of its own"
    halves = [part((0, 0), (1, 64), (0, 0), (2, 0)), part((1, 0), (1, 64), (0, 0), (2, 0))]
    assert lx_placement(halves, [rows][:0]).size == (2, 64)
    across = [part((0, 0), (1, 64), (0, 0), (1, 0)), part((1, 0), (1, 64), (0, 0))]
    assert lx_placement(across, []) is None, "core 0 would write what core 1 has"


@pytest.mark.parametrize("rows", [(3,), (40,), (2, 20), (2, 3, 4), (1, 1)], ids=str)
@pytest.mark.parametrize("columns", [1, 320, 1000])
def test_products_with_weights_along_the_depth(rows, columns):
    """Eager and compiled, however the rows lie: as with weights along the columns."""
    torch.manual_seed(0)
    x, w = half(*rows, 256), half(columns, 256)
    expected = F.linear(x.cpu().float(), w.cpu().float())
    turned = F.linear(x, w)
    assert torch.equal(run(F.linear, [x, w]), turned.cpu())
    bound = 2**-9 * expected.abs() + 256 * 2**-24 * (x.cpu().float().abs() @ w.cpu().float().abs().t())
    assert ((turned.cpu().float() - expected).abs() <= bound).all()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_goes_on_as_it_was(enabled, monkeypatch):
    """It is paused while a kernel is compiled, also where that fails."""
    during = []

    def fail(kernel, signature):
        during.append(gc.isenabled())
        raise ValueError("no such kernel")

    monkeypatch.setattr(compiler, "_compiled", fail)
    try:
        gc.enable() if enabled else gc.disable()
        with pytest.raises(ValueError, match="no such kernel"):
            compiler.compile_kernel(Kernel("none", {}, []), ())
        assert (during, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()
