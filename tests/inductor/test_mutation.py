"""Compiled functions write, alias and view like eager ones: the same results, and the same left in the arguments."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.utils import _pytree as pytree

from tests.card_storages import CardStorages
from torch_spyre import _C


@pytest.fixture(autouse=True)
def strict():
    """A CPU fallback is a failure; every test compiles anew."""
    torch._dynamo.reset()
    counters.clear()
    with torch.spyre.fallback("error"):
        yield
    torch._dynamo.reset()


def numbers(*size: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: exact in every format, whatever is added up."""
    return torch.randint(-8, 8, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def host(tree):
    return pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, tree)


def check(function, *args: torch.Tensor, compiled=None) -> None:
    """Results, what is left in the arguments, strides, and which results share memory: all as on the CPU."""
    cards = tuple(map(CardStorages(), args))
    got = (compiled or torch.compile(function, fullgraph=True))(*cards)
    want = function(*args)
    torch.testing.assert_close(host((got, cards)), (want, args), rtol=2**-8, atol=2**-8, equal_nan=True)
    sides = [
        [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)] for tree in ((got, cards), (want, args))
    ]
    assert sharing(sides[0]) == sharing(sides[1])
    for mine, theirs in zip(*sides, strict=True):
        assert mine.dtype == theirs.dtype
        if mine.numel() > 1:
            assert mine.stride() == theirs.stride()


def sharing(tensors: list[torch.Tensor]) -> list[int]:
    """For every tensor the first one with the same storage."""
    storages = [t.untyped_storage()._cdata if t.numel() else i for i, t in enumerate(tensors)]
    return [storages.index(s) for s in storages]


# --- in place


def add_in_place(x, y):
    x.add_(y)


def add_and_return(x, y):
    return x.add_(y)


def read_before_and_after(x, y):
    before = x * 2
    x.mul_(y)
    return before, x + before


def write_a_slice(x, y):
    x[1:3].copy_(y[2:4])
    return x.sum(0)


def write_inside_a_stick(x, y):
    x[:, 5:37] = y[:, 11:43]


def write_every_other(x, y):
    x[:, ::2] = y[:, 1::2]


def write_a_column(x, y):
    x[:, 3] = y[:, 60]
    x[0] = 4


def write_transposed(x, y):
    x[:4, :4].copy_(y[:4, :4].t())


def write_from_itself(x, y):
    x[1:4] = x[0:3].clone()


def shift_along_sticks(x, y):
    x[:, 1:] = x[:, :-1].clone()


def write_twice(x, y):
    x.copy_(y)
    x[2:].add_(1)
    x[:3].mul_(2)
    return y - x


def write_both(x, y):
    x.add_(y)
    y.sub_(x)


def rotate(x, y):
    a = x * 1
    x.copy_(y * 2)
    y.copy_(a + 1)


def fill(x, y):
    x.zero_()
    y[1:].fill_(3)


def masked(x, y):
    x.masked_fill_(y > 0, 7.0)
    x[y < -4] = -1.0


def put_rows(x, y):
    x[torch.tensor([3, 0], device=x.device)] = y[:2]


def copy_rows(x, y):
    x.index_copy_(0, torch.tensor([3, 1], device=x.device), y[:2])
    x.index_add_(0, torch.tensor([3, 3], device=x.device), y[:2])


def scatter_rows(x, y):
    x.scatter_(0, torch.zeros(1, 64, dtype=torch.int64, device=x.device), y[:1])


def convert_into(x, y):
    x.copy_((y > 0).to(torch.int32))


def through_a_view(x, y):
    rows = x.view(2, 2, 64)
    rows[0].add_(1)
    x.t()[5:9].mul_(2)
    return rows.sum()


def out_argument(x, y):
    torch.add(x, y, out=x)


def addcmul_and_friends(x, y):
    x.addcmul_(y, y, value=0.5).clamp_(-4, 4).relu_().lerp_(y, 0.5)


