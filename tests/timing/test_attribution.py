"""Where modelled time goes: all of it, by op, and never less than the least that an op needs."""

import pytest
import torch

from torch_spyre import timing
from torch_spyre.card import description


def halves(*size: int) -> torch.Tensor:
    return torch.randn(size).half().to("spyre")


def recorded(function, *inputs: torch.Tensor) -> timing.Recording:
    """Of a call whose code is there already."""
    compiled = torch.compile(function)
    compiled(*inputs)
    with timing.record() as recording:
        compiled(*inputs)
    return recording


def mlp(x, up, down):
    y = torch.nn.functional.rms_norm(x, x.shape[-1:])
    return x + torch.nn.functional.gelu(y @ up) @ down


@pytest.fixture(scope="module")
def block() -> timing.Recording:
    torch._dynamo.reset()
    return recorded(mlp, halves(512, 256), halves(256, 1024), halves(1024, 256))


def test_all_of_the_time_is_attributed(block):
    """The stream rounds every step to a picosecond, and there is nothing else."""
    steps = timing.steps_of(block.launches[0])
    assert len(block.launches) == 1 and block.eager_launches == 0 and block.fallbacks == {}
    assert sum(step.us for step in steps) == pytest.approx(block.milliseconds * 1000, abs=1e-6 * len(steps))
    assert sum(row.us for row in block.rows()) == pytest.approx(block.launched_us)
    assert abs(block.other_us) < 1e-6 * len(steps)


def test_no_op_is_faster_than_its_bound(block):
    for step in timing.steps_of(block.launches[0]):
        assert step.us >= step.least_us, step


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.topk(x, 4).values,
        lambda x: x.cumsum(-1),
        lambda x: x.argmax(-1),
        lambda x: x.sum(0),
        lambda x: x.t().contiguous(),
        lambda x: x[torch.tensor([3, 3, 1] * 50).to(x.device)],
    ],
    ids=["topk", "cumsum", "argmax", "sum", "transpose", "gather"],
)
def test_no_kind_of_step_is_faster_than_its_bound(function):
    for row in recorded(function, halves(512, 128)).rows():
        assert row.us >= row.least_us, row


def test_the_bound_of_a_product_with_many_rows_is_arithmetic(block):
    card = description.constants()
    products = {row.extents: row for row in block.rows() if row.op == "matmul"}
    assert set(products) == {(512, 1024, 256), (512, 256, 1024)}
    for row in products.values():
        assert row.least_us == pytest.approx(512 * 256 * 1024 / card["pt_mac_per_ns"] / card["cores"] / 1000)


def test_the_bound_of_a_product_with_few_rows_is_its_weights():
    (row,) = recorded(torch.mm, halves(4, 1024), halves(1024, 2048)).rows()
    carried = 2 * (4 * 1024 + 1024 * 2048 + 4 * 2048)
    assert row.least_us == pytest.approx(carried / description.constants()["dram_gb_per_s"] / 1000)
    assert row.bound_by == "memory"


def test_a_step_knows_where_it_comes_from(block):
    for row in block.rows():
        assert row.kernels == (block.launches[0].plan.name,)
        assert row.line.startswith("test_attribution.py:")
    lines = {row.op: row.line for row in block.rows()}
    assert lines["matmul"].endswith("return x + torch.nn.functional.gelu(y @ up) @ down")


def test_equal_steps_are_one_row():
    x, w = halves(256, 256), halves(256, 256)

    def layers(x, w):
        for _ in range(5):
            x = torch.tanh(x @ w)
        return x

    rows = recorded(layers, x, w).rows()
    assert sum(row.count for row in rows if row.op == "matmul") == 5
    assert len(rows) < 5
    assert [row.us for row in rows] == sorted((row.us for row in rows), reverse=True)


def test_what_a_launch_reads_twice_counts_once():
    """Both products need the weights; a program that kept them on the chip would read them once."""
    recording = recorded(lambda x, w: (x @ w) @ w, halves(64, 512), halves(512, 512))
    least = sum(row.least_us for row in recording.rows())
    assert least * 1000 * description.constants()["dram_gb_per_s"] < 2 * (512 * 512 + 64 * 512 * 2) * 1.5


def test_bytes_in_lx_are_told_apart():
    recording = recorded(lambda x: torch.exp(-x) + 1, halves(512, 512))
    rows = {row.op: row for row in recording.rows()}
    whole = 2 * 512 * 512
    assert (rows["neg"].dram_bytes, rows["neg"].lx_bytes) == (whole, whole)
    assert (rows["exp"].dram_bytes, rows["exp"].lx_bytes) == (0, 2 * whole)
    assert rows["exp"].bound_by == "vector unit" and rows["neg"].bound_by.startswith("memory")


def test_tiny_steps_are_bound_by_their_start():
    assert [row.bound_by for row in recorded(torch.neg, halves(64)).rows()] == ["start"]


def test_eager_ops_and_transfers_are_the_rest():
    x = halves(256, 256)
    compiled = torch.compile(torch.neg)
    compiled(x), x + 1
    with timing.record() as recording:
        compiled(x)
        y = x + 1
        y.cpu()
    assert len(recording.launches) == 1 and recording.eager_launches == 1
    transfer = 2 * 256 * 256 / description.constants()["host_gb_per_s_small"] / 1000
    assert recording.other_us > transfer


def test_recordings_end_with_their_block():
    x = halves(64, 64)
    compiled = torch.compile(torch.neg)
    with timing.record() as outer:
        compiled(x)
        with timing.record() as inner:
            compiled(x)
    compiled(x)
    assert (len(outer.launches), len(inner.launches)) == (2, 1)
