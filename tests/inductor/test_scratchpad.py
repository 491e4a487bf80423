"""What stays in LX changes when device memory is read and written, and no result."""

import pytest
import torch

from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.errors import Unsupported

SHAPES = [(256, 1024), (64, 64), (100, 130), (3, 5, 200), (2048, 320)]


def chain(a, b, c):
    return ((a + b) * c - a).relu() + b


def softmax(a, b, c):
    return torch.softmax(a, -1)


def norms(a, b, c):
    return torch.nn.functional.layer_norm(a, a.shape[-1:]) * b + torch.nn.functional.rms_norm(c, c.shape[-1:])


def block(a, b, c):
    return torch.softmax((torch.tanh(a) * c) @ b.transpose(-1, -2), -1) @ c


def run(function, args, cores=32, lx=True):
    torch._dynamo.reset()
    with config.patch(lx_planning=lx, sencores=cores), torch.spyre.fallback("error"):
        return torch.compile(function, fullgraph=True)(*args).cpu()


def operands_in_lx(programs) -> int:
    return sum("lx" in operand for steps in programs for step in steps for operand in step["operands"])


@pytest.mark.parametrize("function", [chain, softmax, norms, block])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_do_not_depend_on_what_stays(function, shape, programs):
    torch.manual_seed(0)
    args = [torch.randn(shape).half().to("spyre") for _ in range(3)]
    kept = run(function, args)
    assert operands_in_lx(programs)
    programs.clear()
    assert torch.equal(kept, run(function, args, lx=False))
    assert not operands_in_lx(programs)
    for cores in (1, 5, 24):
        assert torch.equal(kept, run(function, args, cores=cores))


def traffic(steps) -> int:
    return sum("argument" in operand for step in steps for operand in step["operands"])


def test_a_chain_reads_its_inputs_and_writes_its_result(programs):
    args = [torch.randn(256, 1024).half().to("spyre") for _ in range(3)]
    run(chain, args)
    (steps,) = programs
    # a + b, * c, - a, relu, + b: a and b are copied first; then c is read, and the result is written.
    assert (len(steps), traffic(steps)) == (7, 4)
    places = {operand["lx"] for step in steps for operand in step["operands"] if "lx" in operand}
    assert places == {0, 16384, 32768}  # a, b, and the rest takes the place of what it is made from


def test_what_does_not_fit_goes_through_device_memory(programs):
    def at_once(a, b, c):
        with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 1}):
            return chain(a, b, c)

    args = [torch.randn(2048, 16384).half().to("spyre") for _ in range(3)]
    run(at_once, args)
    assert not operands_in_lx(programs)


def sums_and_turned(a, b, c):
    y = torch.exp(a)
    return y.sum(0) + y.T.contiguous()[:, 0]


def gram(a, b, c):
    y = a * 2
    return y @ y.transpose(-1, -2) + y.sum()


def shifted(a, b, c):
    y = a * b
    return y[1:] + y[:-1].flip(0)


@pytest.mark.parametrize("function", [sums_and_turned, gram, shifted])
def test_cores_that_need_what_others_wrote_find_it(function, programs):
    """LX is each core's own: what a core reads of another's part goes through device memory, or is not what it was."""
    torch.manual_seed(0)
    args = [torch.randn(256, 256).half().to("spyre") for _ in range(3)]
    assert torch.equal(run(function, args), run(function, args, lx=False))
    assert torch.equal(run(function, args, cores=7), run(function, args, lx=False))


def tiled(x, tiles):
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": tiles}):
        return torch.softmax(x, -1)


@pytest.mark.parametrize("shape", [(2048, 512), (96, 130)], ids=str)
def test_tiles_one_after_the_other_give_the_same(shape, programs):
    x = torch.randn(shape).half().to("spyre")
    whole = run(lambda x: torch.softmax(x, -1), [x])
    steps = len(programs.pop())
    for tiles in (2, 8):
        assert torch.equal(whole, run(lambda x, tiles=tiles: tiled(x, tiles), [x]))
        assert len(programs.pop()) == tiles * steps


def test_tiles_make_a_chain_fit(programs):
    x = torch.randn(4096, 4096).half().to("spyre")
    whole = run(lambda x: tiled(x, 1), [x], cores=4)
    assert not any(step["op"] == "elementwise" and all("lx" in o for o in step["operands"]) for step in programs.pop())
    assert torch.equal(whole, run(lambda x: tiled(x, 16), [x], cores=4))
    # Each of 16 tiles is read once and written once.
    assert traffic(programs.pop()) == 16 * 2


