"""Loop IR as it is printed, read: kernels of tests are a few lines of text."""

import re
from textwrap import dedent
from typing import Any

import torch

from torch_spyre._inductor.loop_ir import Access, Buffer, Constant, Indirect, Kernel, LoopOp, RuntimeScalar

BUFFER = re.compile(r"(input|output|internal) (\w+): (\w+)(\[.*?\]) strides (\[.*?\])(?: order (\[.*?\]))?$")
OP = re.compile(
    r"(\w+\[.*?\]) = (\w+)\((.*?)\)(?: \[(.*?)\])? over (\[.*?\])(?: fold (\d+))?((?: via \S+)*)((?: tiles \S+)*)$"
)
ACCESS = re.compile(r"(\w+)\[(?:(-?\d+)\+)?([-\d,]*)\]$")


def read(text: str) -> Kernel:
    """The kernel that prints like this. Constants are of the dtype of the first buffer among the operands, or of the
    result."""
    title, *lines = dedent(text).strip().split("\n")
    kernel = Kernel(title.removeprefix("kernel "), {}, [])
    for line in map(str.strip, lines):
        if found := BUFFER.match(line):
            kind, name, dtype, sizes, strides, order = found.groups()
            size, names = _named(sizes)
            kernel.buffers[name] = Buffer(
                name, getattr(torch, dtype), size, _named(strides)[0], kind, order and _named(order)[0], names
            )
        elif found := OP.match(line):
            kernel.ops.append(_op(kernel, *found.groups()))
        else:
            raise ValueError(f"no line of loop IR: {line}")
    return kernel


def _op(kernel: Kernel, out, name, ins, parameters, loops, fold, via, tiles) -> LoopOp:
    sizes, names = _named(loops)
    accesses = [_access(each) for each in ins.split(", ") if each]
    first = next(each for each in [*accesses, _access(out)] if isinstance(each, Access))
    return LoopOp(
        name,
        sizes,
        _access(out),
        tuple(
            each if isinstance(each, Access) else Constant(each, kernel.buffers[first.buffer].dtype)
            for each in accesses
        ),
        reduced=int(fold or 0),
        parameters=tuple(map(float, parameters.split(", "))) if parameters else (),
        indirect=tuple(Indirect(*map(int, re.split(r"[:*]", each))) for each in via.split(" via ")[1:]),
        tile_loops=tuple((int(s), int(n)) for s, n in (each.split(":") for each in tiles.split(" tiles ")[1:])),
        names=names,
    )


def _access(text: str) -> Any:
    if found := ACCESS.match(text):
        buffer, offset, strides = found.groups()
        return Access(buffer, tuple(map(int, strides.split(","))) if strides else (), int(offset or 0))
    return RuntimeScalar(int(text[1:])) if text.startswith("%") else float(text)


def _named(text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers, and the names in front of them: "[M 4, 64]"."""
    parts = [each.rpartition(" ") for each in text[1:-1].split(", ") if each]
    names = tuple(name for name, _, _ in parts)
    return tuple(int(n) for _, _, n in parts), names if any(names) else ()
