"""Tensors of many dimensions, and of more than 2 GiB."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")

OPS = {
    "broadcast": lambda x, i: x + x[..., :1],
    "where": lambda x, i: torch.where(x > 0, x, -x),
    "sum": lambda x, i: x.sum(),
    "sum of some": lambda x, i: x.sum((0, 3, -1)),
    "amax": lambda x, i: x.amax(2),
    "argmax": lambda x, i: x.argmax(-1),
    "softmax": lambda x, i: x.softmax(3),
    "cumsum": lambda x, i: x.cumsum(4),
    "reversed": lambda x, i: x.permute(*reversed(range(x.dim()))).contiguous(),
    "reshape": lambda x, i: x.transpose(0, -2).reshape(-1),
    "steps": lambda x, i: x[..., ::2] * 2,
    "cat": lambda x, i: torch.cat([x, x], 2),
    "stack": lambda x, i: torch.stack([x, x], 3),
    "repeat": lambda x, i: x.repeat(*([1] * (x.dim() - 1)), 2),
    "flip": lambda x, i: x.flip(0, -1),
    "roll": lambda x, i: x.roll((1, 1), (0, -1)),
    "pad": lambda x, i: F.pad(x, (1, 2, 0, 1)),
    "index": lambda x, i: x[i],
    "index apart": lambda x, i: x[i, ..., i],
    "gather": lambda x, i: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    "scatter_add": lambda x, i: x.scatter_add(0, torch.zeros_like(x, dtype=torch.int64), x),
    "index_add": lambda x, i: x.index_add(0, i, x[:1].expand(2, *x.shape[1:])),
    "matmul": lambda x, i: x @ x.mT,
    "linear": lambda x, i: F.linear(x, x.new_ones(3, x.shape[-1])),
    "layer_norm": lambda x, i: F.layer_norm(x, x.shape[-2:]),
    "topk": lambda x, i: x.topk(1)[0],
    "sort": lambda x, i: x.sort(-1)[0],
    "cast": lambda x, i: x.int() + 1,
    "unfold": lambda x, i: x.unfold(-1, 2, 1) + 1,
    "diagonal": lambda x, i: x.diagonal(0, 0, -1) + 1,
    "in place": lambda x, i: x.clone().transpose(0, -1).add_(1),
    "slice": lambda x, i: x.clone().select(-1, 0).fill_(2),
}
SHAPES = {
    7: (2, 1, 3, 2, 2, 3, 5),
    8: (2, 2, 1, 3, 2, 2, 3, 5),
    10: (2, 1, 2, 1, 2, 1, 2, 1, 2, 3),
    12: (2,) * 12,
}


def compare(ops, rank, way):
    x = torch.arange(torch.Size(SHAPES[rank]).numel()).reshape(SHAPES[rank]) % 13 - 6.0
    i = torch.zeros(2, dtype=torch.int64)
    y = x.to("spyre")
    assert torch.equal(y.cpu(), x) and torch.equal(y.transpose(1, -1)[1:].cpu(), x.transpose(1, -1)[1:])
    for name, got in zip(ops, way(lambda x, i: [OPS[op](x, i) for op in ops])(y, i.to("spyre")), strict=True):
        torch.testing.assert_close(got.cpu(), OPS[name](x, i), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("rank", SHAPES)
def test_many_dimensions(rank):
    compare(list(OPS), rank, lambda function: function)


@pytest.mark.slow
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("part", range(4))
def test_many_dimensions_in_a_graph(rank, part):
    torch._dynamo.reset()
    compare(list(OPS)[part::4], rank, torch.compile)


@pytest.mark.slow
def test_more_than_2_gib():
    """1.2e9 elements: element and byte offsets beyond 31 bits, in copies, fills, kernels and views."""
    n, far = 1_200_000_000, 1_100_000_000
    with torch.spyre.fallback("error"):
        x = torch.zeros(n, dtype=torch.float16, device="spyre")
        x[-5:] = torch.arange(5.0).half().to("spyre")
        x[far : far + 10].fill_(3)
        assert x[-6:].tolist() == [0, 0, 1, 2, 3, 4]
        assert x[far - 2 : far + 12].tolist() == [0, 0, *[3] * 10, 0, 0]
        x.add_(1)
        rows = x.view(1000, -1)
        assert rows[:, -1].tolist() == [1] * 999 + [5] and rows.t()[-1, 999].item() == 5
        assert x.view(-1, 1000)[:, 3].sum(dtype=torch.float32).item() == n / 1000 + 3
        assert rows[-1].sum(dtype=torch.float32).item() == n / 1000 + 10
        assert rows.amax(1).tolist() == [4.0 if i == far // 1_200_000 else 1.0 for i in range(999)] + [5.0]
        assert (x[far:] * 2)[-5:].tolist() == [2, 4, 6, 8, 10]
    at = torch.tensor([n - 1, far, 5]).to("spyre")
    assert x[at].tolist() == [5, 4, 1]  # one core cannot reach that far: on the host
    x.index_put_((at,), torch.tensor([7.0, 8.0, 9.0]).half().to("spyre"))
    assert [x[n - 1].item(), x[far].item(), x[5].item()] == [7, 8, 9]
