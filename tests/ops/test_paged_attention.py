"""Attention over a cache in pages: any lengths, any mix of requests, against the same op on the CPU."""

import random
from typing import Any

import pytest
import torch

paged_attention = torch.ops.spyre.paged_attention


def rounded(*size: int, seed: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Numbers that the card has."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype).to("spyre").cpu()


def batch(
    seed: int,
    requests: list[tuple[int, int]],
    heads: tuple[int, int] = (4, 2),
    head: int = 64,
    page: int = 16,
    tokens: int = 0,
    dtype: torch.dtype = torch.float16,
) -> tuple[torch.Tensor, ...]:
    """Arguments of a call with these requests, as (queries, keys), whose pages lie anywhere in the cache."""
    chance = random.Random(seed)
    most = max(-(-keys // page) for _, keys in requests) + 1
    used = sum(-(-keys // page) for _, keys in requests)
    pages = chance.sample(range(used + 3), used)
    table = torch.full((len(requests), most), 10**6)  # what is behind the pages of a request is not read
    for row, (_, keys) in enumerate(requests):
        for column in range(-(-keys // page)):
            table[row, column] = pages.pop()
    starts = torch.tensor([0, *(queries for queries, _ in requests)]).cumsum(0)
    cache = (used + 3, page, heads[1], head)
    return (
        rounded(tokens or int(starts[-1]), heads[0], head, seed=seed, dtype=dtype),
        rounded(*cache, seed=seed + 1, dtype=dtype),
        rounded(*cache, seed=seed + 2, dtype=dtype),
        table.to(torch.int32),
        starts.to(torch.int32),
        torch.tensor([keys for _, keys in requests], dtype=torch.int32),
    )


def on_card(args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The numbers of a call stay on the host."""
    return [*(each.to("spyre") for each in args[:4]), *args[4:]]


def check(args: tuple[torch.Tensor, ...], compiled: bool = False, **given: Any) -> None:
    def attend(*args: torch.Tensor) -> torch.Tensor:
        kept = {k: v.to(args[0].device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        return paged_attention(*args, args[0].size(-1) ** -0.5, **kept)

    want = attend(*(each.float() if each.is_floating_point() else each for each in args))
    with torch.spyre.fallback("error"):
        got = (torch.compile(attend, fullgraph=True) if compiled else attend)(*on_card(args)).cpu()
    assert got.dtype == args[0].dtype
    torch.testing.assert_close(got.float(), want, rtol=2**-9, atol=2**-14)


@pytest.mark.parametrize("compiled", [False, True])
def test_prefills_and_decodes_in_one_call(compiled):
    check(batch(0, [(1, 40), (17, 17), (0, 0), (5, 70), (1, 1)], tokens=26), compiled)


@pytest.mark.parametrize("compiled", [False, True])
def test_window_cap_sinks_and_slopes(compiled):
    args = batch(1, [(1, 100), (30, 90)])
    sinks, slopes = rounded(4, seed=5), rounded(4, seed=6).abs()
    check(args, compiled, window=24, soft_cap=1.5, sinks=sinks, alibi_slopes=slopes, k_scale=0.5, v_scale=2.0)
    check(args, compiled, causal=False, window=50)
