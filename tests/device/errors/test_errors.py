"""Bad input: every message says what was wrong; nothing is truncated, nothing crashes, the card stays usable."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch.spyre import SpyreTensorLayout

import torch_spyre


@pytest.fixture(autouse=True)
def card_stays_usable():
    yield
    assert torch.ones(3, device="spyre").tolist() == [1, 1, 1]


MAKERS = {
    "empty": lambda device: torch.empty(3, device=device),
    "empty of nothing": lambda device: torch.empty(0, device=device),
    "strided": lambda device: torch.empty_strided((2, 2), (1, 2), device=device),
    "to": lambda device: torch.ones(3).to(device),
    "storage": lambda device: torch.UntypedStorage(128, device=device),
    "layout": lambda device: torch.empty(
        3, device=device, device_layout=SpyreTensorLayout([3], torch.float32), dtype=torch.float32
    ),
    "stream": lambda device: torch.Stream(device=device),
    "current stream": torch.accelerator.current_stream,
    "generator": torch.Generator,
    "synchronize": torch.accelerator.synchronize,
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("index", [1, 9, 100])
def test_wrong_device_index(make, index):
    message = (
        f"invalid device index {index}: this process sees 1 spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which"
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        MAKERS[make](f"spyre:{index}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex32, torch.complex128, torch.uint16, torch.uint64])
@pytest.mark.parametrize(
    "make", [lambda t: torch.empty(2, dtype=t, device="spyre"), lambda t: torch.ones(2, dtype=t).to("spyre")]
)
def test_unsupported_dtype(dtype, make):
    with pytest.raises(
        TypeError, match=f"Spyre backend does not support dtype {dtype}: the card has no such number format"
    ):
        make(dtype)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_int64_values_that_do_not_fit(value):
    x = torch.zeros(3, dtype=torch.int64, device="spyre")
    for write in (
        lambda: torch.tensor([1, value]).to("spyre"),
        lambda: x.copy_(torch.tensor([1, value, 2])),
        lambda: x.fill_(value),
        lambda: torch.full((3,), value, device="spyre"),
    ):
        with pytest.raises(
            ValueError, match=f"int64 value {value} does not fit the card, which keeps int64 in 32 bits"
        ):
            write()
    assert x.tolist() == [0, 0, 0]


def test_int64_values_that_just_fit():
    x = torch.tensor([2**31 - 1, -(2**31)])
    assert torch.equal(x.to("spyre").cpu(), x)


def test_layout_too_small_for_the_tensor():
    with pytest.raises(
        ValueError, match=r"layout does not match a tensor of size \[4, 4\].*has no place in its layout"
    ):
        torch.ones(4, 4).to(device_layout=SpyreTensorLayout([2, 2], torch.float32))


def test_layout_of_another_format():
    message = "layout does not match the tensor: torch.float32 is IEEE_FP32 on the card, the layout says SEN169_FP16"
    with pytest.raises(RuntimeError, match=message):
        torch.ones(4, 4).to(device_layout=SpyreTensorLayout([4, 4], torch.float16))


def test_layout_for_a_tensor_elsewhere():
    with pytest.raises(ValueError, match="device_layout describes tensors on spyre, not on cpu"):
        torch.empty(4, device="cpu", device_layout=SpyreTensorLayout([4], torch.float32))


FREED_USES = {
    "cpu": lambda x: x.cpu(),
    "fill": lambda x: x.fill_(1),
    "copy to": lambda x: x.copy_(torch.ones(4)),
    "copy from": lambda x: torch.ones(4, device="spyre").copy_(x),
    "clone": lambda x: x.clone(),
    "add": lambda x: x + 1,
    "sum": lambda x: x.sum(),
    "print": repr,
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("use", FREED_USES)
def test_freed_storage(use):
    x = torch.ones(4, device="spyre")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage was freed"):
        FREED_USES[use](x)


def test_freed_storage_that_grew_back_is_usable():
    x = torch.ones(4, device="spyre")
    size = x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size)
    assert x.fill_(2).tolist() == [2, 2, 2, 2]


def kernel(**changes):
    step = {
        "op": "copy",
        "extents": [64],
        "operands": [{"argument": 0, "strides": [2]}, {"argument": 1, "strides": [2]}],
        **changes,
    }
    program = {"steps": [step]}
    return {"name": "k", "arguments": [128, 128], "steps": [{"type": "Compute", "program": program}]}


MALFORMED = {
    "no name": ({}, "kernel: lacks the field 'name'"),
    "unknown step": ({"name": "k", "arguments": [], "steps": [{"type": "Jump"}]}, "unknown step type 'Jump'"),
    "unknown op": (kernel(op="explode"), "unknown operation 'explode'; the card knows copy, fill, restickify"),
    "no room": (kernel(extents=[65]), r"operand 0: reaches bytes \[0, 130\) of argument 0, which has 128"),
    "no such argument": (
        kernel(operands=[{"argument": 7, "strides": [2]}, {"argument": 0, "strides": [2]}]),
        "operand 0: argument 7, there are 2",
    ),
    "an operand too few": (kernel(operands=[{"argument": 0, "strides": [2]}]), "operands: copy takes 2, has 1"),
    "wrong type": (kernel(extents="many"), "the field 'extents' has the wrong type: 'many'"),
    "negative extent": (kernel(extents=[-1]), "every extent must be at least 1, one is -1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_program_is_refused(case):
    code, message = MALFORMED[case]
    with pytest.raises(ValueError, match=message):
        torch_spyre._C.prepare_kernel(code)


def test_program_with_too_small_a_tensor_is_not_run():
    plan = torch_spyre._C.prepare_kernel({**kernel(), "arguments": [128, 256]})
    to, source = (
        torch.zeros(2, 64, dtype=torch.float16, device="spyre"),
        torch.ones(64, dtype=torch.float16, device="spyre"),
    )
    with pytest.raises(ValueError, match="'k': argument 1 needs 256 bytes, the tensor has 128"):
        torch_spyre._C.launch_jobplan(plan, [to, source])
    assert not to.cpu().any()


def test_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match="card 0 is out of memory: asked for 8.00 TiB.*split it"):
        torch.empty(1 << 42, dtype=torch.float16, device="spyre")


def test_reinterpreting_bits():
    with pytest.raises(RuntimeError, match="their bits cannot be reinterpreted on the card"):
        torch.ones(4, device="spyre").view(torch.int32)


def test_storage_of_another_dtype():
    with pytest.raises(RuntimeError, match="this storage holds torch.float32 in the card's number format"):
        torch.empty(0, dtype=torch.float16, device="spyre").set_(
            torch.ones(4, device="spyre").untyped_storage(), 0, (4,)
        )


# --- indices out of range: found on the card, raised by the next call that waits

INDEXED = {
    "index": lambda x, v, i: x[i],
    "index columns": lambda x, v, i: x[:, 2 * i],
    "index_put": lambda x, v, i: x.index_put((i,), v),
    "index_put accumulated": lambda x, v, i: x.index_put((i,), v, accumulate=True),
    "in place": lambda x, v, i: x.index_put_((i,), v),
    "gather": lambda x, v, i: x.gather(0, i[:, None].expand(2, 4)),
    "take": lambda x, v, i: x.take(i * 5),
    "put": lambda x, v, i: x.put(i * 5, v[:, 0]),
    "index_select": lambda x, v, i: x.index_select(0, i),
    "index_add": lambda x, v, i: x.index_add(0, i, v),
    "index_copy": lambda x, v, i: x.index_copy(0, i, v),
    "index_fill": lambda x, v, i: x.index_fill(0, i, 1),
    "index_reduce": lambda x, v, i: x.index_reduce(0, i, v, "amax"),
    "scatter": lambda x, v, i: x.scatter(0, i[:, None].expand(2, 4), v),
    "scatter number": lambda x, v, i: x.scatter(0, i[:, None].expand(2, 4), 1),
    "scatter_add": lambda x, v, i: x.scatter_add(0, i[:, None].expand(2, 4), v),
    "scatter_reduce": lambda x, v, i: x.scatter_reduce(0, i[:, None].expand(2, 4), v, "mean", include_self=False),
    "embedding": lambda x, v, i: F.embedding(i, x),
    "one_hot": lambda x, v, i: F.one_hot(i, 3),
    "nll_loss": lambda x, v, i: F.nll_loss(x[:2, :3], i),
    "cross_entropy": lambda x, v, i: F.cross_entropy(x[:2, :3], i),
}


def tables(*index):
    return torch.arange(12.0).reshape(3, 4).to("spyre"), torch.ones(2, 4).to("spyre"), torch.tensor(index).to("spyre")


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning", "ignore:index_reduce")
@pytest.mark.parametrize("bad", [3, -4, 100_000])
@pytest.mark.parametrize("op", INDEXED)
def test_an_index_out_of_range(op, bad):
    stream = torch.spyre.Stream()
    inputs, others = tables(0, bad), tables(0, 1)
    torch.spyre.synchronize()
    with stream, pytest.raises(IndexError, match="out of bounds|out of range|outside"):
        INDEXED[op](*inputs)
        torch.spyre.current_stream().synchronize()
    stream.synchronize()  # it was raised once
    want = INDEXED[op](*(x.cpu() for x in others))
    torch.testing.assert_close(INDEXED[op](*others).cpu(), want)  # other streams, and this op, go on
    with stream:
        torch.testing.assert_close(INDEXED[op](*tables(0, 1)).cpu(), want)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning", "ignore:index_reduce")
@pytest.mark.parametrize("op", [op for op in INDEXED if op != "one_hot"])  # PyTorch's own assertion comes first
def test_an_index_out_of_range_in_a_graph(op):
    torch._dynamo.reset()
    compiled = torch.compile(INDEXED[op])
    with pytest.raises(IndexError, match="out of bounds|out of range|outside"):
        compiled(*tables(0, 3))
        torch.spyre.synchronize()
    want = INDEXED[op](*(x.cpu() for x in tables(0, 1)))
    torch.testing.assert_close(compiled(*tables(0, 1)).cpu(), want)


def test_errors_of_two_streams_are_told_apart():
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    x, _, i = tables(0, 7)
    torch.spyre.synchronize()
    for stream in (first, second):
        with stream:
            x[i]
    for stream in (second, first):
        with pytest.raises(IndexError, match="index 7 is out of bounds for a dimension of 3"):
            stream.synchronize()
        stream.synchronize()


# --- what the host refuses, the card refuses

REFUSED = {
    "add": lambda x: x + x[:, :3],
    "in place": lambda x: x[:, :1].add_(x),
    "expanded in place": lambda x: x[:, :1].expand(3, 4).add_(1),
    "matmul": lambda x: x @ x,
    "cat": lambda x: torch.cat([x, x[0]]),
    "view": lambda x: x.t().view(-1),
    "reshape": lambda x: x.reshape(5, 5),
    "expand": lambda x: x.expand(4, 4),
    "select": lambda x: x.select(0, 3),
    "dimension": lambda x: x.sum(2),
    "twice a dimension": lambda x: x.sum((0, 0)),
    "permute": lambda x: x.permute(0, 0),
    "squeeze": lambda x: x.squeeze(5),
    "gather of another rank": lambda x: x.gather(0, torch.zeros(2, dtype=torch.int64, device=x.device)),
    "float index": lambda x: x[x],
    "index_select by floats": lambda x: x.index_select(0, x[0]),
    "scatter of another dtype": lambda x: x.scatter(0, x.long(), x.long()),
    "index_add of another shape": lambda x: x.index_add(0, x[:2, 0].long(), x),
    "embedding by floats": lambda x: F.embedding(x, x),
    "mask of another shape": lambda x: x[x[:2] > 0],
    "where": lambda x: torch.where(x > 0, x, x[:2]),
    "bitwise of floats": lambda x: x & x,
    "out of another dtype": lambda x: torch.add(x, 1, out=torch.empty(3, 4, dtype=torch.int64, device=x.device)),
    "mean of integers": lambda x: x.long().mean(),
    "linear": lambda x: F.linear(x, x.t()),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "cross_entropy": lambda x: F.cross_entropy(x, x[0].long()),
    "cross_entropy by int32": lambda x: F.cross_entropy(x, x[:, 0].int()),
    "nll_loss by int32": lambda x: F.nll_loss(x, x[:, 0].int()),
    "pad": lambda x: F.pad(x, (1, 2, 3)),
    "reflect": lambda x: F.pad(x, (9, 9), mode="reflect"),
    "roll": lambda x: x.roll((1, 2), 0),
    "repeat": lambda x: x.repeat(2),
    "unfold": lambda x: x.unfold(1, 9, 1),
    "split": lambda x: x.split([1, 1], 0),
    "stack": lambda x: torch.stack([x, x[:2]]),
    "diagonal": lambda x: x.diagonal(0, 0, 0),
    "topk": lambda x: x.topk(9),
    "sort": lambda x: x.sort(3),
    "qr": lambda x: torch.linalg.qr(x[0]),
    "inverse": lambda x: torch.linalg.inv(x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "max of nothing": lambda x: x[:0].max(),
    "min of no integers": lambda x: x[:0].int().min(),
    "argmax of nothing": lambda x: x[:0].argmax(0),
    "index_select by a matrix": lambda x: x.index_select(0, x[:2, :2].long()),
    "cat without dimensions": lambda x: torch.cat([x[0, 0], x[0, 1]]),
    "logcumsumexp of integers": lambda x: x.int().logcumsumexp(0),
    "one_hot of a negative": lambda x: F.one_hot(x[0, :1].long() - 1),
    "masked_fill": lambda x: x.half().masked_fill(x > 0, -1e9),
    "masked_fill of fp32": lambda x: x.masked_fill(x > 0, 1e39),
    "pad with much": lambda x: F.pad(x.half(), (1, 1), value=-1e9),
    "clamp": lambda x: x.half().clamp(-1e9, 1),
    "clamp in integers": lambda x: x.half().clamp(0, 100_000),
    "scatter of much": lambda x: x.half().scatter(1, x[:, :1].long() * 0, -1e9),
    "index_fill of much": lambda x: x.half().index_fill(1, x[0, :1].long(), -1e9),
    "alpha": lambda x: torch.add(x.half(), x.half(), alpha=1e9),
    "softmax": lambda x: x.softmax(3),
    "softmax from the end": lambda x: x.half().softmax(-3),
    "layer_norm with halves": lambda x: F.layer_norm(x, (4,), x[0].half()),
    "linear with halves": lambda x: F.linear(x, x, x[:, 0].half()),
    "addmm with halves": lambda x: torch.addmm(x[:, :3].half(), x, x.t()),
    "convolution with halves": lambda x: F.conv1d(x[None], x[None, :, :2].half()),
    "batch_norm with halves": lambda x: F.batch_norm(x, x[0] * 0, x[0], x[0].half(), x[0].half()),
    "index_add with halves": lambda x: x.index_add(0, (x[:, 0] * 0).long(), x.half()),
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("op", REFUSED)
def test_bad_input_raises_what_the_host_raises(op):
    x = torch.arange(12.0).reshape(3, 4)
    y = x.to("spyre")
    with pytest.raises(Exception) as here:  # noqa: B017
        REFUSED[op](x)
    with pytest.raises(here.type) as there:
        REFUSED[op](y)
    assert "compiling" not in str(there.value)
    assert torch.equal(y.cpu(), x) and torch.equal((y + 1).cpu(), x + 1)


INTO = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "mm": lambda x, out: torch.mm(x, x.t(), out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "inverse": lambda x, out: torch.linalg.inv(x[:, :3], out=out),
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("op", INTO)
def test_a_refused_call_leaves_its_output_alone(op):
    out = torch.arange(3, dtype=torch.int32, device="spyre")
    with pytest.raises((RuntimeError, TypeError)):
        INTO[op](torch.arange(12.0, device="spyre").reshape(3, 4), out)
    assert out.tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("op", REFUSED)
def test_bad_input_in_a_graph(op):
    """What tracing does not see, the op itself raises as it does eagerly."""
    x = torch.arange(12.0).reshape(3, 4)
    compiled = torch.compile(REFUSED[op])
    here = {raised_by(REFUSED[op], x), raised_by(compiled, x)}
    assert raised_by(compiled, x.to("spyre")) in here


WRONG_DTYPES = {
    "softmax of integers": lambda x: F.softmax(x.int(), 0),
    "var of integers": lambda x: x.int().var(),
    "std of bools": lambda x: x.bool().std(),
    "logcumsumexp of bools": lambda x: x.bool().logcumsumexp(0),
    "hypot of integers": lambda x: torch.hypot(x.int(), x.int()),
    "lerp of integers": lambda x: torch.lerp(x.int(), x.int(), 0.5),
    "elu of integers": lambda x: F.elu(x.int()),
    "leaky_relu of bools": lambda x: F.leaky_relu(x.bool()),
    "threshold of bools": lambda x: F.threshold(x.bool(), 0, 1),
    "threshold of much": lambda x: F.threshold(x.half(), 0, -1e9),
    "addcmul of bools": lambda x: torch.addcmul(x.bool(), x.bool(), x.bool()),
    "pow of bools": lambda x: x.bool().pow(x.bool()),
    "argmax of bools": lambda x: x.bool().argmax(),
    "topk of bools": lambda x: x.bool().topk(2),
    "add of 8 bits": lambda x: x.to(torch.float8_e4m3fn) + x.to(torch.float8_e4m3fn),
    "max of 8 bits": lambda x: x.to(torch.float8_e4m3fn).max(),
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("rows", [3, 3000], ids=["small", "large"])
@pytest.mark.parametrize("op", WRONG_DTYPES)
def test_dtypes_that_the_host_has_no_kernel_for(op, rows):
    x = torch.arange(4.0 * rows).reshape(rows, 4).clamp(max=400)
    with pytest.raises(Exception) as here:  # noqa: B017
        WRONG_DTYPES[op](x)
    with pytest.raises(here.type, match=re.escape(str(here.value).splitlines()[0])):
        WRONG_DTYPES[op](x.to("spyre"))


def test_results_in_float64_say_so():
    """Python's operators hide a TypeError."""
    with pytest.raises(RuntimeError, match="does not support dtype torch.float64.*sub"):
        torch.tensor(1.5, dtype=torch.float64) - torch.arange(3, device="spyre")


