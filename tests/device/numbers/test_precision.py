"""fp32 means fp32: folds err at most twice as much as the CPU's, and have the same bits however they are done."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from torch_spyre._inductor import config

Function = Callable[[torch.Tensor], torch.Tensor]

CASES: dict[str, tuple[Function, tuple[int, ...], float]] = {  # function, size, mean of the numbers
    "sum of 1e7": (lambda x: x.sum(), (10_000_000,), 0.5),
    "sum of 1e7 that cancel": (lambda x: x.sum(), (10_000_000,), 0.0),
    "mean": (lambda x: x.mean(), (1_000_000,), 0.5),
    "var around 1e4": (lambda x: x.var(), (100_000,), 1e4),
    "std around 1e4": (lambda x: x.std(), (100_000,), 1e4),
    "var_mean of rows": (lambda x: torch.cat(torch.var_mean(x, -1)), (50, 3000), 100.0),
    "var of columns": (lambda x: x.var(0), (3000, 50), 100.0),
    "var of few": (lambda x: x.var(-1, correction=0), (300, 7), 10.0),
    "var of several dimensions": (lambda x: x.var((0, 2)), (90, 20, 70), 10.0),
    "sum of rows": (lambda x: x.sum(-1), (60, 4100), 0.0),
    "sum of long rows": (lambda x: x.sum(-1), (40, 40_000), 0.0),
    "sum of columns": (lambda x: x.sum(0), (10_000, 100), 0.0),
    "sum of outer and inner dimensions": (lambda x: x.sum((0, 2)), (70, 40, 90), 0.0),
    "sum of a transposed matrix": (lambda x: x.t().sum(-1), (5000, 40), 0.0),
    "sum of a slice": (lambda x: x[:, 3:4000].sum(-1), (40, 4100), 0.0),
    "norm": (lambda x: x.norm(dim=-1), (40, 5000), 0.0),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (40, 30_000), 0.0),
    "softmax": (lambda x: torch.softmax(x, -1), (40, 5000), 0.0),
    "cumsum": (lambda x: x.cumsum(-1), (10, 20_000), 0.5),
    "cumsum of columns": (lambda x: x.cumsum(0), (5000, 40), 0.5),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (10, 5000), 0.0),
    "cumprod": (lambda x: (x * 0.01 + 1).cumprod(-1), (10, 4000), 0.0),
    "mse_loss": (lambda x: F.mse_loss(x, torch.zeros_like(x)), (1_000_000,), 0.0),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), (40, 4000), 10.0),
    "group_norm": (lambda x: F.group_norm(x, 4), (4, 16, 40, 40), 10.0),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (8, 16, 40, 40), 10.0),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), (4, 16, 80, 80), 0.5),
    "product of depth 1e5": (lambda x: x @ x.t(), (20, 100_000), 0.0),
    "product of depth 1000": (lambda x: x @ x.t(), (70, 1000), 0.0),
    "product with a vector": (lambda x: x @ x[0], (20, 50_000), 0.0),
}


def errors(function: Function, size: tuple[int, ...], centre: float) -> tuple[float, float]:
    """Root mean squares, of the card and of the CPU, against fp64."""
    squares = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed)) + centre
        exact = function(x.double())
        for i, found in enumerate((function(x.to("spyre")).cpu(), function(x))):
            squares[i] += (found.double() - exact).square().mean()
    card, cpu = squares.sqrt().tolist()
    return card, cpu


@pytest.mark.parametrize("name", CASES)
def test_errs_at_most_twice_as_much_as_the_cpu(name):
    card, cpu = errors(*CASES[name])
    assert card <= 2 * cpu, f"{card:.3g} on the card, {cpu:.3g} on the CPU"


def test_sums_of_fp16_into_fp32():
    x = (torch.randn(1_000_000, generator=torch.Generator().manual_seed(1)) + 0.5).half().to("spyre")
    host = x.cpu()
    assert abs(x.sum(dtype=torch.float32).item() - host.double().sum().item()) <= 2**-24 * host.double().sum().item()


def test_a_variance_of_equal_numbers_is_zero():
    assert torch.full((1000,), 12345.678).to("spyre").var().item() == 0
    assert torch.full((3, 5), 0.1).to("spyre").var(-1).tolist() == [0, 0, 0]


def test_what_is_not_finite_stays():
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[1.0, inf, 2.0], [inf, -inf, 1.0], [nan, 1.0, 1.0], [3e38, 3e38, 3e38]])
    x = rows.to("spyre")
    assert torch.allclose(x.sum(-1).cpu(), rows.sum(-1), equal_nan=True)
    assert x.var(-1)[:3].cpu().isnan().all()
    assert torch.allclose(x.cumsum(-1)[:3].cpu(), rows.cumsum(-1)[:3], equal_nan=True)


@pytest.mark.parametrize("correction", [0, 1, 2, 3, 5, 0.5])
def test_corrections(correction):
    host = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    found = host.to("spyre").var(-1, correction=correction).cpu()
    assert torch.allclose(found, host.var(-1, correction=correction), equal_nan=True)


BITS = """
    import hashlib, torch, torch.nn.functional as F
    from torch_spyre._inductor import config
    torch.manual_seed(0)
    wide, long, cube = torch.randn(33, 1100), torch.randn(3, 9000), torch.randn(20, 33, 70)

    def folds(wide, long, cube):
        mean = wide.pow(2).mean(-1, keepdim=True)
        return (
            wide * torch.rsqrt(mean + 1e-5), torch.softmax(long, -1), long.sum(-1), wide.sum(0), cube.sum((0, 2)),
            cube.mean((1, 2)), cube.var(1), long.var(-1), F.layer_norm(wide, (1100,)), long.cumsum(-1),
            wide @ wide.t(), cube @ cube[:, 0].t(),
        )

    digest = hashlib.sha256()
    for function in (folds, torch.compile(folds)):
        for result in function(*(x.to("spyre") for x in (wide, long, cube))):
            digest.update(result.cpu().numpy().tobytes())
    print(digest.hexdigest())
"""


def test_bits_depend_neither_on_cores_threads_instructions_nor_mode(python):
    def digest(**environment: str) -> str:
        done = python(BITS, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    plain = digest()
    assert digest(SENCORES="1", SPYRE_SIMD="portable") == plain
    assert digest(SPYRE_CARD="strict", SENCORES="7") == plain
    assert digest(OMP_NUM_THREADS="1", SPYRE_SIMD="avx2", LX_PLANNING="0") == plain


@pytest.mark.parametrize("cores", [1, 3, 8, 32])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_eager_and_compiled_sums_agree_on_any_cores(dims, cores):
    x = torch.randn(9, 70, 130, generator=torch.Generator().manual_seed(3)).to("spyre")
    with config.patch(sencores=cores):
        for function in (lambda x: x.sum(dims), lambda x: x.var(dims), lambda x: (x * 2).mean(dims)):
            torch._dynamo.reset()
            assert torch.equal(torch.compile(function)(x).cpu(), function(x).cpu())
