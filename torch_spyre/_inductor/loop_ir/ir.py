"""Loop IR: what a graph asks the card to do, in host terms.

A kernel is a list of loop ops over buffers. A loop op is one operation over one iteration space; every operand is an
affine access in *host* elements, exactly what PyTorch's size, stride and offset say. Nothing here knows sticks: layouts
and cores and addresses come in later passes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from ...ops.table import OPS, OpRow

Kind = Literal["input", "output", "internal"]


@dataclass(frozen=True)
class Buffer:
    """One tensor: an argument of the kernel ("input", also when it is written; "output") or a value inside it.

    ``order`` asks for an order of its dimensions on the card, the last one in sticks.
    """

    name: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    kind: Kind = "internal"
    order: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()  # of the dimensions of an argument, where hints know them; "" for those without


@dataclass(frozen=True)
class Access:
    """Host element ``offset + dot(point, strides)`` of a buffer; inputs count from where the tensor begins."""

    buffer: str
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class RuntimeScalar:
    """A number that the launch gives: ``%index`` of its numbers."""

    index: int

    def __str__(self) -> str:
        return f"%{self.index}"


Parameter = float | RuntimeScalar


@dataclass(frozen=True)
class Constant:
    """An operand that is one number, not rounded to any format before the op uses it."""

    value: Parameter
    dtype: torch.dtype


@dataclass(frozen=True)
class Indirect:
    """Input ``operand`` holds an index in [-extent, extent) that moves the indirect access by index * stride."""

    operand: int
    extent: int
    stride: int


@dataclass
class LoopOp:
    """``out[p] = name(ins[p] ...)`` for every point p of ``sizes``; the last ``reduced`` dimensions are folded.

    An indirect access is the first input of a gather and the output of a scatter.
    """

    name: str
    sizes: tuple[int, ...]
    out: Access
    ins: tuple[Access | Constant, ...]
    reduced: int = 0
    parameters: tuple[Parameter, ...] = ()
    indirect: tuple[Indirect, ...] = ()
    checked: bool = False
    source: str = ""
    aten: str = ""  # the op of the user's program, before decompositions: "aten.softmax.int"
    hints: dict[str, Any] = field(default_factory=dict)
    # Loops around the op, which it may share with its neighbours: (scope, count), the outermost first. They are the
    # first of ``sizes`` too.
    tile_loops: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()  # of the loops, "" for those without; empty where no op has hints
    # FX nodes that it comes from, of the graph that was lowered and of the graph before AOT. They are no part of the
    # kernel's text: equal layers share it.
    nodes: tuple[str, ...] = field(default=(), compare=False)
    position: int = field(default=-1, compare=False)  # of the op in the text that it was read from

    @property
    def row(self) -> OpRow:
        """What the op table says of it."""
        return OPS[self.name]

    def accesses(self) -> list[Access]:
        """What is read, in order, and what is written."""
        return [*(each for each in self.ins if isinstance(each, Access)), self.out]

    def where(self) -> str:
        """The line of the program that the op comes from, in brackets, for messages; empty if unknown."""
        return f" ({self.source})" if self.source else ""

    def scopes(self) -> list[dict[str, Any]]:
        """The hints around the op, the outermost first."""
        return list(self.hints.get("scopes", ()))

    def jumps(self, position: int, last: int) -> tuple[Indirect, ...]:
        """The indices that move operand ``position``; ``last`` is that of the output."""
        return tuple(self.row.jumps(position, last, self.indirect))

    def reads(self) -> list[str]:
        """Names of the buffers this op reads; a scatter also needs what its table held before."""
        names = [access.buffer for access in self.ins if isinstance(access, Access)]
        return [*names, self.out.buffer] if self.row.is_scatter else names


@dataclass
class Kernel:
    """Loop ops in order, and the buffers they use. Arguments in launch order: inputs, then outputs.

    ``numbers``: how many elements the tensors on the host have that a call gives behind the inputs. One after the
    other they are the runtime scalars.
    """

    name: str
    buffers: dict[str, Buffer]
    ops: list[LoopOp]
    numbers: tuple[int, ...] = ()

    def inputs(self) -> list[Buffer]:
        return [buffer for buffer in self.buffers.values() if buffer.kind == "input"]

    def outputs(self) -> list[Buffer]:
        return [buffer for buffer in self.buffers.values() if buffer.kind == "output"]

    def written_inputs(self) -> list[Buffer]:
        written = {op.out.buffer for op in self.ops}
        return [buffer for buffer in self.inputs() if buffer.name in written]

    def internal(
        self, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...] | None = None, prefix: str = "tmp"
    ) -> Buffer:
        """A new internal buffer, contiguous unless strides are given."""
        name = f"{prefix}{len(self.buffers)}"
        while name in self.buffers:
            name += "_"
        buffer = Buffer(name, dtype, tuple(size), contiguous(size) if stride is None else tuple(stride))
        self.buffers[name] = buffer
        return buffer

    def part(self, first: int, last: int) -> Kernel:
        """Some ops as a kernel of their own: what comes from outside is an input, what is used outside an output."""
        ops = self.ops[first : last + 1]
        outside = {name for op in (*self.ops[:first], *self.ops[last + 1 :]) for name in (op.out.buffer, *op.reads())}
        buffers: dict[str, Buffer] = {}
        for op in ops:
            for name in (*op.reads(), op.out.buffer):
                if name in buffers:
                    continue
                buffer = self.buffers[name]
                if name in op.reads():
                    buffer = replace(buffer, kind="input")
                elif buffer.kind == "internal" and name in outside:
                    buffer = replace(buffer, kind="output")
                buffers[name] = buffer
        return Kernel("part", buffers, list(ops))

    def to_json(self) -> str:
        """A text from which :func:`from_json` makes the same kernel: what compiled graphs carry."""
        buffers = [{**vars(b), "dtype": _short(b.dtype)} for b in self.buffers.values()]
        numbers = {"numbers": self.numbers} if self.numbers else {}
        return json.dumps(
            {"name": self.name, "buffers": buffers, "ops": [_op_fields(op) for op in self.ops], **numbers}
        )

    def __str__(self) -> str:
        lines = [f"kernel {self.name}"]
        for b in self.buffers.values():
            order = "" if b.order is None else f" order {list(b.order)}"
            lines.append(
                f"  {b.kind} {b.name}: {_short(b.dtype)}{_named(b.size, b.names)} strides {list(b.stride)}{order}"
            )
        for op in self.ops:
            ins = ", ".join(_text(access) for access in op.ins)
            extra = f" [{', '.join(map(str, op.parameters))}]" if op.parameters else ""
            folded = f" fold {op.reduced}" if op.reduced else ""
            indirect = "".join(f" via {i.operand}:{i.extent}*{i.stride}" for i in op.indirect)
            tiles = "".join(f" tiles {scope}:{count}" for scope, count in op.tile_loops)
            loops = f"{_named(op.sizes, op.names)}{folded}{indirect}{tiles}"
            lines.append(f"  {_text(op.out)} = {op.name}({ins}){extra} over {loops}")
        return "\n".join(lines)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _named(sizes: tuple[int, ...], names: tuple[str, ...]) -> str:
    """[M 4, 64]: the first is called M."""
    return f"[{', '.join(f'{name} {n}'.lstrip() for n, name in zip(sizes, names or [''] * len(sizes), strict=False))}]"


def _text(access: Access | Constant) -> str:
    if isinstance(access, Constant):
        return str(access.value) if isinstance(access.value, RuntimeScalar) else f"{access.value:g}"
    offset = f"{access.offset}+" if access.offset else ""
    return f"{access.buffer}[{offset}{','.join(map(str, access.strides))}]"


def _op_fields(op: LoopOp) -> dict[str, Any]:
    def operand(access: Access | Constant) -> dict[str, Any]:
        if isinstance(access, Constant):
            return {"value": to_number(access.value), "dtype": _short(access.dtype)}
        return vars(access)

    return {key: value for key, value in vars(op).items() if key not in ("nodes", "position")} | {
        "out": vars(op.out),
        "ins": [operand(access) for access in op.ins],
        "parameters": [to_number(p) for p in op.parameters],
        "indirect": [vars(i) for i in op.indirect],
    }


def to_number(value: Parameter) -> float | str:
    """For JSON, which has no inf and no nan."""
    return value if not isinstance(value, RuntimeScalar) and abs(value) < float("inf") else str(value)


def known(value: Parameter) -> float:
    """A number that is not left to the launch."""
    assert not isinstance(value, RuntimeScalar)
    return value


def from_number(value: float | str) -> Parameter:
    return RuntimeScalar(int(value[1:])) if isinstance(value, str) and value.startswith("%") else float(value)


def _order(given: list[int] | None) -> tuple[int, ...] | None:
    return None if given is None else tuple(given)


def from_json(text: str) -> Kernel:
    """The kernel that :meth:`Kernel.to_json` wrote."""

    def access(fields: dict[str, Any]) -> Access:
        return Access(fields["buffer"], tuple(fields["strides"]), fields["offset"])

    def operand(fields: dict[str, Any]) -> Access | Constant:
        if "value" in fields:
            return Constant(from_number(fields["value"]), getattr(torch, fields["dtype"]))
        return access(fields)

    def op(position: int, fields: dict[str, Any]) -> LoopOp:
        return LoopOp(
            position=position,
            name=fields["name"],
            sizes=tuple(fields["sizes"]),
            out=access(fields["out"]),
            ins=tuple(operand(o) for o in fields["ins"]),
            reduced=fields["reduced"],
            parameters=tuple(from_number(p) for p in fields["parameters"]),
            indirect=tuple(Indirect(**i) for i in fields["indirect"]),
            checked=fields["checked"],
            source=fields["source"],
            aten=fields["aten"],
            hints=fields["hints"],
        )

    given = json.loads(text)
    buffers = {
        b["name"]: Buffer(
            b["name"],
            getattr(torch, b["dtype"]),
            tuple(b["size"]),
            tuple(b["stride"]),
            b["kind"],
            _order(b["order"]),
            tuple(b["names"]),
        )
        for b in given["buffers"]
    }
    return Kernel(
        given["name"], buffers, [op(i, o) for i, o in enumerate(given["ops"])], tuple(given.get("numbers", ()))
    )
