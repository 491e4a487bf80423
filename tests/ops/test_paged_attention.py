"""Attention over a cache in pages: any lengths, any mix of requests, against the same op on the CPU."""

import random
from typing import Any

import pytest
import torch

from torch_spyre.execution import kernel as kernels

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

    torch._dynamo.reset()
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


MIXED = [(1, 40), (17, 17), (3, 131), (1, 1), (70, 200)]


@pytest.mark.parametrize(
    "given",
    [
        {"heads": (4, 4)},
        {"heads": (6, 1), "head": 40},
        {"heads": (8, 2), "head": 80, "page": 24},
        {"heads": (4, 2), "head": 128, "page": 64},
        {"heads": (2, 1), "head": 72, "page": 128, "dtype": torch.float32},
        {"heads": (160, 4), "head": 32},
    ],
    ids=str,
)
def test_heads_pages_and_dtypes(given):
    check(batch(2, MIXED, **given))


def test_sinks_of_more_heads_than_a_stick_has():
    args = batch(3, [(2, 30), (1, 5)], heads=(160, 4), head=32)
    check(args, sinks=rounded(160, seed=5), alibi_slopes=rounded(160, seed=6).abs())


def test_a_cache_in_bytes():
    args = batch(4, MIXED)
    caches = [(each * 0.1).to(torch.float8_e4m3fn) for each in args[1:3]]
    check((args[0], *caches, *args[3:]), k_scale=3.0, v_scale=0.25)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))])
def test_any_mix(seed):
    chance = random.Random(seed)
    key_heads = chance.choice([1, 2, 3, 8])
    requests = []
    for _ in range(chance.randint(1, 6)):
        keys = chance.choice([0, 1, chance.randint(1, 70), chance.randint(1, 400)])
        requests.append((chance.choice([0, 1, min(keys, chance.randint(1, 90)), keys]) if keys else 0, keys))
    heads = (key_heads * chance.choice([1, 2, 4]), key_heads)
    page, head = chance.choice([16, 32, 48, 64, 100]), chance.choice([16, 64, 96, 128])
    args = batch(seed, requests, heads, head, page, tokens=sum(q for q, _ in requests) + chance.randint(1, 9))
    given: dict[str, Any] = {"causal": chance.random() < 0.8}
    if chance.random() < 0.4:
        given["window"] = chance.randint(1, 100)
    if chance.random() < 0.3:
        given["soft_cap"] = chance.choice([0.5, 3.0])
    if chance.random() < 0.3:
        given["sinks"] = rounded(heads[0], seed=seed)
    if chance.random() < 0.3:
        given["alibi_slopes"] = rounded(heads[0], seed=seed).abs()
    check(args, compiled=chance.random() < 0.3, **given)


def attended(args: tuple[torch.Tensor, ...], **given: Any) -> torch.Tensor:
    with torch.spyre.fallback("error"):
        return paged_attention(*on_card(args), 0.125, **given).cpu()


def test_bits_depend_on_no_page_and_on_no_other_request():
    whole = batch(5, [(40, 150)], page=64)
    query, keys, values, table, starts, lengths = whole
    wanted = attended(whole)
    small = [cache[table[0, :3].long()].flatten(0, 1).view(12, 16, 2, 64) for cache in (keys, values)]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    small = [cache[order.argsort()] for cache in small]
    assert torch.equal(attended((query, *small, order[None].int(), starts, lengths)), wanted)
    # Row by row, as requests of their own that share the pages.
    alone = [order[None].expand(40, -1).contiguous().int(), torch.arange(41), torch.arange(111, 151)]
    assert torch.equal(attended((query, *small, *alone)), wanted)


# --- numbers of the launch


def modelled_us(function, *args: torch.Tensor) -> float:
    stream = torch.spyre.current_stream()
    function(*args)
    before = stream.modelled_time()
    function(*args)
    return round((stream.modelled_time() - before) * 1000, 6)


def write_and_attend(query, keys, values, table, starts, lengths, new, block, slot):
    keys.index_put_((block, slot), new)
    values.index_put_((block, slot), new)
    return paged_attention(query, keys, values, table, starts, lengths, 0.125)


def decode(pages: int, keys: int, requests: int = 4) -> list[torch.Tensor]:
    cache = [torch.zeros(pages, 64, 8, 128, dtype=torch.float16).to("spyre") for _ in range(2)]
    query = torch.zeros(requests, 32, 128, dtype=torch.float16).to("spyre")
    table = torch.arange(requests * 8, dtype=torch.int32).view(requests, 8).to("spyre")
    return [query, *cache, table, torch.arange(requests + 1), torch.full((requests,), keys)]


