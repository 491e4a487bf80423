"""Sparse and nested tensors: their parts lie on the card, and the host computes with them."""

import copy
import io

import pytest
import torch
from torch import nn

DENSE = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


@pytest.fixture(autouse=True)
def silently():
    with torch.spyre.fallback("count"):
        yield


def same(function, *rest):
    """On both devices; gives the result of the card."""
    got, want = function("spyre", *rest), function("cpu", *rest)
    assert got.device.type == "spyre"
    assert got.layout == want.layout
    assert got.is_nested == want.is_nested
    if got.is_nested:
        got, want = got.to_padded_tensor(-1.0), want.to_padded_tensor(-1.0)
    elif got.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    torch.testing.assert_close(got.cpu(), want)
    return got


OPS = {
    "to_dense": lambda s: s.to_dense(),
    "add": lambda s: s + s,
    "scale": lambda s: s * 2,
    "in place": lambda s: s.mul_(2),
    "zero": lambda s: s.zero_(),
    "transpose": lambda s: s.t(),
    "clone": lambda s: s.clone(),
    "values": lambda s: s.values() if s.layout != torch.sparse_coo else s.coalesce().values(),
    "product": lambda s: s @ torch.ones(3, 2, device=s.device),
    "sum": lambda s: s.sum(),
    "half": lambda s: s.half(),
    "there and back": lambda s: s.cpu().to(s.device),
}


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=["coo", "csr"])
@pytest.mark.parametrize("name", OPS)
def test_sparse(name, layout):
    same(lambda device: OPS[name](DENSE.to(device).to_sparse(layout=layout)))


def test_making_them():
    indices, values = [[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0]
    same(lambda device: torch.sparse_coo_tensor(indices, values, (2, 2), device=device))
    same(lambda device: torch.sparse_coo_tensor(indices, values, (2, 2)).to(device))
    same(lambda device: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=device))
    same(lambda device: torch.zeros(3, 3, layout=torch.sparse_coo, device=device))
    same(lambda device: torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], device=device))
    same(lambda device: torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)]).to(device))


@pytest.mark.parametrize("copied", [torch.clone, copy.deepcopy])
def test_copies_have_memory_of_their_own(copied):
    first = DENSE.to("spyre").to_sparse()
    copied(first)._values().zero_()
    assert torch.equal(first.to_dense().cpu(), DENSE)


def test_printing_and_saving():
    for layout in (torch.sparse_coo, torch.sparse_csr):
        tensor = DENSE.to("spyre").to_sparse(layout=layout)
        assert "nnz=3" in repr(tensor) and "spyre" in repr(tensor)
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        assert torch.equal(torch.load(file).to_dense().cpu(), DENSE)
    assert "nested_tensor" in repr(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], device="spyre"))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients(optimizer):
    def train(device):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True).to(device)
        steps = optimizer(table.parameters(), lr=0.1)
        for _ in range(2):
            steps.zero_grad()
            table(torch.tensor([1, 2, 2], device=device)).square().sum().backward()
            assert table.weight.grad.is_sparse
            steps.step()
        return table.weight.detach()

    same(train)


def test_fallbacks_are_counted_and_may_be_errors():
    torch.spyre.reset_fallback_counts()
    tensor = DENSE.to("spyre").to_sparse()
    tensor.to_dense()
    assert torch.spyre.fallback_counts() == {"aten::_to_sparse": 1, "aten::_to_dense": 1}
    torch.spyre.reset_fallback_counts()
    with torch.spyre.fallback("error"), pytest.raises(NotImplementedError, match="_to_dense has no kernel on the card"):
        tensor.to_dense()


def test_quantized_tensors_are_refused():
    with pytest.raises(NotImplementedError, match="the card has no quantized tensors"):
        torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8).to("spyre")
    torch.spyre.reset_fallback_counts()


NESTED = {
    "add": lambda n: n + n,
    "relu": lambda n: n.relu(),
    "clone": lambda n: n.clone(),
    "linear": lambda n: nn.functional.linear(n, torch.ones(2, 3, device=n.device)),
    "one of them": lambda n: n.unbind()[1],
}


@pytest.mark.parametrize("name", NESTED)
def test_nested(name):
    parts = [torch.arange(6.0).view(2, 3), torch.ones(1, 3)]
    same(lambda device: NESTED[name](torch.nested.nested_tensor(parts, device=device)))


def test_attention_of_jagged_tensors():
    torch.manual_seed(0)
    parts = [torch.randn(2, 2, 8), torch.randn(3, 2, 8)]

    def attend(device):
        rows = torch.nested.nested_tensor(parts, device=device, layout=torch.jagged).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(rows, rows, rows).transpose(1, 2).to_padded_tensor(0.0)

    same(attend)


PADDING = torch.arange(7) >= torch.tensor([[7], [4], [1]])


@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize("mask_check", [True, False], ids=["", "unchecked"])
@pytest.mark.parametrize("padding", [PADDING, PADDING[1:2], PADDING.flip(1)], ids=["left", "one", "right"])
def test_encoder_with_padding(padding, mask_check, norm):
    """As on the host, padding comes out as 0 if it is at the end."""
    if not mask_check and padding[-1, 0]:
        pytest.skip("the host takes what is not checked for left aligned")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32) if norm else None, mask_check=mask_check).eval()
    x = torch.randn(len(padding), 7, 32)
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=padding)
        with torch.spyre.fallback("error"):
            got = encoder.to("spyre")(x.to("spyre"), src_key_padding_mask=padding.to("spyre"))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
