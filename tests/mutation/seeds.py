"""Valid inputs, as the compiler makes them of small programs: what is damaged to get a case."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from tests.mutation import caches, captured, card, directories, models, tile_programs
from tests.mutation.targets import TARGETS, Refused
from torch_spyre import _C
from torch_spyre._inductor import compiler, spyre_hint
from torch_spyre.execution import kernel
from torch_spyre.ir import spyrecode

MOST = 1 << 16  # bytes of all arguments of a seed: cases are to be quick


def _halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def _indices(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(below))


def _tiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 4}):
        return torch.softmax(x + y, -1) * x


def _nested_tiles(x: torch.Tensor) -> torch.Tensor:
    with spyre_hint(named_dims=["A", "M", "N"], num_tiles_per_dim={"A": 2}):
        y = x.exp()
        with spyre_hint(num_tiles_per_dim={"M": 4}):
            return torch.relu(y) + x


def _divided(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with spyre_hint(named_dims=["M", "N", "K"], work_div={"M": 2, "K": 2}):
        return x @ y


def _norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w) @ w.expand(x.shape[-1], -1).mT


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


EAGER: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add": (torch.add, (_halves(5, 200), _halves(5, 1))),
    "scaled": (lambda x: x * 0.3, (_halves(3, 64),)),
    "fp32": (torch.mul, (_halves(4, 40).float(), _halves(4, 40).float())),
    "softmax": (lambda x: torch.softmax(x, -1), (_halves(6, 100),)),
    "matmul": (torch.matmul, (_halves(2, 8, 64), _halves(2, 64, 70))),
    "sum": (lambda x: x.sum(1), (_halves(3, 50, 65),)),
    "max": (lambda x: x.amax(0), (_halves(7, 65),)),
    "gather": (lambda x, i: x[i], (_halves(9, 64), _indices(9, 6))),
    "take": (lambda x, i: torch.gather(x, 1, i), (_halves(4, 64), _indices(64, 4, 5))),
    "scatter": (lambda x, i, y: x.index_add(0, i, y), (_halves(9, 64), _indices(9, 4), _halves(4, 64))),
    "put": (lambda x, i, y: x.index_copy(0, i, y), (_halves(9, 64), torch.tensor([3, 1, 7]), _halves(3, 64))),
    "topk": (lambda x: torch.topk(x, 3), (_halves(4, 70),)),
    "cumsum": (lambda x: x.cumsum(1), (_halves(3, 70),)),
    "argmax": (lambda x: x.argmax(1), (_halves(5, 66),)),
    "arange": (lambda x: torch.arange(7, 40, 3, device=x.device) + x, (_indices(9, 11),)),
    "attention": (_attention, (_halves(1, 2, 9, 64), _halves(1, 2, 9, 64), _halves(1, 2, 9, 64))),
    "transpose": (lambda x: x.t().contiguous(), (_halves(70, 66),)),
    "slice": (lambda x: x[:, 3:40] + 1, (_halves(5, 64),)),
    "cast": (lambda x: x.float(), (_halves(3, 70),)),
    "integers": (lambda x: (x // 3) % 5, (_indices(90, 4, 40),)),
    "bool": (lambda x, y: torch.where(x > 0, x, y), (_halves(3, 64), _halves(3, 64))),
}
COMPILED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "tile loop": (_tiled, (_halves(8, 64), _halves(8, 64))),
    "nested tile loops": (_nested_tiles, (_halves(4, 8, 64),)),
    "divided product": (_divided, (_halves(8, 128), _halves(128, 64))),
    "norm and product": (_norm, (_halves(16, 64), _halves(64))),
    "chain": (lambda x, y: torch.softmax(F.silu(x) * y, -1).sum(0), (_halves(8, 128), _halves(8, 128))),
    "concatenation": (lambda x, y: torch.cat([x * 2, y], 1).t().exp(), (_halves(64, 64), _halves(64, 64))),
}


@dataclass
class _Kernel:
    """One kernel that was compiled: its files, what came of them, and the inputs it ran with."""

    bundle: dict[str, Any]
    description: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    contents: list[bytes] = field(default_factory=list)


def corpus() -> dict[str, list[Any]]:
    """Seeds by kind, plain data: the same ones whenever the compiler is the same."""
    kernels = [each for each in _kernels() if sum(map(len, each.contents)) <= MOST]
    texts = list(dict.fromkeys(text for each in kernels for text in each.bundle["texts"]))
    programs = [_launch(each.description, each) for each in kernels] + _written_out()
    found = {
        "program": programs,
        "timing": [{"steps": _steps(each["description"]), "fresh": [-1]} for each in programs],
        "layout": _layouts(),
        "superdsc": [{"json": json.loads(text)} for text in texts] + [{"text": text} for text in texts],
        "bundle": [each.bundle | _launched(each.contents, each.bundle) for each in kernels],
    }
    found = {kind: [seed for seed in seeds if _fine(kind, seed)] for kind, seeds in found.items()}
    found["spyrecode"] = _spyrecode(kernels)
    found["capture"] = _captures()
    found["ktir"] = tile_programs.seeds()
    found |= {kind: caches.seeds(kind) for kind in ("kernels", "plans")}
    found["texts"] = [caches.texts]
    if importlib.util.find_spec("transformers"):
        found["model"] = models.seeds()
    return found


def _fine(kind: str, seed: Any) -> bool:
    """Whether it can run as it is: files that read what another one leaves in LX cannot, alone."""
    try:
        TARGETS[kind](seed)
    except Refused:
        return False
    return True


def _launch(description: dict[str, Any], kernel: _Kernel) -> dict[str, Any]:
    known = {key: description[key] for key in ("name", "arguments", "allocate", "steps") if key in description}
    return {"description": known, **_launched(kernel.contents, known)}


def _launched(contents: list[bytes], description: Any) -> dict[str, Any]:
    return {"contents": contents, "order": list(range(len(contents))), "numbers": _numbers(description)}


def _numbers(description: Any) -> list[float]:
    """As many as the steps leave to the launch."""
    named = re.findall(r'"%(\d+)\\*"', json.dumps(description))
    return [3.0, 2.0, 1.0][: 1 + max(map(int, named), default=-1)]


def _steps(description: dict[str, Any]) -> list[Any]:
    return [step for job in description["steps"] if job["type"] == "Compute" for step in job["program"]["steps"]]


def _kernels() -> list[_Kernel]:
    with _captured() as kernels:
        for function, inputs in EAGER.values():
            function(*(each.to("spyre") for each in inputs))
        for function, inputs in COMPILED.values():
            torch.compile(function)(*(each.to("spyre") for each in inputs))
        torch.spyre.synchronize()
    return kernels


@contextmanager
def _captured() -> Iterator[list[_Kernel]]:
    """Every kernel that is compiled inside, in order."""
    kernels: list[_Kernel] = []
    compile_bundle, prepared = compiler.compile_bundle, kernel._prepared

    def compiled(name: str, texts: list[str], sizes: list[int], pool: int, chain: str) -> dict[str, Any]:
        found = {"texts": list(texts), "sizes": list(sizes), "pool": pool, "lines": chain.split("\n")}
        kernels.append(_Kernel(found))
        return compile_bundle(name, texts, sizes, pool, chain)

    def noted(text: str, inputs: tuple[torch.Tensor, ...]) -> Any:
        before = len(kernels)
        plan, description = prepared(text, inputs)
        if len(kernels) > before and plan is not None:
            made = kernels[-1]
            made.text, made.description = text, json.loads(json.dumps(description))
            made.contents = _contents(inputs, description["arguments"])
        else:
            del kernels[before:]
        return plan, description

    with mock.patch.object(compiler, "compile_bundle", compiled), mock.patch.object(kernel, "_prepared", noted):
        yield kernels


def _contents(inputs: tuple[torch.Tensor, ...], sizes: list[int]) -> list[bytes]:
    """The bytes of inputs as they are; outputs begin with some that are easily told from results."""
    contents = []
    for i, size in enumerate(sizes):
        contents.append(card.get(inputs[i].contiguous()) if i < len(inputs) else b"\x3c" * size)
        contents[-1] = contents[-1][:size].ljust(size, b"\0")
    return contents


def _written_out() -> list[dict[str, Any]]:
    """Programs of docs/programs.md that the compiler does not make of small ops: transfers, host memory, the ring."""
    rows = {"argument": 1, "strides": [128, 1024], "stick": 1}
    written = {"lx": 0, "strides": [128, 512], "stick": 1}
    fetched = {"lx": 0, "strides": [0, 128, 0, 512], "stick": 3, "core_strides": [2, 0, 1, 0]}
    row = {"lx": 1024, "strides": [0, 0, 256, 128], "stick": 3}
    last = {"lx": 1024, "strides": [0, 128], "stick": 1}
    ring = [
        {"op": "copy", "extents": [8, 256], "slices": [2, 2], "operands": [written, rows]},
        {"op": "copy", "extents": [2, 4, 2, 128], "slices": [2, 4, 1, 1], "operands": [row, fetched]},
        {"op": "copy", "extents": [8, 256], "slices": [8, 1], "operands": [rows | {"argument": 0}, last]},
    ]
    flat = {"argument": 1, "strides": [2]}
    moves = [
        {"op": "copy", "extents": [60], "operands": [{"argument": 0, "strides": [4]}, flat]},
        {
            "op": "fill",
            "extents": [4, 64],
            "constant": 7,
            "operands": [{"argument": 0, "strides": [128, 128], "stick": 1}],
        },
        {
            "op": "elementwise",
            "function": "add",
            "extents": [64],
            "operands": [flat | {"argument": 0}, flat, {"value": "%0"}],
        },
    ]
    transfers = [
        {"type": "H2D", "argument": 1, "offset": 128, "buffer": 0},
        {"type": "Compute", "program": {"steps": moves}},
        {"type": "D2H", "argument": 0, "offset": 0, "buffer": 1},
    ]
    some = bytes(random.Random(0).randrange(256) for _ in range(4096))
    there = {"argument": 0, "strides": [128], "stick": 0}
    shifted = [
        {"op": "copy", "extents": [1024], "slices": [4], "operands": [there | {"offset": 2048}, there]},
        {"op": "elementwise", "function": "neg", "extents": [1024], "slices": [4], "operands": [there, there]},
    ]
    plans = [
        {"name": "in place", "arguments": [4096], "steps": [{"type": "Compute", "program": {"steps": shifted}}]},
        {"name": "ring", "arguments": [4096, 4096], "steps": [{"type": "Compute", "program": {"steps": ring}}]},
        {"name": "moves", "arguments": [512, 512], "buffers": [some[:128], some[:256]], "steps": transfers},
    ]
    made = [{"description": plan, **_launched([some[:n] for n in plan["arguments"]], plan["steps"])} for plan in plans]
    plan = _paged()
    contents = [some[:n] for n in plan["arguments"][:-1]] + [bytes(plan["arguments"][-1])]  # the table names page 0
    return [*made, {"description": plan, **_launched(contents, plan["steps"])}]


def _paged() -> dict[str, Any]:
    """Two requests of 1 and 3 queries over a cache of 2 pages with 16 keys each."""
    rows = {"strides": [0, 0, 128, 128, 0, 0, 0, 0], "stick": 3}
    keys = {"strides": [0, 0, 0, 0, 0, 0, 128, 128], "stick": 7}
    step = {
        "op": "paged_attention",
        "extents": [1, 1, 4, 64, 2, 2, 16, 64],
        "slices": [1, 1, 1, 1, 1, 1, 2, 1],
        "constants": [0.125, 1, 8, 2.0, 0.5, 0, 1, 4, 20, 9],
        "indirect": [{"operand": 4, "extent": 2, "stride": 2048}, {"operand": 4, "extent": 2, "stride": 2048}],
        "operands": [
            rows | {"argument": 0},
            {"argument": 1, "strides": [0, 0, 128, 0, 0, 0, 0, 128], "stick": 7},
            keys | {"argument": 2},
            {"argument": 3, "strides": [0, 0, 0, 128, 0, 0, 128, 0], "stick": 3},
            {"argument": 4, "strides": [0, 0, 0, 0, 128, 4, 0, 0], "format": "IEEE_INT32"},
            {"value": 0.5},
            {"value": 0.25},
        ],
    }
    compute = {"type": "Compute", "program": {"steps": [step]}}
    return {"name": "paged", "arguments": [512, 512, 4096, 4096, 256], "steps": [compute]}


def _captures() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        with torch.spyre.capture(folder):
            for function, inputs in EAGER.values():
                function(*(each.to("spyre") for each in inputs))
            torch._dynamo.reset()
            for function, inputs in COMPILED.values():
                torch.compile(function)(*(each.to("spyre") for each in inputs))
        files = sorted(Path(folder).iterdir())
        found = [captured.read(file) for file in files if file.stat().st_size <= 2 * MOST]
        whole = [{"bytes": file.read_bytes()} for file in files[::8]]
    plain = [each | {"cores": cores} for each, cores in zip(found, itertools.cycle((1, 7, 32)))]
    return plain + [each | {"as_captured": True} for each in found[::4]] + whole


def _layouts() -> list[dict[str, Any]]:
    """Arguments of the three constructors of SpyreTensorLayout, and the tensor that is to lie so."""
    found: list[dict[str, Any]] = []
    for size in ([4, 100], [32, 8, 256], [60], [2, 3, 65, 7]):
        layout = _C.SpyreTensorLayout(size, torch.float16)
        found.append({"size": size, "device_size": layout.device_size, "stride_map": layout.stride_map})
        order = list(range(len(size)))[::-1]
        strides = list(torch.empty(size, device="meta").stride())
        found.append({"size": size, "strides": strides, "order": order})
    return found


def captured_text(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> str:
    """Of the one kernel that a program becomes."""
    texts: list[str] = []
    prepared = kernel._prepared

    def noted(text: str, given: tuple[torch.Tensor, ...]) -> Any:
        texts.append(text)
        return prepared(text, given)

    with mock.patch.object(kernel, "_prepared", noted):
        torch.compile(function)(*inputs)
    torch.spyre.synchronize()
    (text,) = texts
    return text


def _spyrecode(kernels: list[_Kernel]) -> list[dict[str, Any]]:
    """Directories with checksums that are made to fit and without, and with files that are none."""
    found = []
    for each in kernels:
        with tempfile.TemporaryDirectory() as folder:
            spyrecode.write(Path(folder, "code"), each.description)
            launch = _launch(each.description, each)
            files = directories.read(Path(folder, "code"))
        found += [{"files": directories.taken_apart(files), "rehash": True, **launch}] * 2
        found.append({"files": files, "rehash": False, **launch})
    for odd in ({"link": "/dev/zero"}, {"link": "/etc/passwd"}, {"fifo": 1}, {"link": "program_0.bin"}):
        found += [found[0] | {"files": found[0]["files"] | {name: odd}} for name in found[0]["files"]]
    for name in ("torch_spyre.cli:main", "torch_spyre.models.train_box:main", "os:getcwd", "torch_spyre:nothing"):
        host = {"command": "ComputeOnHost", "function": name}
        manifest = found[0]["files"]["manifest.json"]["json"]
        changed = manifest | {"execution": [host, *manifest["execution"]]}
        found.append(found[0] | {"files": found[0]["files"] | {"manifest.json": {"json": changed}}})
    return found
