"""What `speed.py` measures. A case is a function that gives rows, run in a process of its own."""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _timing import Row, best_interleaved, best_within, seconds_of, taken_by_others, undisturbed
from torch import Tensor, nn

from torch_spyre import _C

THREADS = 2
SECONDS = 4.0  # of measuring, for each kernel
HERE = Path(__file__).resolve().parent
HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16
DTYPES = {HALF: "fp16", SINGLE: "fp32", BRAIN: "bf16"}


def limit(read: int, written: int, operations: float = 0) -> float:
    """Seconds that this machine needs at least: for the bytes, each once, or for the arithmetic, whichever is more."""
    return max(_C.measure.stream(read, written, THREADS, 20), operations / _C.measure.multiply_add(THREADS, 10))


@dataclass(frozen=True)
class Peer:
    """PyTorch on the CPU in dtypes that count as one: the fastest of them, eager or compiled, is compared with."""

    dtypes: tuple[torch.dtype, ...]
    asked: float


@dataclass(frozen=True)
class Kernel:
    """A function of tensors, or a module, which is made anew for each side; the card gets both in halves."""

    make: Callable[[], Callable[..., Tensor]]
    shapes: tuple[tuple[int, ...], ...]
    peers: tuple[Peer, ...]
    operations: float = 0

    def call(self, dtype: torch.dtype, device: str, compiled: bool) -> Callable[[], Any]:
        torch.manual_seed(0)
        given = [torch.randn(shape).to(dtype).to(device) for shape in self.shapes]
        function = self.make()
        if isinstance(function, nn.Module):
            function = function.eval().requires_grad_(False).to(dtype).to(device)
        if compiled:
            function = torch.compile(function, dynamic=False)
        if device == "cpu":
            return partial(function, *given)
        return lambda: (function(*given), torch.spyre.synchronize())

    def rows(self, name: str, seconds: float = SECONDS) -> list[Row]:
        sides = {"spyre": self.call(HALF, "spyre", True)}
        for dtype in dict.fromkeys(dtype for peer in self.peers for dtype in peer.dtypes):
            for way in ("eager", "Inductor"):
                sides[f"{DTYPES[dtype]} {way}"] = self.call(dtype, "cpu", way == "Inductor")
        with torch.no_grad():
            others, measured = undisturbed(lambda: best_within(sides, seconds))
        least = self.limit()
        found = []
        for peer in self.peers:
            names = tuple(DTYPES[dtype] for dtype in peer.dtypes)
            side, best = min(
                ((side, one) for side, one in measured.items() if side.startswith(names)), key=lambda pair: pair[1]
            )
            found.append(Row(name, measured["spyre"], side, best, peer.asked, least, others=others))
        return found

    def limit(self) -> float:
        function = self.make()
        weights = sum(one.numel() for one in function.parameters()) if isinstance(function, nn.Module) else 0
        with torch.no_grad():
            written = self.call(SINGLE, "cpu", False)().numel()
        read = sum(map(prod, self.shapes)) + weights
        return limit(read * HALF.itemsize, written * HALF.itemsize, self.operations)


def product(rows: int, inputs: int, outputs: int, *peers: Peer) -> Kernel:
    make = partial(nn.Linear, inputs, outputs, bias=False)
    return Kernel(make, ((rows, inputs),), peers, 2 * rows * inputs * outputs)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def heads(queries: int, keys: int, asked: float) -> Kernel:
    """32 heads of queries and 8 of keys; of a causal square only the lower half is work."""
    operations = 4 * 32 * queries * keys * 128 / (2 if queries > 1 else 1)
    shapes = tuple((1, count, length, 128) for count, length in ((32, queries), (8, keys), (8, keys)))
    return Kernel(lambda: attention, shapes, (Peer((SINGLE,), asked),), operations)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


ROWS, COLUMNS = 2048, 4096


def rowwise(function: Callable[..., Tensor], asked: float, matrices: int = 1, vectors: int = 0) -> Kernel:
    shapes = ((ROWS, COLUMNS),) * matrices + ((COLUMNS,),) * vectors
    return Kernel(lambda: function, shapes, (Peer((HALF, SINGLE), asked),))


KERNELS: dict[str, Kernel] = {
    "matmul-1024x1024x1024": product(1024, 1024, 1024, Peer((SINGLE,), 0.9)),
    "matmul-512x4096x4096": product(512, 4096, 4096, Peer((SINGLE,), 0.9)),
    "matmul-64x4096x12800": product(64, 4096, 12800, Peer((SINGLE,), 0.9)),
    **{
        f"matmul-{rows}x4096x{outputs}": product(rows, 4096, outputs, Peer((SINGLE,), 1.5), Peer((BRAIN,), 1.0))
        for rows, outputs in ((1, 4096), (1, 12800), (8, 4096))
    },
    "softmax": rowwise(lambda x: x.softmax(-1), 1.0),
    "gelu-tanh": rowwise(lambda x: F.gelu(x, approximate="tanh"), 1.0),
    "silu-mul": rowwise(lambda x, y: F.silu(x) * y, 1.0, matrices=2),
    "rope": rowwise(rope, 1.0, matrices=3),
    "rms-norm": rowwise(rms_norm, 0.85, vectors=1),
    "layer-norm": rowwise(lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), 0.85, vectors=2),
    "residual-add": rowwise(lambda x, y: x + y, 0.85, matrices=2),
    "attention-512": heads(512, 512, 0.8),
    "attention-2048": heads(2048, 2048, 0.8),
    "attention-decode-2048": heads(1, 2048, 1.2),
}