def test_loops_nest(programs):
    def twice(x):
        with spyre_hint(named_dims=["A", "M", "N"], num_tiles_per_dim={"A": 2}):
            y = x * 2
            with spyre_hint(num_tiles_per_dim={"M": 4}):
                return torch.softmax(y, -1) + 1

    x = torch.randn(4, 128, 192).half().to("spyre")
    assert torch.equal(run(twice, [x]), run(lambda x: torch.softmax(x * 2, -1) + 1, [x]))


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ({"num_tiles_per_dim": {"Q": 2}}, "has no dimension of this name"),
        ({"num_tiles_per_dim": {"M": 7}}, "M has 96 points in .*, which 7 tiles do not divide"),
        ({"num_tiles_per_dim": {"N": 2}}, "folds it"),
        ({"work_div": {"Q": 2}}, "has no dimension Q"),
        ({"work_div": {"M": 32, "N": 2}}, "that is 64 cores, there are 32"),
        ({"work_div": {"N": 32}}, "N has 130 points in sticks of 64, which do not divide over 32 cores"),
    ],
    ids=str,
)
def test_hints_that_cannot_be_met_say_why(hint, message):
    def hinted(x):
        with spyre_hint(named_dims=["M", "N"], **hint):
            return (torch.exp(x) + x).sum(-1, keepdim=True) if "tiles" in str(hint) else torch.exp(x)

    x = torch.randn(96, 130).half().to("spyre")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message) as raised:
        torch.compile(hinted, fullgraph=True)(x)
    assert isinstance(raised.value, Unsupported) or isinstance(raised.value.__cause__, Unsupported)
    assert "test_scratchpad.py" in str(raised.value)


def added_last_row(x):
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = x * 2
        return y + y[-1:].expand(64, 128)


def gram_in_tiles(x):
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = x * 2
        with spyre_hint(named_dims=["M", "O", "N"]):
            return y @ y.t()


@pytest.mark.parametrize(
    ("function", "op"), [(added_last_row, "add"), (gram_in_tiles, "matmul")], ids=["last row", "gram"]
)
def test_tiles_that_need_one_another_are_refused(function, op):
    x = torch.randn(64, 128).half().to("spyre")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"'M': 4.*: {op} over .*test_scratchpad.py.* needs what other tiles make"):
        torch.compile(function, fullgraph=True)(x)
    with config.patch(ignore_hints=True):
        assert torch.equal(run(function, [x]), function(x).cpu())


def test_tiles_may_read_whole_what_is_made_outside():
    def last_row_of_outside(x):
        y = x * 2
        with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
            return y + y[-1:].expand(64, 128)

    x = torch.randn(64, 128).half().to("spyre")
    assert torch.equal(run(last_row_of_outside, [x]), last_row_of_outside(x).cpu())


def by_rows(x, v, _):
    """Operands of the later ops lie in other sticks: copies of them are made before the loop."""
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = torch.cos(x)
        return torch.exp(y * v[:, None]) + y


def by_own_rows(x, v, _):
    """The copy is of what the loop itself makes, and turns with it."""
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = torch.cos(x)
        return y * (y.sum(1) * v)[:, None]


def against_the_grain(x, _, w):
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = torch.cos(x)
        return torch.exp(y * w.t()) + y


def made_before(x, _, w):
    """In a loop that reads it in every turn, nothing takes its place."""
    u = torch.exp(w).t().contiguous()
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        return torch.sin((x + u) * 2) + 1


def read_behind(x, _, w):
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        y = torch.sin((x + 1) * 2)
    return y @ w


@pytest.mark.parametrize("function", [by_rows, by_own_rows, against_the_grain, made_before, read_behind])
@pytest.mark.parametrize("shape", [(256, 128), (40, 130)], ids=str)
def test_tile_loops_with_copies_and_values_from_outside(function, shape):
    torch.manual_seed(0)
    args = [torch.randn(size).half().to("spyre") for size in (shape, shape[:1], shape[::-1])]
    with config.patch(ignore_hints=True):
        untiled = run(function, args, lx=False)
    assert torch.equal(run(function, args), untiled)
    assert torch.equal(run(function, args, lx=False), untiled)


def test_hints_that_gradients_cannot_meet_are_left_out():
    """The gradient that comes in lies along M, in whose sticks tiles of 75 points begin."""

    def tiled_squares(x):
        with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
            y = torch.sin(x)
            y = y * y
        return torch.exp(y.t().contiguous() * 2)

    x = torch.randn(300, 3).half().to("spyre").requires_grad_()
    found = []
    for ignored in (False, True):
        torch._dynamo.reset()
        with config.patch(ignore_hints=ignored):
            found += torch.autograd.grad(torch.compile(tiled_squares, fullgraph=True)(x).sum(), x)
    assert torch.equal(found[0].cpu(), found[1].cpu())


def test_a_dimension_is_tiled_once():
    def twice(x):
        with (
            spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}),
            spyre_hint(num_tiles_per_dim={"M": 2}),
        ):
            return torch.exp(x)

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"exp is in tiles of \['M', 'M'\], one of them twice \(.*test_scratchpad.py"):
        torch.compile(twice, fullgraph=True)(torch.randn(64, 128).half().to("spyre"))


@pytest.mark.parametrize("cores", [{"M": 4, "N": 8}, {"M": 32}, {"M": 4, "N": 2, "K": 4}, {"M": 3}], ids=str)
def test_work_is_divided_as_asked(cores, programs):
    def product(a, b):
        with spyre_hint(named_dims=["M", "N", "K"], work_div=cores):
            return a @ b

    a, b = torch.randn(512, 256).half().to("spyre"), torch.randn(256, 1024).half().to("spyre")
    assert torch.equal(run(product, [a, b]), run(torch.matmul, [a, b]))
    (step,) = (step for step in programs[0] if step["op"] == "matmul")
    assert step["slices"] == [cores.get(name, 1) for name in "MNK"]
