"""What is recorded: programs that give tensors, each under a name that stays.

Every op of the grid with several core counts, random programs with several plans, tiny models compiled, and full-size
models of a few layers, of which there are only times. Names are the keys of a recording, so a case that changes gets
another name.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.execute import planned_run
from tests.fuzz.generate import generate
from tests.models import tiny
from tests.ops import grid
from tests.plans import planned
from torch_spyre.device.streams import current_stream

SEEDS = range(60)  # of random programs
PLANS: tuple[dict[str, Any], ...] = ({}, {"lx_planning": False}, {"sencores": 3})
PROMPT = 40  # tokens


@dataclass(frozen=True)
class Case:
    """``run`` gives the results, on the host, and their modelled time in milliseconds."""

    name: str
    run: Callable[[], tuple[Sequence[Tensor], float]] = field(compare=False)


def all_cases() -> Iterator[Case]:
    yield from ops()
    yield from programs()
    yield from models()
    yield from full_size()


def ops() -> Iterator[Case]:
    """Each op with one and with all cores, eagerly, in a shape and a layout of its own."""
    for file in sorted(Path(grid.__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.ops.{file.stem}")
        for i, row in enumerate(getattr(module, "ROWS", ())):
            shapes = [shape for shape in row.shapes if shape and 0 not in shape]
            for cores in (1, 32):
                shape, layout = shapes[i % len(shapes)], row.layouts[i % len(row.layouts)]
                case = grid.Case(row, shape, row.dtypes[i % len(row.dtypes)], layout, cores)
                yield Case(f"op/{file.stem.removeprefix('test_')}/{case}", lambda case=case: _op(case))


def _op(case: grid.Case) -> tuple[Sequence[Tensor], float]:
    inputs = case.tensors()
    return _timed(lambda: grid.run(case.row.function, inputs, case.cores))


def programs() -> Iterator[Case]:
    """Random programs that are compiled, with every plan."""
    for seed in SEEDS:
        for plan in PLANS:
            setting = "-".join(f"{key}={value}" for key, value in plan.items()) or "own"
            yield Case(f"program/{seed}/{setting}", lambda seed=seed, plan=plan: _program(seed, plan))


def _program(seed: int, plan: dict[str, Any]) -> tuple[Sequence[Tensor], float]:
    return planned_run(generate(seed, "few"))(plan)


def models() -> Iterator[Case]:
    """A prompt of every tiny decoder, and the encoders, compiled for several core counts."""
    for key in tiny.DECODERS:
        for cores in (5, 32):
            yield Case(f"model/{key}/{cores}", lambda key=key, cores=cores: _decoder(key, cores))
    for name, make, given in (
        ("bert", tiny.bert, lambda: {"input_ids": tiny.prompts(2, PROMPT)}),
        ("vit", tiny.vit, lambda: {"pixel_values": torch.randn(1, 3, 32, 32, generator=_generator())}),
    ):
        yield Case(f"model/{name}/32", lambda make=make, given=given: _forward(make(), given(), 32))


def _decoder(key: str, cores: int) -> tuple[Sequence[Tensor], float]:
    return _forward(tiny.decoder(key), {"input_ids": tiny.prompts(1, PROMPT), "use_cache": False}, cores)


def _forward(model: Any, given: dict[str, Any], cores: int) -> tuple[Sequence[Tensor], float]:
    torch._dynamo.reset()
    model = model.eval().to(torch.float16).to("spyre")
    on_card = {
        name: (x.half() if x.is_floating_point() else x).to("spyre") if isinstance(x, Tensor) else x
        for name, x in given.items()
    }
    with torch.no_grad(), planned(sencores=cores):
        return _timed(lambda: [next(iter(torch.compile(model)(**on_card).values()))])


def full_size() -> Iterator[Case]:
    """A prompt and a token of models of real size, in timing mode, which is a process of its own."""
    layers = {"granite-3.3-8b": 2, "llama-3.1-8b": 2, "granite-4.0-h-small": 6, "gpt-oss-20b": 2}
    for preset, count in layers.items():
        yield Case(f"timing/{preset}/{count}", lambda preset=preset, count=count: _preset(preset, count))


def _preset(preset: str, layers: int) -> tuple[Sequence[Tensor], float]:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "times.json")
        command = [sys.executable, "-m", "torch_spyre.cli", "timing", preset, "--layers", str(layers)]
        subprocess.run([*command, "--json", str(found)], check=True, capture_output=True)
        phases = json.loads(found.read_text())["phases"]
    times = [phase["milliseconds"] for phase in phases]
    return [torch.tensor(times, dtype=torch.float64)], sum(times)


def _timed(run: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], float]:
    before = current_stream().modelled_time()
    results = run()
    time = current_stream().modelled_time() - before
    return [x.cpu() for x in results], time


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
