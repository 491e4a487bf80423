"""Loop IR from outside: every field is checked before it becomes a kernel.

A kernel that passes is well formed; the passes may still refuse what it asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ...ops.table import OPS
from .ir import Constant, Kernel, RuntimeScalar, from_json

MOST_OPS = 1 << 14
MOST_BUFFERS = 1 << 16
MOST_DIMENSIONS = 32
MOST_NUMBERS = 1 << 16  # parameters of an op
MOST_ELEMENTS = 1 << 40  # of a buffer, and of an iteration space
MOST_SOURCE = 4096  # characters

_NAME = re.compile(r"[A-Za-z0-9_]{1,200}")
_KINDS = ("input", "output", "internal")
_SCALAR = re.compile(r"%(\d{1,4})")
_NO_NUMBERS = ("inf", "-inf", "nan")
DTYPES = tuple(
    str(dtype).removeprefix("torch.")
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    )
)


class InvalidKernel(ValueError):
    """What is given is no kernel in loop IR; the message names the field."""


def kernel_of(given: Any) -> Kernel:
    """The kernel that JSON describes, as :meth:`Kernel.to_json` writes it. Raises InvalidKernel."""
    fields = {"name": _is_name, "buffers": _is_list(MOST_BUFFERS), "ops": _is_list(MOST_OPS)}
    _fields(given, "kernel", fields | ({"numbers": _are(_is_count)} if "numbers" in given else {}))
    for position, buffer in enumerate(given["buffers"]):
        _check_buffer(buffer, f"buffer {position}")
    buffers = {buffer["name"]: buffer for buffer in given["buffers"]}
    _need(len(buffers) == len(given["buffers"]), "buffers", "two have the same name")
    for position, op in enumerate(given["ops"]):
        _check_op(op, f"op {position}", buffers)
    return from_json(json.dumps(given))


def numbers_of(kernel: Kernel) -> int:
    """How many numbers a launch has to give."""
    constants = [each.value for op in kernel.ops for each in op.ins if isinstance(each, Constant)]
    parameters = [each for op in kernel.ops for each in op.parameters]
    return 1 + max((n.index for n in (*constants, *parameters) if isinstance(n, RuntimeScalar)), default=-1)


Check = Callable[[Any], bool]


def _need(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise InvalidKernel(f"{where}: {what}")


def _fields(given: Any, where: str, fields: dict[str, Check]) -> None:
    _need(isinstance(given, dict), where, "is no object")
    for name, check in fields.items():
        _need(name in given, where, f"{name} is missing")
        _need(check(given[name]), where, f"{name} is {_shown(given[name])}")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, list | dict) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_list(most: int) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= MOST_ELEMENTS


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _are(check: Check) -> Check:
    return lambda value: _is_list(MOST_DIMENSIONS)(value) and all(map(check, value))


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DTYPES


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_source(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_SOURCE


def _is_number(value: Any) -> bool:
    """A number; one that JSON does not have, as a text; or one that the launch gives."""
    if isinstance(value, str):
        return value in _NO_NUMBERS or _SCALAR.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _check_buffer(given: Any, where: str) -> None:
    dims = _are(_is_count)
    _fields(
        given,
        where,
        {
            "name": _is_name,
            "dtype": _is_dtype,
            "size": dims,
            "stride": dims,
            "kind": lambda kind: kind in _KINDS,
            "order": lambda order: order is None or dims(order),
            "names": _are(lambda name: isinstance(name, str) and len(name) <= 200),
        },
    )
    rank = len(given["size"])
    _need(len(given["stride"]) == rank, where, "size and stride differ in length")
    _need(given["order"] is None or sorted(given["order"]) == list(range(rank)), where, "order is no permutation")
    _need(len(given["names"]) in (0, rank), where, "names are not one for each dimension")
    _need(prod(given["size"]) <= MOST_ELEMENTS and _reach(given) <= MOST_ELEMENTS, where, "is too large")


def _reach(buffer: dict[str, Any]) -> int:
    """Host elements from the first to behind the last."""
    return 1 + sum((n - 1) * step for n, step in zip(buffer["size"], buffer["stride"], strict=True) if n)


def _check_op(given: Any, where: str, buffers: dict[str, Any]) -> None:
    _fields(
        given,
        where,
        {
            "name": lambda name: isinstance(name, str) and name in OPS,
            "sizes": _are(_is_count),
            "out": lambda out: isinstance(out, dict),
            "ins": _is_list(64),
            "reduced": _is_count,
            "parameters": lambda given: _is_list(MOST_NUMBERS)(given) and all(map(_is_number, given)),
            "indirect": _is_list(MOST_DIMENSIONS),
            "checked": _is_bool,
            "source": _is_source,
            "aten": _is_source,
            "hints": _are_hints,
        },
    )
    where = f"{where}, {given['name']}"
    row = OPS[given["name"]]
    apart = [given["sizes"][:4], given["sizes"][4:]] if row.is_paged else [given["sizes"]]  # rows do not meet all keys
    _need(all(prod(sizes) <= MOST_ELEMENTS for sizes in apart), where, "sizes are too large")
    _need(given["reduced"] <= len(given["sizes"]), where, "reduced is more than there are dimensions")
    indices = 1 if row.is_paged else len(given["indirect"])
    _need(len(given["ins"]) == row.arity + indices, where, f"takes {row.arity} inputs and its indices")
    _need(bool(given["indirect"]) == row.has_indices, where, "indirect is for gathers, scatters and paged attention")
    if row.is_paged:
        _need(len(given["sizes"]) == 8 and len(given["indirect"]) == 2, where, "has 8 loops, and 2 ways of its table")
        _need(len(given["parameters"]) == row.parameter_count(given["sizes"]), where, "has numbers for each request")
    if row.parameters >= 0:
        _need(len(given["parameters"]) in (row.parameters, 0), where, f"has {row.parameters} parameters")
    for position, operand in enumerate([*given["ins"], given["out"]]):
        at = f"{where}, operand {position}"
        if isinstance(operand, dict) and "value" in operand and position < len(given["ins"]):
            _fields(operand, at, {"value": _is_number, "dtype": _is_dtype})
        else:
            _check_access(operand, at, given, buffers, row.jumps(position, len(given["ins"]), given["indirect"]))
    for each in given["indirect"]:
        _fields(each, f"{where}, indirect", {"operand": _is_count, "extent": _is_count, "stride": _is_integer})
        _need(set(each) == {"operand", "extent", "stride"}, where, "indirect has other fields")
        _need(each["operand"] < len(given["ins"]), where, "indirect names no operand")


def _check_access(given: Any, where: str, op: dict[str, Any], buffers: dict[str, Any], indirect: Sequence[Any]) -> None:
    _fields(
        given,
        where,
        {"buffer": lambda name: isinstance(name, str) and name in buffers, "strides": _are(_is_integer)}
        | {"offset": _is_integer},
    )
    _need(len(given["strides"]) == len(op["sizes"]), where, "strides are not one for each of the op's sizes")
    buffer = buffers[given["buffer"]]
    if buffer["kind"] == "input" or not prod(op["sizes"]) or indirect:
        return  # what lies around the tensor of an argument, and where indices lead to, is checked on the way
    ends = [(n - 1) * step for n, step in zip(op["sizes"], given["strides"], strict=True)]
    first, last = (given["offset"] + sum(kind(0, end) for end in ends) for kind in (min, max))
    _need(first >= 0 and last < _reach(buffer), where, f"goes over the elements {first} to {last} of {given['buffer']}")


_COUNTS = ("num_tiles_per_dim", "tiles", "slices", "work_div")


def _are_hints(given: Any) -> bool:
    """As ``spyre_hint`` leaves them: scopes with counts by dimension, and names."""
    if not isinstance(given, dict) or not given.keys() <= {"scopes", "backward"}:
        return False
    return (
        isinstance(given.get("backward", True), bool)
        and _is_list(64)(given.get("scopes", []))
        and all(map(_is_scope, given.get("scopes", [])))
    )


def _is_scope(given: Any) -> bool:
    if not isinstance(given, dict) or not given.keys() <= {"scope", "named_dims", *_COUNTS}:
        return False
    names = given.get("named_dims", [])
    return (
        type(given.get("scope")) is int
        and _is_list(MOST_DIMENSIONS)(names)
        and all(isinstance(name, str) for name in names)
        and all(_are_counts(given[name]) for name in _COUNTS if name in given)
    )


def _are_counts(given: Any) -> bool:
    return isinstance(given, dict) and all(_is_count(count) and count > 0 for count in given.values())