WRITERS = [
    add_in_place, add_and_return, read_before_and_after, write_a_slice, write_inside_a_stick, write_every_other,
    write_a_column, write_transposed, write_from_itself, shift_along_sticks, write_twice, write_both, rotate, fill,
    masked, put_rows, copy_rows, scatter_rows, convert_into, through_a_view, out_argument, addcmul_and_friends,
]  # fmt: skip


@pytest.mark.parametrize("function", WRITERS, ids=lambda f: f.__name__)
def test_writing_into_arguments(function):
    check(function, numbers(4, 64), numbers(4, 64, seed=1))


@pytest.mark.parametrize(
    "function", [add_and_return, write_twice, rotate, read_before_and_after], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_writing_in_other_dtypes(function, dtype):
    check(function, numbers(4, 37, dtype=dtype), numbers(4, 37, dtype=dtype, seed=1))


# --- results that alias


def the_input(x):
    return x


def a_view_of_the_input(x):
    return x[1:3], x.t(), x.view(-1), x + 1


def a_view_of_a_changed_input(x):
    x.add_(1)
    return x[1:], x.t()


def views_of_each_other(x):
    y = x + 1
    return y, y[1:], y.t(), y.view(2, 2, 64)


def a_view_and_its_values(x):
    y = x * 2
    return y[1], y.sum(), y[:, 5:9].clone()


def an_expanded_view(x):
    return (x + 1)[:1].expand(4, 64), x[0].expand(3, 64)


def an_expanded_view_of_a_changed_view(x):
    turned = x.t()
    turned.sub_(torch.ones(1, dtype=torch.float32, device=x.device))
    return turned.expand(2, *turned.shape)


def an_expanded_result(x):
    return (x.t() + 1).expand(2, *x.t().shape)


def the_same_twice(x):
    y = x + 1
    return y, y


def parts(x):
    return (x + 1).chunk(3, 1), x.unbind(0), (x * 2).split([1, 3])


def overlapping_windows(x):
    return (x + 1).unfold(1, 8, 4)


def nothing_to_do(x):
    return x.to(x.dtype), x.contiguous(), x.detach(), x.reshape(4, 64)


def a_changed_temporary(x):
    y = x.clone()
    y[1:3].mul_(2)
    z = y.view(-1)
    z[0] = 9
    return y, z


ALIASES = [
    the_input, a_view_of_the_input, a_view_of_a_changed_input, views_of_each_other, a_view_and_its_values,
    an_expanded_view, an_expanded_view_of_a_changed_view, an_expanded_result, the_same_twice, parts,
    overlapping_windows, nothing_to_do, a_changed_temporary,
]  # fmt: skip


@pytest.mark.parametrize("function", ALIASES, ids=lambda f: f.__name__)
def test_results_that_alias(function):
    check(function, numbers(4, 64))


NOTHING_TO_DO = {
    "round": torch.round,
    "floor": torch.floor,
    "narrower": lambda x: x.to(torch.int32),
    "wider": lambda x: x.to(torch.int64),
    "back and forth": lambda x: x.to(torch.int32).to(torch.int64),
    "a view": lambda x: x.to(torch.int32)[1:, 3:],
    "nan_to_num": torch.nan_to_num,
    "pow": lambda x: x**1,
}


@pytest.mark.parametrize("function", NOTHING_TO_DO.values(), ids=NOTHING_TO_DO)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_results_of_their_own_memory(function, dtype):
    """An op that has nothing to do on the card still gives a new tensor where PyTorch does."""

    def before_a_change(x):
        y = function(x)
        x.add_(1)
        return y

    check(lambda x: (function(x), function(x + 1)), numbers(4, 70, dtype=dtype))
    check(before_a_change, numbers(4, 70, dtype=dtype))


def test_a_mask_as_numbers():
    check(lambda x: (x > 0, (x > 0).half(), (x > 0).half()[1:]), numbers(4, 64))


# --- inputs that are views


def mix(x, y):
    return x * 2 + y


VIEWS = {
    "rows": lambda t: t[2:6, :64],
    "inside a stick": lambda t: t[2:6, 5:69],
    "every third row": lambda t: t[::3, :64][:4],
    "every other element": lambda t: t[:4, ::2],
    "transposed": lambda t: t.t()[:4, :10].expand(4, 10),
    "a row expanded": lambda t: t[3:4, 64:].expand(4, 64),
    "an element expanded": lambda t: t[3, 65].expand(4, 64),
    "a diagonal": lambda t: t.diagonal(offset=3).expand(4, 10),
    "windows": lambda t: t[0].unfold(0, 64, 16)[:4],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_inputs_that_are_views(view):
    x = view(numbers(10, 128))
    check(mix, x, numbers(*x.size(), seed=1))
    check(mix, numbers(*x.size(), seed=1), x)


@pytest.mark.parametrize(
    "view", ["rows", "inside a stick", "every third row", "every other element", "transposed", "a diagonal"]
)
def test_views_written_in_place(view):
    if view == "transposed":
        x = numbers(10, 128).t()[:4, :10]
    elif view == "a diagonal":
        x = numbers(10, 128).diagonal(offset=3)
    else:
        x = VIEWS[view](numbers(10, 128))
    check(add_and_return, x, numbers(*x.size(), seed=1))


def frames() -> int:
    return counters["stats"]["unique_graphs"]


def test_offsets_change_without_a_compile():
    base = numbers(8, 256)
    compiled = torch.compile(mix, fullgraph=True)
    for row, column in ((0, 0), (1, 0), (4, 64), (0, 3), (3, 101), (4, 192)):
        check(mix, base[row : row + 4, column : column + 64], numbers(4, 64, seed=1), compiled=compiled)
    assert frames() == 1


def test_offsets_of_what_is_written_change():
    compiled = torch.compile(add_and_return, fullgraph=True)
    for column in (0, 64, 7, 100):
        check(add_and_return, numbers(4, 192)[:, column : column + 64], numbers(4, 64, seed=1), compiled=compiled)
    assert frames() == 1


@pytest.mark.parametrize("function", [mix, add_and_return, write_both, write_inside_a_stick], ids=lambda f: f.__name__)
def test_the_same_tensor_twice(function):
    x = numbers(4, 64)
    check(function, x, x)


def add_a_copy(x, y):
    return x.add_(y.clone())


def write_one_read_the_other(x, y):
    before = y * 2
    x[1:3] = 5
    return before, y + 1, x - y


def write_both_in_turn(x, y):
    x.mul_(2)
    y.add_(1)
    x[:, 5:9].sub_(3)
    return y.sum(0)


@pytest.mark.parametrize(
    "function", [add_a_copy, write_one_read_the_other, write_both_in_turn], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    "views",
    [
        (slice(0, 4), slice(4, 8)),
        (slice(0, 4), slice(2, 6)),
        (slice(2, 6), slice(0, 4)),
        (slice(0, 8, 2), slice(1, 9, 2)),
        (slice(0, 4), slice(0, 8, 2)),
    ],
)
def test_two_views_of_one_tensor(function, views):
    base = numbers(9, 64)
    check(function, *(base[view] for view in views))


def assign_and_show(cache, new):
    cache[4:6].copy_(new)
    return cache[4:6]


def assign_and_show_all(cache, new):
    cache[4:6] = new
    return cache.view(-1)[3:], new + 1


def copy_in_and_keep(x, y):
    """A result that has memory of its own, though the argument was given its values."""
    z = y * 2
    x.copy_(z[0])
    return z[1:], z[0, 1:], x[1:]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("function", [assign_and_show, assign_and_show_all, copy_in_and_keep], ids=lambda f: f.__name__)
def test_views_of_changed_arguments(function, dynamic):
    new = numbers(2, 9, 64, seed=1) if function is copy_in_and_keep else numbers(2, 64, seed=1)
    check(function, numbers(9, 64), new, compiled=torch.compile(function, fullgraph=True, dynamic=dynamic))


def test_a_part_of_a_cache_is_assigned_in_place():
    """The kernel makes no tensor, and what is shown is the cache itself."""
    args = numbers(9, 64).to("spyre"), numbers(2, 64, seed=1).to("spyre")
    _, (code,) = run_and_get_code(torch.compile(assign_and_show, fullgraph=True), *args)
    assert "return (reinterpret_tensor(arg0_1, (2, 64), (64, 1), 256), )" in code
    assert '"kind": "output"' not in code


def test_layouts_change():
    """Once per layout, then never again."""
    compiled = torch.compile(mix, fullgraph=True)
    x, y = numbers(64, 128), numbers(64, 128, seed=1)
    rows = _C.SpyreTensorLayout([64, 128], torch.float16)
    columns = _C.SpyreTensorLayout([64, 128], [128, 1], torch.float16, [1, 0])
    for _ in range(2):
        for layout in (rows, columns):
            card = x.to("spyre", device_layout=layout)
            assert torch.equal(compiled(card, y.to("spyre")).cpu(), mix(x, y))
    assert frames() == 2


# --- shapes


SHAPES = [(), (1,), (3,), (0,), (4, 0), (1, 1), (1, 64), (65, 1), (2, 1, 3, 1, 5, 7), (3, 2, 1, 2, 1, 65)]


@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_shapes(size):
    def function(x, y):
        total = x.sum()
        x.add_(y)
        return x * y, total, y.mT if y.dim() > 1 else y, (x > y).to(x.dtype).mean(-1) if y.dim() else x

    check(function, numbers(*size, dtype=torch.float32), numbers(*size, dtype=torch.float32, seed=1))


def test_numbers_in_tensors():
    """0-dim tensors of the card and of the CPU."""

    def function(x, card, cpu):
        card.add_(1)
        return x * card + cpu, card * 2, x.sum() / card

    x = numbers(4, 64)
    want = function(x, torch.tensor(3.0), torch.tensor(2.0))
    got = torch.compile(function, fullgraph=True)(x.to("spyre"), torch.tensor(3.0).to("spyre"), torch.tensor(2.0))
    torch.testing.assert_close(host(got), want, rtol=2**-8, atol=0)


# --- modules


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("last", torch.zeros(4, 64))

    def forward(self, x):
        self.calls += 1
        self.mean.lerp_(x.mean(0), 0.5)
        self.last = x * 2
        return x - self.mean


def test_buffers_updated_in_forward():
    want, module = Counter(), Counter().to("spyre")
    compiled = torch.compile(module, fullgraph=True)
    for seed in range(3):
        x = numbers(4, 64, dtype=torch.float32, seed=seed)
        torch.testing.assert_close(compiled(x.to("spyre")).cpu(), want(x))
    torch.testing.assert_close(host(dict(module.named_buffers())), dict(want.named_buffers()))


def test_batch_norm_counts():
    want, module = torch.nn.BatchNorm1d(37).train(), torch.nn.BatchNorm1d(37).train().to("spyre")
    compiled = torch.compile(module, fullgraph=True)
    for seed in range(2):
        x = numbers(16, 37, dtype=torch.float32, seed=seed)
        torch.testing.assert_close(compiled(x.to("spyre")).cpu(), want(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(host(dict(module.named_buffers())), dict(want.named_buffers()), rtol=1e-4, atol=1e-4)


def test_what_lies_beside_a_changed_view_is_out_of_reach():
    def function(x):
        x.add_(1)
        return x.as_strided([2], [3], 2) + 0

    with pytest.raises(Exception, match="as_strided reaches element 5 of a tensor whose last is 2"):
        torch.compile(function)(torch.arange(6.0).to("spyre")[1::2])