def raised_by(function, x):
    torch._dynamo.reset()
    try:
        function(x)
    except Exception as error:
        return type(error)


MIXED = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: y - x,
    "matmul": lambda x, y: x @ y.t(),
    "cat": lambda x, y: torch.cat([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "linear": lambda x, y: F.linear(x, y),
    "gather": lambda x, y: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "scatter": lambda x, y: x.scatter(0, torch.zeros(1, 4, dtype=torch.int64), 1),
    "index_add": lambda x, y: x.index_add(0, torch.tensor([0]), x[:1]),
    "index_select": lambda x, y: x.index_select(0, torch.tensor([0])),
    "index_put": lambda x, y: x.index_put((torch.tensor([0]),), y[:1]),
    "embedding": lambda x, y: F.embedding(torch.tensor([0]), x),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0]),
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.tensor([0, 1, 2])),
    "sort's output": lambda x, y: torch.sort(x, out=(y, y.long())),
    "attention": lambda x, y: F.scaled_dot_product_attention(x, y, y),
}


@pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")
@pytest.mark.parametrize("op", MIXED)
def test_two_devices(op):
    y = torch.arange(12.0).reshape(3, 4)
    with pytest.raises(RuntimeError, match="the same device|two devices"):
        MIXED[op](y.to("spyre"), y)
