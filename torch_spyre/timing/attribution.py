"""Where modelled time goes: for every step of what was launched how long it takes, why, and how much it has to take.

The times are the card's own, :meth:`_C.JobPlan.step_times`. The least that a step needs follows from the hardware
description: its arithmetic on all cores at the full rate of its unit, or the bytes of the launch's arguments that have
to cross device memory, whichever takes longer. Values inside a launch could have stayed on the chip, and what it reads
twice it could have kept: neither counts.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from .. import _C
from .._inductor import config
from ..backend.tiling import sticks_of
from ..card import description
from ..card.description import STICK_BYTES
from ..execution.launches import Launch
from ..ir.superdsc_view import elements_of
from ..kernel_types import CompiledDescription
from ..kernel_types import Step as CardStep

# Steps that move data; all others but products are the vector unit's.
_MOVES = ("copy", "fill", "restickify", "gather", "scatter")
_FOLDED = {"scan": 1, "topk": 1}  # dimensions, of steps that do not say how many
_INDEXED = {"gather": 1, "scatter": 0}  # the operand that an index goes into


@dataclass(frozen=True)
class Step:
    """One step of a launch. ``us`` is all of it: its start, then arithmetic and memory at a time, then the ring."""

    kernel: str
    op: str
    extents: tuple[int, ...]
    slices: tuple[int, ...]
    source: str
    us: float
    start_us: float
    compute_us: float
    memory_us: float
    ring_us: float
    dram_bytes: int
    lx_bytes: int
    ring_bytes: int
    least_us: float


@dataclass
class Row:
    """Steps that are alike, as the layers of a model have them: the same op of the same sizes from the same line."""

    op: str
    extents: tuple[int, ...]
    slices: tuple[int, ...]
    source: str
    kernels: tuple[str, ...] = ()
    count: int = 0
    us: float = 0.0
    start_us: float = 0.0
    compute_us: float = 0.0
    memory_us: float = 0.0
    ring_us: float = 0.0
    dram_bytes: int = 0
    lx_bytes: int = 0
    ring_bytes: int = 0
    least_us: float = 0.0

    def add(self, step: Step) -> None:
        self.count += 1
        if step.kernel not in self.kernels:
            self.kernels += (step.kernel,)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(step, name))

    @property
    def bound_by(self) -> str:
        """What most of its time is for."""
        on_matrix_unit = self.op in ("matmul", "attention", "paged_attention")
        return _C.bound_by(
            on_matrix_unit, self.start_us, self.compute_us, self.memory_us, self.ring_us, self.dram_bytes
        )

    @property
    def line(self) -> str:
        """The line of the program that it comes from, short: ``modeling_llama.py:177 self.o_proj(x)``."""
        found = re.match(r'File "(.*)", line (\d+)', self.source)
        if found is None:
            return self.source
        path, number = found[1], int(found[2])
        return f"{Path(path).name}:{number} {linecache.getline(path, number).strip()}".rstrip()


_SUMS = [field.name for field in fields(Step) if field.type in ("int", "float")]


def attribute(launches: Iterable[Launch]) -> list[Row]:
    """All steps of these launches, alike ones together, those that take longest first."""
    rows: dict[tuple[Any, ...], Row] = {}
    for launch in launches:
        for step in steps_of(launch):
            key = (step.op, step.extents, step.slices, step.source)
            rows.setdefault(key, Row(*key)).add(step)
    return sorted(rows.values(), key=lambda row: -row.us)


def steps_of(launch: Launch) -> list[Step]:
    """The steps of one launch in order."""
    programs = [step["program"]["steps"] for step in launch.code["steps"] if step["type"] == "Compute"]
    unavoidable = _Unavoidable(launch.code)
    return [
        Step(
            kernel=launch.plan.name,
            op=_name(step),
            extents=tuple(step["extents"]),
            slices=tuple(step["slices"]),
            source=step.get("source", ""),
            us=time["us"],
            start_us=time["begin_us"],
            compute_us=time["compute_us"],
            memory_us=time["memory_us"],
            ring_us=time["ring_us"],
            dram_bytes=time["bytes_read"] + time["bytes_written"],
            lx_bytes=sum(_bytes(step, i) for i, operand in enumerate(step["operands"]) if "lx" in operand),
            ring_bytes=time["bytes_ring"],
            least_us=max(_arithmetic_us(step), unavoidable.bytes_of(step) / _per_us("dram_gb_per_s")),
        )
        for step, time in zip((step for program in programs for step in program), launch.plan.step_times(), strict=True)
    ]


def _name(step: CardStep) -> str:
    op, function = step["op"], step.get("function", "")
    if op == "elementwise":
        return str(function)
    return f"{op} {function}" if function and op not in _MOVES else str(op)


class _Unavoidable:
    """Bytes that steps have to carry over device memory, as a launch goes on: those of its inputs, read once; those of
    its outputs and of inputs that it changes, written once."""

    def __init__(self, code: CompiledDescription) -> None:
        self.unread = list(code["arguments"][: len(code["arguments"]) - len(code["outputs"])])
        self.unwritten = list(code["arguments"])

    def bytes_of(self, step: CardStep) -> int:
        found = 0
        for i, operand in enumerate(step["operands"]):
            left = self.unread if i else self.unwritten
            argument = operand["argument"] if "argument" in operand else len(left)
            if argument >= len(left):  # in LX, a constant, or the pool
                continue
            carried = min(_bytes(step, i), left[argument])
            left[argument] -= carried
            found += carried
        return found


def _bytes(step: CardStep, position: int) -> int:
    """Bytes of an operand, in whole sticks, each once."""
    indexed = _INDEXED.get(step["op"]) == position
    operand = step["operands"][position]
    assert "strides" in operand, "a constant has no bytes"
    return sticks_of(operand, step["extents"], indexed) * STICK_BYTES


def _arithmetic_us(step: CardStep) -> float:
    """On all cores, at the full rate of the unit."""
    cores = min(config.sencores, _C.card_cores(-1))
    points = prod(step["extents"])
    if step["op"] == "matmul":
        return points / _per_us("pt_mac_per_ns") / cores
    if step["op"] == "attention":  # both products, of rows and keys that meet
        *_, rows, width, keys, depth = step["extents"]
        met = sum(min(keys, row + 1) for row in range(rows)) if step["constants"][1] else rows * keys
        return points / (rows * keys) * met * (1 / width + 1 / depth) / _per_us("pt_mac_per_ns") / cores
    if step["op"] in _MOVES or step["op"] == "paged_attention":  # its rows and keys are numbers of each launch
        return 0.0
    card, operands = description.constants(), step["operands"]
    widest = operands[1] if len(operands) > 1 and "value" not in operands[1] else operands[0]
    assert "strides" in widest, "the first operand is written"
    folded = step.get("reduced", _FOLDED.get(step["op"], 0))
    folds_lanes = widest.get("stick", -1) >= len(step["extents"]) - folded
    per_stick = card["lane_fold_ns"] if folds_lanes else card["vector_stick_ns"]
    if step.get("special") and not folds_lanes:
        per_stick += card["special_function_ns"]
    return points / elements_of(widest["format"]) * per_stick / cores / 1000


def _per_us(rate: str) -> float:
    return description.constants()[rate] * 1000
