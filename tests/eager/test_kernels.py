"""The kernels of eager ops: which calls share one, what is kept, what happens when compiling fails."""

import threading

import pytest
import torch

from torch_spyre import _C, eager


def random(rows: int = 4, columns: int = 128) -> torch.Tensor:
    return torch.randn(rows, columns).to(torch.float16).to("spyre")


def add_matrices(op, args) -> dict | None:
    """A compiler that knows one call: the sum of whole float16 matrices in their default layouts."""
    if str(op) != "aten.add.Tensor" or not isinstance(args[1], torch.Tensor) or args[1].shape != args[0].shape:
        return None
    rows, columns = args[0].shape
    operands = [{"argument": i, "strides": [rows * 128, 128, 2]} for i in (2, 0, 1)]
    step = {"op": "elementwise", "function": "add", "extents": [columns // 64, rows, 64], "operands": operands}
    code = {"name": "add", "arguments": [rows * columns * 2] * 3}
    plan = _C.prepare_kernel(code | {"steps": [{"type": "Compute", "program": {"steps": [step]}}]})
    return {
        "plan": plan,
        "arguments": [0, 1],
        "outputs": [{"size": [rows, columns], "stride": [columns, 1], "dtype": torch.float16, "layout": None}],
        "copies": [],
        "returns": [("output", 0)],
        "resize": [],
        "runtime_scalars": None,
    }


@pytest.fixture
def compiled(monkeypatch):
    """The calls that were compiled; nothing else than a sum can be."""
    calls = []

    def compile_call(op, args, kwargs, open):
        calls.append((op, args, kwargs))
        return add_matrices(op, args)

    monkeypatch.setattr(eager, "compile_call", compile_call)
    _C.forget_kernels()
    torch.spyre.reset_fallback_counts()
    with torch.spyre.fallback("count"):
        yield calls
    _C.forget_kernels()
    torch.spyre.reset_fallback_counts()


def test_a_call_is_compiled_once(compiled):
    x, y = random(), random()
    before = _C.kernel_counts()["launched"]
    results = [x + y, y + x]
    assert len(compiled) == 1 and _C.kernel_counts()["launched"] == before + 2
    assert torch.spyre.fallback_counts() == {}
    for result in results:
        torch.testing.assert_close(result.cpu(), x.cpu() + y.cpu(), rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: random(8) + random(8),
        lambda x, y: x + x,
        lambda x, y: x.add_(y),
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: x + y[:1],
        lambda x, y: x.float() + y.float(),
        lambda x, y: random(5)[1:] + y,
        lambda x, y: x + y.to(device_layout=torch.spyre.SpyreTensorLayout([4, 128], [128, 1], torch.float16, [1, 0])),
    ],
    ids=["shape", "shared", "in place", "number", "broadcast", "dtype", "offset", "layout"],
)
def test_calls_that_differ_are_compiled_apart(compiled, other):
    x, y = random(), random()
    x + y
    other(x, y)
    assert len(compiled) == 2


def test_numbers_are_constants(compiled):
    x = random()
    for number in (2, 2.0, True, torch.tensor(2.0), torch.tensor(2.0), 2):
        x + number
    assert len(compiled) == 4
    assert [args[1] for _, args, _ in compiled] == [2, 2.0, True, torch.tensor(2.0)]


def test_what_the_card_cannot_do_is_asked_once_and_falls_back(compiled):
    x = random()
    for _ in range(3):
        x.polygamma(1)
    assert len(compiled) == 1 and torch.spyre.fallback_counts() == {"aten::polygamma": 3}


def test_ops_with_a_kernel_are_no_fallback(compiled):
    x, y = random(), random()
    with torch.spyre.fallback("error"):
        x + y
        with pytest.raises(NotImplementedError, match="aten::polygamma has no kernel on the card yet"):
            x.polygamma(1)


def test_the_reason_is_told(monkeypatch, compiled):
    monkeypatch.setattr(eager, "compile_call", lambda *call: "Too many dimensions.")
    with torch.spyre.fallback("error"), pytest.raises(NotImplementedError, match="The card: Too many dimensions."):
        random().polygamma(1)


def test_python_sees_the_arguments_as_users_write_them(compiled):
    x = random()
    torch.sum(x, 1, dtype=torch.float32)
    ((op, args, kwargs),) = compiled
    assert str(op) == "aten.sum.dim_IntList" and args[1:] == ([1], False) and kwargs["dtype"] is torch.float32


def test_kernels_for_other_calls_are_refused(monkeypatch, compiled):
    nothing = {
        "plan": None,
        "arguments": [7],
        "outputs": [],
        "copies": [],
        "returns": [],
        "resize": [],
        "runtime_scalars": None,
    }
    monkeypatch.setattr(eager, "compile_call", lambda *call: nothing)
    with pytest.raises(IndexError, match="a kernel names tensor 7 of 1"):
        random().exp()


def test_errors_of_the_compiler_name_the_op_and_are_not_kept(monkeypatch):
    def broken(*_):
        raise KeyError("no such pass")

    _C.forget_kernels()
    monkeypatch.setattr(eager.calls, "compile_graph", broken)
    x = random()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="compiling aten.add.Tensor for the card failed: KeyError: 'no"):
            x + x
    assert _C.kernel_counts()["kept"] == 0


def test_threads_that_miss_together(monkeypatch, compiled):
    both = threading.Barrier(2)

    def compile_call(op, args, kwargs, open):
        both.wait(30)  # each thread compiles
        return add_matrices(op, args)

    monkeypatch.setattr(eager, "compile_call", compile_call)
    x, y = random(), random()
    results = []
    threads = [threading.Thread(target=lambda: results.append((x + y).cpu())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2 and torch.equal(*results) and _C.kernel_counts()["kept"] == 1


def test_the_kernels_kept_are_those_used_last(compiled):
    x, y = random(1, 1), random()
    for number in range(4200):
        x + number
        if number % 1000 == 0:
            y + y
    assert _C.kernel_counts()["kept"] == 4096
    assert sum(args[0] is y for _, args, _ in compiled) == 1
    x + 0
    assert len(compiled) == 4202


def test_a_tensor_without_memory_is_an_error(compiled):
    x = random()
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage was freed"):
        x + x
    assert compiled == []


def test_places_of_arguments():
    x, y = random(5), random(5)
    (layout, offset, shared), (_, further, other), (*_, own) = _C.argument_placements([x, x[1:], y])
    assert layout == x.device_tensor_layout() and (offset, further) == (0, 128) and (shared, other, own) == (0, 0, 2)
    assert [first for *_, first in _C.argument_placements([y, x, y[1:], x[2:], y, x])] == [0, 1, 0, 1, 0, 1]


def test_tensors_that_lie_alike():
    x = random()
    by_rows = torch.spyre.SpyreTensorLayout([4, 128], [128, 1], torch.float16, [1, 0])
    like_x, turned = _C.layout_guard(x), x.to(device_layout=by_rows)
    assert like_x(x) and like_x(random()) and like_x(x.t())
    assert not like_x(turned) and not like_x(random(5)) and not _C.layout_guard(turned)(x)
