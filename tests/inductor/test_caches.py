"""Caches are written in place: nothing is copied that is not overwritten; reads see what was written before them."""

import random
from collections.abc import Callable

import pytest
import torch

Step = Callable[[torch.Tensor], torch.Tensor | None]


@pytest.fixture(autouse=True)
def strict():
    torch._dynamo.reset()
    with torch.spyre.fallback("error"):
        yield


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: exact in every format, whatever is added up."""
    return torch.randint(-8, 8, size, generator=torch.Generator().manual_seed(seed)).to(torch.float16)


def modelled_us(function, *args) -> float:
    """The second call: what the first leaves behind is not in its way."""
    stream = torch.spyre.current_stream()
    function(*args)
    before = stream.modelled_time()
    function(*args)
    return (stream.modelled_time() - before) * 1000


SLOTS, HEADS, HEAD = 64, 2, 64
BLOCK, SLOT = [3, 5, 7, 9], [1, 2, 3, 63]


def put(c, k, block, slot):
    c.index_put_((block, slot), k)


def put_and_read(c, k, block, slot):
    c.index_put_((block, slot), k)
    return c[block] + 1


def put_merged(c, k, block, slot):
    c.view(-1, HEADS, HEAD).index_copy_(0, block * SLOTS + slot, k)


def put_merged_and_read(c, k, block, slot):
    c.view(-1, HEADS, HEAD).index_copy_(0, block * SLOTS + slot, k)
    return c[block] + c.view(-1, HEADS, HEAD)[slot].sum()


def select_blocks(c, k, block, slot):
    return c.view(c.size(0), -1).index_select(0, block)


def read_what_was_cast(c, k, block, slot):
    return c.float().view(c.size(0), -1)[block]


def cast_and_read(c, k, block, slot):
    return c.view(c.size(0), -1).to(torch.int32)[block]


def several_layers(c, k, block, slot):
    for layer in c.unbind(1):
        layer.index_put_((block, slot // 32), k)
        k = k + layer[block, slot // 32] * 0.5 + layer[block].sum()
    return k


CASES = [
    put,
    put_and_read,
    put_merged,
    put_merged_and_read,
    select_blocks,
    read_what_was_cast,
    cast_and_read,
    several_layers,
]


def given(function, blocks: int) -> list[torch.Tensor]:
    size = (blocks, 3, 2, HEADS, HEAD) if function is several_layers else (blocks, SLOTS, HEADS, HEAD)
    return [numbers(*size), numbers(4, HEADS, HEAD, seed=1), torch.tensor(BLOCK), torch.tensor(SLOT)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_values(function, compiled):
    args = given(function, 10)
    cards = [each.to("spyre") for each in args]
    got = (torch.compile(function, fullgraph=True) if compiled else function)(*cards)
    want = function(*args)
    torch.testing.assert_close(cards[0].cpu(), args[0])
    if want is not None:
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_time_does_not_grow_with_the_cache(function):
    times = []
    for blocks in (64, 256):
        torch._dynamo.reset()
        args = [each.to("spyre") for each in given(function, blocks)]
        times.append(modelled_us(torch.compile(function, fullgraph=True), *args))
    assert times[1] < 1.05 * times[0] and times[1] < 25


@pytest.mark.parametrize("function", [put, put_and_read, put_merged, put_merged_and_read, select_blocks])
def test_eager_ops_write_in_place_too(function):
    small, large = ([each.to("spyre") for each in given(function, blocks)] for blocks in (64, 256))
    assert modelled_us(function, *large) < 1.05 * modelled_us(function, *small) < 20


def test_an_index_beyond_merged_dimensions_is_refused():
    def put(c, k, at):
        c.view(-1, HEADS, HEAD).index_copy_(0, at, k)

    c, k = numbers(4, 8, HEADS, HEAD).to("spyre"), numbers(1, HEADS, HEAD).to("spyre")
    for function in (put, torch.compile(put, fullgraph=True)):
        function(c, k, torch.tensor([31]).to("spyre"))
        torch.spyre.synchronize()
        with pytest.raises(IndexError, match="out of"):
            function(c, k, torch.tensor([32]).to("spyre"))
            torch.spyre.synchronize()


# --- any order of writes and reads, over any views


def program(seed: int, length: int) -> list[Step]:
    chance = random.Random(seed)

    def index(count: int, below: int) -> list[int]:
        return chance.sample(range(below), count)  # none twice: the order of writes would not be defined

    def on(c: torch.Tensor, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=c.device)

    def one(number: int) -> Step:
        n, first = chance.randint(1, 3), chance.randint(0, 2)
        blocks, slots, rows = index(n, 6), index(n, 8), index(n, 48)
        values = numbers(n, HEADS, 8, seed=seed * 100 + number)

        def new(c: torch.Tensor) -> torch.Tensor:
            return values.to(c.device)

        def rows_of(c: torch.Tensor) -> torch.Tensor:
            return c.view(48, HEADS, 8)

        steps: list[Step] = [
            lambda c: c.index_put_((on(c, blocks), on(c, slots)), new(c)),
            lambda c: rows_of(c).index_copy_(0, on(c, rows), new(c)),
            lambda c: c[first].index_copy_(0, on(c, slots), new(c)),
            lambda c: c[first : first + 3].mul_(-1),
            lambda c: c[:, slots[0]].copy_(c[:, slots[0] - 1].clone()),
            lambda c: c.view(6, -1).index_fill_(0, on(c, blocks), first),
            lambda c: c[blocks[0]].copy_(c[first] + 1),
            lambda c: rows_of(c)[on(c, rows)] * 2,
            lambda c: c[on(c, blocks)].sum((0, 1)),
            lambda c: c.view(6, -1).index_select(0, on(c, blocks)).view(n, 8, HEADS, 8)[:, slots[0]] + 1,
            lambda c: c[first:, slots[0]] - c[:1, slots[-1]],
            lambda c: c.transpose(1, 2)[:, 0] + 3,
        ]
        return chance.choice(steps)

    return [one(number) for number in range(length)]


def run(steps: list[Step], c: torch.Tensor) -> list[torch.Tensor]:
    results = []
    for step in steps:
        result = step(c)
        if result is not None:
            results.append(result + 0)
    return results


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))])
def test_any_order_of_writes_and_reads(seed):
    steps = program(seed, 8)
    c = numbers(6, 8, HEADS, 8, seed=seed)
    card = c.to("spyre")
    got = torch.compile(lambda c: run(steps, c), fullgraph=True)(card)
    want = run(steps, c)
    torch.testing.assert_close(card.cpu(), c)
    torch.testing.assert_close([each.cpu() for each in got], want)
