"""Eager ops on the card give what PyTorch gives on the host, with the card's rounding."""

import pytest
import torch

X = torch.linspace(-3, 3, 4 * 128).reshape(4, 128).to(torch.float16)
Y = X.flip(1) / 2


pytestmark = pytest.mark.usefixtures("no_fallback")


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=2**-8, atol=2**-8)


def test_functional_and_repeated():
    x, y = X.to("spyre"), Y.to("spyre")
    for _ in range(2):
        close(x + y, X + Y)
        close(x * x, X * X)
        close(x.relu(), X.relu())


def test_in_place():
    x, y = X.to("spyre"), Y.to("spyre")
    assert x.mul_(y) is x
    close(x, X * Y)
    x.add_(x)
    close(x, X * Y + X * Y)


def test_out():
    x, y = X.to("spyre"), Y.to("spyre")
    out = torch.empty(0, dtype=torch.float16, device="spyre")
    assert torch.add(x, y, out=out) is out
    close(out, X + Y)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mul(x, y, out=(wrong := torch.zeros(7, dtype=torch.float16, device="spyre")))
    close(wrong, X * Y)


def test_empty_results():
    empty = X.to("spyre")[:0]
    assert (empty + 1).shape == (0, 128) and empty.relu().shape == (0, 128)


def test_backward():
    x, y = X.to("spyre").requires_grad_(), Y.to("spyre").requires_grad_()
    (x * y).backward(torch.ones(4, 128, dtype=torch.float16, device="spyre"))
    close(x.grad, Y)
    close(y.grad, X)


def test_inside_transforms_and_modes():
    x, y = X.to("spyre"), Y.to("spyre")
    with torch.inference_mode():
        close(x + y, X + Y)
    with torch.device("spyre"):
        close(y + x, X + Y)
    close(torch.vmap(torch.mul)(x, y), X * Y)
    close(torch.func.grad(lambda a: (a * y)[0, 0])(x)[0, :1], Y[0, :1])


PROGRAM = """
    import torch
    torch.spyre.fallback("error")
    x = torch.full((4, 128), 2.0, device="spyre", dtype=torch.float16)
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    y = x + x
    end.record()
    torch.spyre.synchronize()
    print(y.shape, start.elapsed_time(end), y.cpu().sum().item())
"""


def test_timing_mode_takes_the_same_time(python):
    run, timing, strict = (python(PROGRAM, SPYRE_CARD=mode) for mode in ("run", "timing", "strict"))
    assert run.returncode == timing.returncode == strict.returncode == 0, run.stderr + timing.stderr + strict.stderr
    assert run.stdout == strict.stdout and run.stdout.split()[-1] == "2048.0"
    assert timing.stdout.split()[:-1] == run.stdout.split()[:-1]


@pytest.mark.parametrize("columns", [256, 1024])
@pytest.mark.parametrize("rows", [1, 3, 12, 40])
def test_norms_of_few_rows_fold_the_columns_of_all_cores(rows: int, columns: int) -> None:
    """Cores that have no row of their own share the columns."""
    torch.manual_seed(rows)
    x = torch.randn(1, rows, columns, dtype=torch.float16)
    weight, bias = torch.randn(columns).half(), torch.randn(columns).half()
    given = [x.to("spyre"), (columns,), weight.to("spyre"), bias.to("spyre"), 1e-5]
    found = torch.ops.aten.native_layer_norm(*given)
    expected = torch.ops.aten.native_layer_norm(x.float(), (columns,), weight.float(), bias.float(), 1e-5)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu().float(), wanted, rtol=2**-8, atol=2**-7)
