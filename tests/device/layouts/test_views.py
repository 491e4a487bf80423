"""Every view op: same values, same strides, same storage as on the host, and writes go through."""

import pytest
import torch

HOST = torch.arange(2 * 6 * 70, dtype=torch.float32).reshape(2, 6, 70)

VIEWS = {
    "alias": lambda x: torch.ops.aten.alias(x),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "as_strided overlapping": lambda x: x.as_strided((5, 4), (1, 1), 3),
    "broadcast_to": lambda x: x[:1].broadcast_to(3, 6, 70),
    "chunk": lambda x: x.chunk(4, 2)[3],
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "dsplit": lambda x: x.dsplit(2)[1],
    "expand": lambda x: x[:, :1].expand(-1, 6, 70),
    "expand_as": lambda x: x[:, :, :1].expand_as(x),
    "flatten": lambda x: x.flatten(1),
    "hsplit": lambda x: x.hsplit(3)[1],
    "index with ints, slices, None, ...": lambda x: x[1, ..., None, 3:60:7],
    "mT": lambda x: x.mT,
    "mH": lambda x: x[0].mH,
    "moveaxis": lambda x: x.moveaxis(0, 2),
    "movedim": lambda x: x.movedim((0, 1), (2, 0)),
    "narrow": lambda x: x.narrow(2, 60, 10),
    "permute": lambda x: x.permute(2, 0, 1),
    "ravel": lambda x: x.ravel(),
    "real": lambda x: x.real,
    "reshape": lambda x: x.reshape(12, 70),
    "reshape_as": lambda x: x.reshape_as(x.new_empty(4, 210)),
    "select": lambda x: x.select(1, 4),
    "slice with a step": lambda x: x[:, ::2, 1::3],
    "split": lambda x: x.split(64, 2)[1],
    "split sizes": lambda x: x.split([1, 5], 1)[1],
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze dim": lambda x: x[:1].squeeze(0),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "swapdims": lambda x: x.swapdims(1, 2),
    "T": lambda x: x[0].T,
    "t": lambda x: x[1].t(),
    "tensor_split": lambda x: x.tensor_split(3, 2)[1],
    "transpose": lambda x: x.transpose(0, 2),
    "unbind": lambda x: x.unbind(1)[5],
    "unflatten": lambda x: x.unflatten(2, (7, 10)),
    "unfold": lambda x: x.unfold(2, 10, 20),
    "unfold overlapping": lambda x: x.unfold(2, 8, 3),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1)[1],
    "view": lambda x: x.view(3, 4, 70),
    "view -1": lambda x: x.view(-1),
    "view_as": lambda x: x.view_as(x.new_empty(12, 70)),
    "view same dtype": lambda x: x.view(torch.float32),
    "vsplit": lambda x: x.vsplit(2)[1],
    "to nothing new": lambda x: x.to(torch.float32),
    "contiguous already": lambda x: x.contiguous(),
    "view of a view": lambda x: x.transpose(1, 2)[1, 5:69:2].t()[::3],
    "view of a view of a view": lambda x: x.permute(2, 0, 1).unfold(0, 10, 10)[3:, 0].diagonal(0, 0, 1),
    "rank 0": lambda x: x[1, 2, 3],
    "nothing": lambda x: x[:, 3:3],
}
OVERLAPPING = ("as_strided overlapping", "broadcast_to", "expand", "expand_as", "unfold overlapping")


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view_equals_the_host(view):
    base = HOST.to("spyre")
    with torch.spyre.fallback("error"):
        seen = view(base)
    expected = view(HOST)
    assert (seen.shape, seen.stride(), seen.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert seen.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert torch.equal(seen.cpu(), expected)


@pytest.mark.parametrize("view", [v for k, v in VIEWS.items() if k not in OVERLAPPING])
def test_writing_through_a_view_changes_its_elements_only(view):
    base, host = HOST.to("spyre"), HOST.clone()
    values = torch.randn(view(host).shape)
    view(base).copy_(values)
    view(host).copy_(values)
    assert torch.equal(base.cpu(), host)
    view(base).fill_(-1)
    view(host).fill_(-1)
    assert torch.equal(base.cpu(), host)


@pytest.mark.parametrize("view", [v for k, v in VIEWS.items() if k not in OVERLAPPING])
@pytest.mark.filterwarnings("ignore::torch_spyre.ops.fallbacks.FallbackWarning")
def test_in_place_ops_through_a_view(view):
    base, host = HOST.to("spyre"), HOST.clone()
    view(base).mul_(2).add_(1)
    view(host).mul_(2).add_(1)
    assert torch.equal(base.cpu(), host)


@pytest.mark.parametrize("view", ["broadcast_to", "expand", "expand_as"])
@pytest.mark.parametrize("write", [lambda x: x.fill_(1), lambda x: x.copy_(HOST[:1]), lambda x: x.zero_()])
def test_writing_to_expanded_elements_is_refused(view, write):
    base = HOST.to("spyre")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        write(VIEWS[view](base))
    assert torch.equal(base.cpu(), HOST)


def test_writes_show_in_every_view():
    base = torch.zeros(4, 100, device="spyre")
    column, row = base[:, 70], base[2]
    column.fill_(1)
    row[60:80] = 2
    assert column.tolist() == [1, 1, 2, 1]
    assert base.cpu().sum() == 3 + 40


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.uint8])
def test_view_as_another_dtype_is_refused(dtype):
    with pytest.raises(RuntimeError, match="their bits cannot be reinterpreted on the card"):
        torch.zeros(4, device="spyre").view(dtype)


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((5,), (1,), 0), ((2, 2), (3, 1), 0), ((1,), (1,), 4), ((64,), (1,), 0)]
)
def test_padding_is_out_of_reach(size, stride, offset):
    x = torch.zeros(4, dtype=torch.float16, device="spyre")
    with pytest.raises(RuntimeError, match="of a storage of 4 elements|out of bounds for storage"):
        x.as_strided(size, stride, offset)


def test_impossible_views_raise_what_the_host_raises():
    x = HOST.to("spyre").transpose(0, 1)
    with pytest.raises(RuntimeError, match="view size is not compatible with input tensor's size and stride"):
        x.view(-1)
    with pytest.raises(RuntimeError, match=r"shape '\[11\]' is invalid for input of size 840"):
        x.reshape(11)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.select(3, 0)


def test_views_know_their_base():
    x = HOST.to("spyre").requires_grad_()
    assert x[1]._base is x and x[1].t()._base is x
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad is being used in an in-place"):
        x[0].fill_(1)


def test_in_place_view_changes():
    x = torch.arange(6.0).reshape(2, 3).to("spyre")
    x.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1).swapaxes_(0, 1)
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_is_set_to():
    x = torch.zeros(4, 3, device="spyre")
    assert x.is_set_to(x.view(4, 3))
    assert not any(x.is_set_to(other) for other in (x[1:], x.t(), x.view(12), x.clone()))
