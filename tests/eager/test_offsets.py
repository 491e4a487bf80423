"""Where a tensor begins in its memory is no reason to compile: kernels serve all places that look the same."""

import random

import pytest
import torch

from torch_spyre import _C
from torch_spyre.execution.kernel import SpyreKernel


def whole(*size: int) -> torch.Tensor:
    """Numbers that the card's format holds exactly, sums of two also."""
    return torch.randint(-64, 64, size).half()


def on_card(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).to("spyre")


def compiled() -> int:
    return _C.kernel_counts()["compiled"]


PLACES = {
    "row": lambda x, i: x[i % 40],
    "rows": lambda x, i: x[i % 30 : i % 30 + 9],
    "block of columns": lambda x, i: x[:, i % 3 * 64 : i % 3 * 64 + 64],
    "the first columns of a block": lambda x, i: x[3:7, i % 4 * 64 : i % 4 * 64 + 8],
    "every third row": lambda x, i: x[i % 3 + i % 5 :: 3][:8],
    "transposed": lambda x, i: x[i % 30 : i % 30 + 9].t(),
    "flat": lambda x, i: x.view(-1)[i % 30 * 200 : i % 30 * 200 + 200],
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_another_place_is_no_other_kernel(place, no_fallback):
    host = whole(40, 200)
    x = on_card(host)
    results = [place(x, 1) + 1.5]
    before = compiled()
    results += [place(x, i) + 1.5 for i in range(2, 30)]
    assert compiled() == before
    for i, result in enumerate(results, start=1):
        assert torch.equal(result.cpu(), (place(host, i) + 1.5))


def test_a_write_reaches_its_place_and_no_other(no_fallback):
    host = whole(6, 5, 100)
    x = on_card(host)
    x[1, 2].mul_(2)
    host[1, 2].mul_(2)
    before = compiled()
    for i, j in ((0, 1), (5, 4), (3, 3)):
        x[i, j].mul_(2)
        host[i, j].mul_(2)
    assert compiled() == before and torch.equal(x.cpu(), host)


def test_results_may_go_anywhere_in_a_tensor(no_fallback):
    x, y, out = (whole(30, 128) for _ in range(3))
    a, b, c = on_card(x), on_card(y), on_card(out)
    for i in range(1, 8):
        torch.add(x[i : i + 4], y[20 - i : 24 - i], out=out[2 * i : 2 * i + 4])
        torch.add(a[i : i + 4], b[20 - i : 24 - i], out=c[2 * i : 2 * i + 4])
        if i == 1:
            before = compiled()
    assert compiled() == before and torch.equal(c.cpu(), out)


@pytest.mark.parametrize("i, j", [(0, 1), (3, 1), (2, 2), (0, 0)])
def test_arguments_that_share_memory(i, j, no_fallback):
    """Rows of one tensor, of which one may be written."""
    host = whole(5, 128)
    x = on_card(host)
    assert torch.equal((x[i] + x[j]).cpu(), host[i] + host[j])
    assert torch.equal(torch.add(x[i], x[j], out=x[4]).cpu(), torch.add(host[i], host[j], out=host[4]))
    x[i].add_(x[j])
    host[i].add_(host[j])
    assert torch.equal(x.cpu(), host)


def test_views_that_carry_into_the_next_row_are_kernels_of_their_own(no_fallback):
    """Elements 30 ... 129 of rows of 100: the distances on the card depend on where they begin."""
    host = whole(7, 100)
    x = on_card(host).view(-1)
    for start in (0, 30, 64, 100, 128, 164, 200, 330):
        found = x[start : start + 100] * 2
        assert torch.equal(found.cpu(), host.view(-1)[start : start + 100] * 2)


def random_view(x: torch.Tensor, chosen: random.Random) -> torch.Tensor:
    for dim in range(x.dim()):
        size = x.size(dim)
        start = chosen.randrange(size)
        step = chosen.choice((1, 1, 1, 2, 3))
        x = x.transpose(0, dim)[start : chosen.randint(start + 1, size) : step].transpose(0, dim)
    if chosen.random() < 0.3:
        x = x.transpose(0, chosen.randrange(x.dim()))
    if x.dim() > 1 and chosen.random() < 0.3:
        x = x.select(dim := chosen.randrange(x.dim()), chosen.randrange(x.size(dim)))
    return x


def check_random_views(seed: int, count: int) -> None:
    """Random views of tensors in random layouts, read and written in place, against the CPU."""
    chosen = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        shape = [chosen.choice((1, 2, 3, 5, 64, 70, 100, 130)) for _ in range(chosen.randint(1, 3))]
        host = torch.randint(-64, 64, shape, generator=generator).half()
        order = list(range(len(shape)))
        chosen.shuffle(order)
        layout = torch.spyre.SpyreTensorLayout(shape, list(host.stride()), torch.float16, order)
        x = host.to("spyre", device_layout=layout) if chosen.random() < 0.5 else host.to("spyre")
        for _ in range(4):
            state = chosen.getstate()
            on_host = random_view(host, chosen)
            chosen.setstate(state)
            view = random_view(x, chosen)
            assert torch.equal((view * 2 + 1).cpu(), on_host * 2 + 1), (shape, order, view.shape, view.stride())
            assert torch.equal(view.amax(-1).cpu(), on_host.amax(-1)), (shape, order, view.shape, view.stride())
            view.neg_()
            on_host.neg_()
            assert torch.equal(x.cpu(), host), (shape, order, view.shape, view.stride(), view.storage_offset())


def test_random_views(no_fallback):
    check_random_views(0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_random_views(seed, no_fallback):
    check_random_views(seed, 60)


STRICT = """
    import torch
    from torch_spyre import _C
    from tests.eager.test_offsets import check_random_views
    with torch.spyre.fallback("error"):
        check_random_views(9, 3)
        x = torch.empty(6, 128, dtype=torch.float16, device="spyre")
        x[1] = 1.0
        x[1] + 1
        x[2].fill_(3.0)
        x[2] + 1
        torch.spyre.synchronize()
        x[4] + 1
        torch.spyre.synchronize()
"""


def test_strict_mode_follows_memory_from_there(python):
    done = python(STRICT, SPYRE_CARD="strict")
    assert "element [0] of argument 0 (float16[128]), which was never written" in done.stderr, done.stderr


def test_timing_is_that_of_any_other_place(python):
    code = """
        import torch
        x = torch.empty(64, 4096, dtype=torch.float16, device="spyre")
        times = []
        for i in range(8):
            start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
            start.record(); x[i : i + 8].exp(); end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        print(len({f"{each:.9f}" for each in times}))
    """
    assert python(code, SPYRE_CARD="timing").stdout.strip() == "1"


def test_compiled_code_takes_slices_of_one_tensor(no_fallback):
    cache = on_card(whole(6, 4, 128))

    @torch.compile(backend="inductor")
    def step(layer, k):
        layer[1] = k
        return layer.sum(-1)

    k = on_card(whole(128))
    step(cache[1], k)
    torch.spyre.synchronize()
    launches: list = []
    prepared = SpyreKernel.prepare

    def counted(self, inputs):
        launches.append(self)
        return prepared(self, inputs)

    SpyreKernel.prepare = counted
    try:
        for i in (2, 5, 3):
            expected = cache[i].cpu()
            expected[1] = k.cpu()
            found = step(cache[i], k)
            assert torch.equal(cache[i].cpu(), expected)
            assert torch.allclose(found.cpu().float(), expected.float().sum(-1), atol=0.1)
    finally:
        SpyreKernel.prepare = prepared
    assert launches == []


def test_code_that_counts_from_the_start_of_the_memory(no_fallback):
    """as_strided reaches beyond a slice: its place is part of the kernel."""

    def rows(x):
        return torch.as_strided(x, (2, 128), (128, 1), 0) + x

    host = whole(5, 128)
    x = on_card(host)
    for i in (1, 2, 4):
        torch._dynamo.reset()  # Inductor's own code is for one offset, also on the CPU
        with torch._inductor.config.patch(force_disable_caches=True):
            assert torch.equal(torch.compile(rows)(x[i]).cpu(), rows(host[i]))
