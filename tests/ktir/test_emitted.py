"""What the compiler emits as KTIR: the same card program as through SuperDSC, so the same bits and the same time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.plans import planned
from torch_spyre import ktir
from torch_spyre._inductor import compiler


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
    "norm": (lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w, (halves(8, 256), halves(256))),
}


def compiled(function, inputs, road, monkeypatch):
    """The result and the descriptions of its kernels, with the text that they were compiled from."""
    found = []

    def keeping(make):
        def kept(name, texts, *rest):
            made = make(name, texts, *rest)
            found.append((texts, made["steps"]))
            return made

        return kept

    with planned(ktir=road), monkeypatch.context() as patch:
        for name in ("compile_bundle", "compile_module"):
            patch.setattr(compiler, name, keeping(getattr(compiler, name)))
        patch.setenv("SPYRE_KERNEL_CACHE", "0")
        torch._dynamo.reset()
        result = torch.compile(function)(*(x.to("spyre") for x in inputs)).cpu()
    return result, found


@pytest.mark.parametrize("name", CASES)
def test_both_roads_end_in_the_same_program(name, monkeypatch):
    function, inputs = CASES[name]
    result, kernels = compiled(function, inputs, False, monkeypatch)
    again, emitted = compiled(function, inputs, True, monkeypatch)
    assert len(emitted) == len(kernels) > 0
    for (_, steps), (_, wanted) in zip(emitted, kernels, strict=True):
        assert steps == wanted
    assert torch.equal(result, again)
