"""What the compiler emits as KTIR: the same card program as through SuperDSC, so the same bits and the same time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.plans import planned
from torch_spyre import ktir
from torch_spyre._inductor import compiler
from torch_spyre.diagnostics import device_bytes


def halves(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).half()


CASES = {
    "add": (lambda x, y: x + y, (halves(4, 100), halves(4, 100))),
    "broadcast": (lambda x, y: x * y, (halves(7, 64), halves(64))),
    "column": (lambda x, y: x - y, (halves(130, 70), halves(130, 1))),
    "constant": (lambda x: x * 0.5 + 3, (halves(3, 5, 33),)),
    "functions": (lambda x: F.silu(x) * torch.exp(-x), (halves(64, 256),)),
    "where": (lambda x, y: torch.where(x > y, x, y), (halves(10, 65), halves(10, 65))),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (halves(300),)),
    "wide": (lambda x: x.float() * 3, (halves(5, 90),)),
    "integers": (lambda i: i * 3 + 1, (torch.arange(1000).reshape(10, 100),)),
    "sum of rows": (lambda x: x.sum(1), (halves(50, 200),)),
    "sum of columns": (lambda x: x.sum(0), (halves(50, 200),)),
    "largest": (lambda x: x.amax(-1), (halves(64, 64),)),
    "mean": (lambda x: x.mean(-1, keepdim=True), (halves(6, 7, 130),)),
    "matmul": (lambda a, b: a @ b, (halves(70, 130), halves(130, 90))),
    "batches": (lambda a, b: a @ b, (halves(3, 20, 64), halves(3, 64, 100))),
    "transposed": (lambda a, b: a @ b.t(), (halves(64, 128), halves(96, 128))),
    "transpose": (lambda x: x.t().contiguous(), (halves(100, 130),)),
    "softmax": (lambda x: torch.softmax(x, -1), (halves(33, 100),)),
    "any": (lambda x: (x > 2).any(-1), (halves(20, 130),)),
    "wide sum": (lambda x: x.float().sum(-1), (halves(20, 130),)),
    "norm": (lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w, (halves(8, 256), halves(256))),
}


EVERYDAY = ("column", "matmul", "softmax")  # one of each kind; the others at night


def some(names):
    return [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in names]


def compiled(function, inputs, road, monkeypatch):
    """The result, and of each kernel its text, its steps and the bytes of its arguments and of its pool."""
    found = []

    def keeping(make):
        def kept(name, texts, *rest):
            made = make(name, texts, *rest)
            found.append((texts, made["steps"], made["arguments"], made["allocate"]))
            return made

        return kept

    with planned(ktir=road), monkeypatch.context() as patch:
        for name in ("compile_bundle", "compile_module"):
            patch.setattr(compiler, name, keeping(getattr(compiler, name)))
        patch.setenv("SPYRE_KERNEL_CACHE", "0")
        torch._dynamo.reset()
        result = torch.compile(function)(*(x.to("spyre") for x in inputs))
    return result, found


@pytest.mark.parametrize("name", some(CASES))
def test_both_roads_end_in_the_same_program(name, monkeypatch):
    function, inputs = CASES[name]
    result, kernels = compiled(function, inputs, False, monkeypatch)
    again, emitted = compiled(function, inputs, True, monkeypatch)
    assert len(emitted) == len(kernels) > 0
    for (_, steps, *_), (_, wanted, *_) in zip(emitted, kernels, strict=True):
        assert steps == wanted
    assert torch.equal(result.cpu(), again.cpu())


def interpreted(text, arrays, pool):
    """Runs every function of a kernel on the bytes of its arguments and of its pool."""
    module = ktir.load(text)
    bases = {f"arg{i}": i << 40 for i in range(len(arrays))} | {"pool": len(arrays) << 40}
    memory = ktir.Memory(
        {bases[f"arg{i}"]: array for i, array in enumerate(arrays)} | {bases["pool"]: pool}, copied=False
    )
    for name, function in module.functions.items():
        module.run(name, memory=memory, **{value.name: bases[value.name] for value in function.arguments})


# Folds have another order in the interpreter, and exp in SEN169 is the card's own.
EXACT = [
    "add",
    "broadcast",
    "column",
    "constant",
    "functions",
    "where",
    "clamp",
    "wide",
    "integers",
    "largest",
    "transpose",
]


@pytest.mark.parametrize("name", some([*EXACT, "matmul", "batches", "sum of rows", "softmax"]))
def test_the_text_alone_says_what_is_computed(name, monkeypatch):
    function, inputs = CASES[name]
    result, ((text, _, sizes, allocated),) = compiled(function, inputs, True, monkeypatch)
    given = [device_bytes.get(x.to("spyre"), size) for x, size in zip(inputs, sizes, strict=False)]
    widths = [2 if x.dtype == torch.float16 else 4 for x in (*inputs, result)]
    arrays = [np.frombuffer(each, np.uint8).copy().view(f"u{w}") for each, w in zip(given, widths, strict=False)]
    arrays.append(np.zeros(sizes[-1] // widths[-1], f"u{widths[-1]}"))
    interpreted(text, arrays, np.zeros(max([2, *allocated]), np.uint8))
    wanted = result.cpu()
    device_bytes.put(result, arrays[-1].tobytes())
    if name in EXACT:
        assert torch.equal(result.cpu(), wanted)
    else:
        torch.testing.assert_close(result.cpu(), wanted, rtol=2**-8, atol=1e-3)