def generation(batch: int) -> list[Row]:
    """A Llama of 16 layers through ``generate``, against PyTorch in fp32: eager, and compiled with a static cache."""
    from _generate import NEW_TOKENS, PROMPT, ROUNDS, WAYS, Times, build, generate, weight_bytes

    sides = {way: (build(way), way) for way in WAYS}
    prompt = torch.randint(1000, (batch, PROMPT))
    for model, way in sides.values():
        generate(model, way, prompt)

    def rounds() -> dict[str, list[Times]]:
        turns = [{way: generate(model, way, prompt) for way, (model, _) in sides.items()} for _ in range(ROUNDS)]
        return {way: [turn[way] for turn in turns] for way in sides}

    others, found = undisturbed(rounds)
    prefill = {way: min(one.prefill for one in times) for way, times in found.items()}
    step = {way: min(one.step for one in times) for way, times in found.items()}
    weights = weight_bytes(sides["spyre"][0])
    rows = []
    for what, measured, asked, tokens in (("prefill", prefill, 1.0, batch * PROMPT), ("decode", step, 1.3, batch)):
        peer = min((way for way in WAYS if way != "spyre"), key=lambda way: measured[way])
        name = f"llama {what}, batch {batch}, {PROMPT if what == 'prefill' else f'{NEW_TOKENS} after {PROMPT}'}"
        least = limit(weights, 0, 2 * tokens * weights / HALF.itemsize)
        rows.append(Row(name, measured["spyre"], peer, measured[peer], asked, least, others=others))
    return rows if batch == 1 else rows[1:]


def compile_time() -> list[Row]:
    """Seconds that a first call takes longer than the second: with empty caches, then in a new process."""
    times: dict[tuple[str, str], float] = {}
    others = 0.0
    for way in ("spyre", "fp32 Inductor"):
        with tempfile.TemporaryDirectory() as caches:
            for state in ("cold", "warm"):
                first = partial(_in_new_process, ["_generate.py", way], TORCHINDUCTOR_CACHE_DIR=caches)
                share, times[way, state] = taken_by_others(first)
                others = max(others, share)
    return [
        Row(
            f"llama compile, {state}",
            times["spyre", state],
            "Inductor",
            times["fp32 Inductor", state],
            asked,
            others=others,
        )
        for state, asked in (("cold", 2.0), ("warm", 1.0))
    ]


def _in_new_process(program: list[str], **environment: str) -> float:
    command = [sys.executable, str(HERE / program[0]), *program[1:]]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def transfer() -> list[Row]:
    """1 GiB in halves, as a model of a few layers has it, into tensors that are there."""
    shapes = [(4096, 4096)] * 20 + [(12800, 4096)] * 3 + [(1024, 4096)] * 10 + [(512, 4096)]
    state = {str(i): torch.randn(shape).to(HALF) for i, shape in enumerate(shapes)}
    size = sum(one.nbytes for one in state.values())
    card = {name: one.to("spyre") for name, one in state.items()}
    copy = {name: one.clone() for name, one in state.items()}

    def filled(target: dict[str, Tensor]) -> None:
        for name, one in state.items():
            target[name].copy_(one)
        torch.spyre.synchronize()

    sides = {"spyre": lambda: seconds_of(lambda: filled(card)), "copy": lambda: seconds_of(lambda: filled(copy))}
    others, measured = undisturbed(lambda: best_interleaved(sides, 8))
    name = f"state dict of {size / 2**30:g} GiB to the card"
    return [Row(name, measured["spyre"], "plain copy of it", measured["copy"], 0.5, limit(size, size), others=others)]


def call_cost() -> list[Row]:
    """What a compiled call costs the host; the card's work, which is little, goes on beside it."""
    found = []
    for count in (1, 10, 100):
        given = [torch.zeros(64, dtype=HALF, device="spyre") for _ in range(count)]
        out = torch.compile(_sum_of_all, dynamic=False, fullgraph=True)
        with torch.no_grad():
            out(*given)
            others, seconds = undisturbed(lambda: min(_one_call(out, given) for _ in range(1000)))  # noqa: B023
        name, budget = f"host's part of a call, {count} arguments", 30e-6 + 1e-6 * count
        found.append(Row(name, seconds, "30 us + 1 us each", budget, 1.0, others=others))
    return found


def _one_call(function: Callable[..., Tensor], given: list[Tensor]) -> float:
    torch.spyre.synchronize()
    return seconds_of(lambda: function(*given))


def _sum_of_all(*given: Tensor) -> Tensor:
    total = given[0] + 1
    for one in given[1:]:
        total = total + one
    return total


def loading() -> list[Row]:
    """Peak memory of a process that loads a checkpoint, over what it had before."""
    from safetensors.torch import save_file

    from torch_spyre.model_utils import load_model_to_spyre

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(40)))

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.safetensors"
        save_file({f"{i}.weight": torch.randn(4096, 4096).to(BRAIN) for i in range(40)}, file)
        gc.collect()
        with torch.device("meta"):
            model = build()
        torch.zeros(1).to("spyre")
        before = _resident()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        load_model_to_spyre(model, file, dtype=HALF)
        peak = _peak() - before
    on_card = sum(one.numel() for one in model.parameters()) * HALF.itemsize
    name = f"peak memory of loading {on_card / 2**30:.2f} GiB"
    return [Row(name, peak, "device bytes + 1 GiB", on_card + 2**30, 1.0, on_card, unit="B")]


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


CASES: dict[str, Callable[[], list[Row]]] = {
    **{name: partial(kernel.rows, name) for name, kernel in KERNELS.items()},
    "llama": partial(generation, 1),
    "llama-batch-8": partial(generation, 8),
    "llama-compile": compile_time,
    "transfer": transfer,
    "call": call_cost,
    "loading": loading,
}