def test_new_tokens_are_written_and_attended_to_in_the_time_of_reading_the_keys():
    times = []
    for pages in (64, 256):
        new, slot = torch.zeros(4, 8, 128, dtype=torch.float16).to("spyre"), torch.full((4,), 63).to("spyre")
        block = torch.tensor([7, 15, 23, 31]).to("spyre")
        torch._dynamo.reset()
        times.append(
            modelled_us(torch.compile(write_and_attend, fullgraph=True), *decode(pages, 512), new, block, slot)
        )
    assert times[0] == times[1] < 70, times


def test_lengths_are_no_programs_and_their_time_is_their_own():
    prepared = []
    kernels.observers.append(prepared.append)
    try:
        compiled = torch.compile(lambda *args: paged_attention(*args, 0.125), fullgraph=True)
        times = {}
        for keys in (1, 64, 100, 511, 512):
            args = decode(64, keys)
            times[keys] = modelled_us(compiled, *args)
            assert modelled_us(lambda *args: paged_attention(*args, 0.125), *args) == times[keys]
    finally:
        kernels.observers.remove(prepared.append)
    assert len(prepared) <= 2  # one compiled, one eager
    assert sorted(times.values()) == list(times.values()) and 5 * times[1] < times[512]


PROGRAM = """
import torch

from torch_spyre.execution import kernel as kernels
from tests.ops.test_paged_attention import MIXED, batch, on_card, paged_attention
stream = torch.spyre.current_stream()
args = on_card(batch(6, MIXED))
torch.spyre.synchronize()
before = stream.modelled_time()
paged_attention(*args, 0.125, window=50)
torch.spyre.synchronize()
print(stream.modelled_time() - before)
"""


def test_modes_agree(python):
    found = {mode: python(PROGRAM, SPYRE_CARD=mode) for mode in ("run", "timing", "strict")}
    assert all(each.returncode == 0 for each in found.values()), found["strict"].stderr[-2000:]
    assert len({each.stdout for each in found.values()}) == 1


def test_strict_mode_finds_keys_that_were_never_written(python):
    program = PROGRAM.replace(
        "torch.spyre.synchronize()\nbefore",
        "args[1] = torch.empty_like(args[1]).index_fill_(0, args[3][0, :2], 1.0)\nbefore",
        1,
    )
    found = python(program, SPYRE_CARD="strict")
    assert "was never written" in found.stderr


# --- what is refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.__setitem__(4, a[4].to("spyre")), "query_starts is on spyre.*give it on the CPU"),
        (lambda a: a.__setitem__(5, a[5][:-1]), "lengths has 2 elements"),
        (lambda a: a.__setitem__(2, a[2][:, :8]), "differ in more than the head"),
        (lambda a: a.__setitem__(0, a[0][:, :3]), "2 heads of keys do not divide 3 heads"),
        (lambda a: a.__setitem__(3, a[3].float()), "block_table is"),
        (lambda a: a.__setitem__(5, torch.tensor([40, 10**6])), "request 1 has 9 queries and 1e.06 keys"),
        (lambda a: a.__setitem__(5, torch.tensor([40, 3])), "request 1 has 9 queries and 3 keys"),
        (lambda a: a.__setitem__(4, torch.tensor([0, 5, 3])), "request 1 end before they begin"),
        (lambda a: a.__setitem__(4, torch.tensor([0, 5, 99])), "end within 10 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    args = on_card(batch(7, [(1, 40), (9, 9)]))
    change(args)
    with pytest.raises((ValueError, RuntimeError), match=said):
        paged_attention(*args, 0.125)


def test_a_page_that_the_cache_does_not_have_is_an_error():
    args = on_card(batch(8, [(1, 40)]))
    args[3] = torch.full_like(args[3], 99)
    with pytest.raises(IndexError, match="page 0 of request 0 is 99, the cache has 6 pages"):
        paged_attention(*args, 0.125)
        torch.spyre.synchronize()


@pytest.mark.parametrize("compiled", [False, True])
def test_comparison_with_the_host_explains_every_error(compiled):
    function = lambda *args: paged_attention(*args, 0.125, window=50) + 1  # noqa: E731
    torch._dynamo.reset()
    report = torch.spyre.compare(torch.compile(function) if compiled else function, *on_card(batch(6, MIXED)))
    assert "2 ops compared, 0 beyond" in str(report)
