"""A program is data: inputs, steps and settings. It renders as Python, and that text is what runs."""

from __future__ import annotations

import inspect
import itertools
import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tests.fuzz import inputs
from tests.fuzz.ops import OPS

MODES = ("run", "strict")
CORES = (1, 2, 5, 32)
PLANS = ("", "few", "all")  # how many plans a program is compiled with, next to its own
LX = {"on": "0.2", "off": "1"}  # the share of LX that is left to tiles on their way: where that is all, nothing stays


@dataclass(frozen=True)
class Settings:
    """What a program runs under; its values do not depend on it."""

    mode: str = "run"
    cores: int = 32
    lx: str = "on"
    compiled: bool = False
    plans: str = ""

    def environment(self) -> dict[str, str]:
        return {"SPYRE_CARD": self.mode, "SENCORES": str(self.cores), "DXP_LX_FRAC_AVAIL": LX[self.lx]}


@dataclass(frozen=True)
class Input:
    """A tensor of numbers of a ``kind``; ``high`` is one more than the largest index; ``layout`` is how it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    seed: int
    layout: str = "plain"
    high: int = 0

    def code(self) -> str:
        arguments = f"{self.kind!r}, {self.shape}, torch.{self.dtype}, {self.seed}, {self.high}"
        return f"{self.name} = placed({self.layout!r}, device, {arguments})"


@dataclass(frozen=True)
class Step:
    """An op of the table, on tensors by name. ``parameters`` fill its code: texts as they are, others by ``repr``.

    ``hint`` are arguments of ``spyre_hint``, around this step and those next to it with the same ones.
    """

    name: str
    op: str
    operands: tuple[str, ...]
    parameters: dict[str, Any]
    hint: str = ""

    def code(self) -> str:
        text = OPS[self.op].code.format(*self.operands, **shown(self.parameters))
        if OPS[self.op].statement:
            return f"{text}; {self.name} = {self.operands[0]}"
        return f"{self.name} = {text}"


def shown(parameters: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else repr(value) for name, value in parameters.items()}


@dataclass(frozen=True)
class Program:
    """The first ``head`` steps run eagerly, so that what is compiled is given views too; ``outputs`` are returned."""

    settings: Settings
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    head: int
    outputs: tuple[str, ...]

    def given(self) -> list[str]:
        return [each.name for each in (*self.inputs, *self.steps[: self.head])]

    def code(self) -> str:
        """Two functions: ``given(device)`` makes the arguments of ``compute``, which returns the outputs."""
        names = self.given()
        first = [*(each.code() for each in self.inputs), *(step.code() for step in self.steps[: self.head])]
        then = _with_hints(self.steps[self.head :])
        return "\n".join(
            [
                "def given(device):",
                *(f"    {line}" for line in first),
                f"    return [{', '.join(names)}]",
                "",
                "",
                f"def compute({', '.join(names)}):",
                *(f"    {line}" for line in then),
                f"    return [{', '.join(self.outputs)}]",
            ]
        )

    def script(self) -> str:
        """A program of its own that shows what differs."""
        compute = "torch.compile(compute, fullgraph=True)" if self.settings.compiled else "compute"
        return _SCRIPT.format(
            environment=self.settings.environment(), helpers=helpers(), code=self.code(), compute=compute
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _with_hints(steps: tuple[Step, ...]) -> list[str]:
    lines = []
    for hint, group in itertools.groupby(steps, key=lambda step: step.hint):
        inside = [step.code() for step in group]
        lines += [f"with spyre_hint({hint}):", *(f"    {line}" for line in inside)] if hint else inside
    return lines


@cache
def helpers() -> str:
    """The functions that make inputs, as text."""
    return "\n\n".join(inspect.getsource(each) for each in (inputs.numbers, inputs.placed))


def from_json(text: str) -> Program:
    data = json.loads(text)
    made = tuple(Input(**{**each, "shape": tuple(each["shape"])}) for each in data["inputs"])
    steps = tuple(Step(**{**each, "operands": tuple(each["operands"])}) for each in data["steps"])
    return Program(Settings(**data["settings"]), made, steps, data["head"], tuple(data["outputs"]))


def without_unused_inputs(program: Program) -> Program:
    used = {name for step in program.steps for name in step.operands} | set(program.outputs)
    return replace(program, inputs=tuple(each for each in program.inputs if each.name in used))


_SCRIPT = """\
import os

os.environ.update({environment})

import torch
import torch.nn.functional as F
from torch_spyre._inductor import spyre_hint

{helpers}

{code}


cpu, card = given("cpu"), given("spyre")
wanted = [*compute(*cpu), *cpu]
found = [*{compute}(*card), *card]
for i, (a, b) in enumerate(zip(wanted, found, strict=True)):
    same = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    off = (a.double() - b.cpu().double()).abs().amax().item() if a.numel() and same else 0
    print(f"result {{i}}: off by {{off}}" if same else f"result {{i}}: {{a.dtype}} {{a.shape}} {{a.stride()}}, "
          f"not {{b.dtype}} {{b.shape}} {{b.stride()}}")
"""
