"""OpSpec: what the front end hands to the emitters. It is what a person reads first when something is wrong."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from .._C import DataFormats
from .coordinates import IndirectAccess, along_sticks, indirect, symbol
from .op_spec_rules import InvalidOpSpec, verify

__all__ = [
    "IndirectAccess",
    "InvalidOpSpec",
    "LoopSpec",
    "OpSpec",
    "TensorArg",
    "along_sticks",
    "indirect",
    "parse_op_spec",
    "print_op_spec",
    "symbol",
    "to_json",
    "verify",
    "verify_all",
]


@dataclass
class TensorArg:
    """A tensor of an op on the card: its shape there, and where each point of the iteration space lies in it.

    ``device_coordinates`` has one expression over the iteration symbols per device dimension. They are affine, but for
    one symbol at most: along the stick dimension ``c`` they are ``floor(c/E)`` and ``Mod(c, E)``.

    What a copy reads from LX may lie in that of other cores: ``core`` says in whose, over the symbols.
    """

    is_input: bool
    arg_index: int  # of the kernel's arguments; -1 when `allocation` says where it is
    device_dtype: DataFormats
    device_size: list[int]
    device_coordinates: list[sympy.Expr]
    allocation: dict[str, int] = field(default_factory=dict)  # {} device memory, {"lx": address}, {"pool": offset}
    core: sympy.Expr | None = None  # None: each core's own


@dataclass
class OpSpec:
    """One operation over one iteration space, divided over cores.

    ``args`` are the inputs in order, then the output. ``op_info`` is JSON, so positions are texts: "constants" {input
    position: value} for inputs that are numbers (they have no TensorArg), "formats" {input position: name} of these,
    "parameters" [numbers of the op itself], "reduced" [names of folded symbols], "bounds" {position in args of an index
    tensor: extent}, "checked"; "source", "aten" and "loop_op": the line of the program, the op there,
    and the position of the loop op in the kernel's text, -1 if a pass added it. The text "%2" in place of a number is
    runtime scalar 2.
    """

    op: str
    is_reduction: bool
    iteration_space: dict[sympy.Symbol, tuple[int, int]]  # symbol: (range, cores)
    args: list[TensorArg]
    op_info: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return print_op_spec(self)


@dataclass
class LoopSpec:
    """``count`` repetitions of ``body``; ``tiled_symbols`` names what moves on from one to the next."""

    count: int
    body: list[OpSpec | LoopSpec]
    tiled_symbols: list[sympy.Symbol] = field(default_factory=list)

    def __str__(self) -> str:
        return print_op_spec(self)


def verify_all(specs: Sequence[OpSpec | LoopSpec], loops: Mapping[str, int] | None = None) -> None:
    """Raises InvalidOpSpec."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            counts = {s.name: spec.count for s in spec.tiled_symbols}
            verify_all(spec.body, {**(loops or {}), **counts})
        else:
            verify(spec, loops)


def print_op_spec(spec: OpSpec | LoopSpec) -> str:
    """A few lines: the op and its space, one line per tensor, one of facts; :func:`parse_op_spec` reads them."""
    if isinstance(spec, LoopSpec):
        inner = "\n".join(print_op_spec(each) for each in spec.body)
        names = ", ".join(str(s) for s in spec.tiled_symbols)
        return f"loop {spec.count} over {names}\n" + re.sub("^", "  ", inner, flags=re.MULTILINE)
    space = ", ".join(f"{s}: {r}/{cores}" for s, (r, cores) in spec.iteration_space.items())
    lines = [f"{'fold ' if spec.is_reduction else ''}{spec.op} over {space}"]
    for arg in spec.args:
        placed = [f"arg{arg.arg_index}"] if arg.arg_index >= 0 else []
        placed += [f"{memory}@{address}" for memory, address in arg.allocation.items()]
        at = ", ".join(str(c) for c in arg.device_coordinates)
        size = ", ".join(map(str, arg.device_size))
        role = "in " if arg.is_input else "out"
        core = "" if arg.core is None else f" of core {arg.core}"
        lines.append(f"  {role} {'+'.join(placed)} {arg.device_dtype.name}[{size}] at [{at}]{core}")
    if spec.op_info:
        lines.append(f"  with {json.dumps(spec.op_info)}")
    return "\n".join(lines)


def to_json(spec: OpSpec) -> str:
    """The same facts as JSON, which :func:`parse_op_spec` reads too."""
    fields = {
        "op": spec.op,
        "is_reduction": spec.is_reduction,
        "iteration_space": {str(s): list(rc) for s, rc in spec.iteration_space.items()},
        "args": [
            {
                "is_input": arg.is_input,
                "arg_index": arg.arg_index,
                "device_dtype": arg.device_dtype.name,
                "device_size": arg.device_size,
                "device_coordinates": [str(c) for c in arg.device_coordinates],
                "allocation": arg.allocation,
                "core": None if arg.core is None else str(arg.core),
            }
            for arg in spec.args
        ],
        "op_info": spec.op_info,
    }
    return json.dumps(fields)


# What a text may hold at most.
MOST_TEXT = 1 << 20
MOST_LINE = 1 << 13
MOST_LOOPS = MOST_ARGS = 64
MOST_TERMS = 64  # of a coordinate
MOST_NUMBER = 1 << 40


def parse_op_spec(text: str) -> OpSpec:
    """The OpSpec that :func:`print_op_spec` or :func:`to_json` wrote; InvalidOpSpec names what it cannot read."""
    if len(text) > MOST_TEXT:
        raise InvalidOpSpec(f"the text has {len(text)} characters, the limit is {MOST_TEXT}")
    try:
        fields = json.loads(text) if text.lstrip().startswith("{") else _read_lines(text)
    except (ValueError, RecursionError) as error:  # no JSON; a number of thousands of digits; too deep
        if isinstance(error, InvalidOpSpec):
            raise
        raise InvalidOpSpec(f"this is no OpSpec: {str(error)[:200]}") from error
    _check(fields, _SPEC, "")
    return _from_fields(fields)


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _count(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MOST_NUMBER


def _number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= 1 << 64) or type(value) is str


def _list(holds: Callable[[Any], bool], most: int = MOST_LOOPS) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and len(value) <= most and all(map(holds, value))


def _map(holds: Callable[[Any], bool], name: str = r"[0-9]{1,4}") -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is dict
        and len(value) <= MOST_LOOPS
        and all(re.fullmatch(name, key) and holds(each) for key, each in value.items())
    )


_EXPRESSION = _is(str)
_SPEC: dict[str, Callable[[Any], bool]] = {
    "op": _is(str),
    "is_reduction": _is(bool),
    "iteration_space": _map(lambda given: _list(_count)(given) and len(given) == 2, r"\w{1,64}"),
    "args": _list(_is(dict), MOST_ARGS),
    "op_info": _is(dict),
}
_TENSOR: dict[str, Callable[[Any], bool]] = {
    "is_input": _is(bool),
    "arg_index": lambda value: _count(value, -1),
    "device_dtype": lambda value: type(value) is str and value in DataFormats.__members__,
    "device_size": _list(_count),
    "device_coordinates": _list(_EXPRESSION),
    "allocation": _map(_count, "pool|lx"),
    "core": lambda value: value is None or _EXPRESSION(value),
}
_INFO: dict[str, Callable[[Any], bool]] = {
    "constants": _map(_number),
    "formats": _map(_is(str)),
    "parameters": _list(_number, MOST_LOOPS + 1),
    "reduced": _list(_is(str)),
    "bounds": _map(lambda extent: _count(extent, 1)),
    "checked": lambda value: value in (True, False),
    "source": _is(str),
    "aten": _is(str),
    "loop_op": lambda value: _count(value, -1),
}


def _check(fields: Any, schema: Mapping[str, Callable[[Any], bool]], path: str, optional: bool = False) -> None:
    """Raises InvalidOpSpec where a field is missing or holds something else than it should."""
    if type(fields) is not dict:
        raise InvalidOpSpec(f"this is no OpSpec: {path or 'it'} must be an object")
    for name, holds in schema.items():
        if name not in fields:
            if optional or name == "core":
                continue
            raise InvalidOpSpec(f"this is no OpSpec: {path}{name} is missing")
        if not holds(fields[name]):
            raise InvalidOpSpec(f"this is no OpSpec: {path}{name}: {str(fields[name])[:200]}")


def _from_fields(fields: dict[str, Any]) -> OpSpec:
    _check(fields["op_info"], _INFO, "op_info.", optional=True)
    for i, arg in enumerate(fields["args"]):
        _check(arg, _TENSOR, f"args[{i}].")
    args = [
        TensorArg(
            arg["is_input"],
            arg["arg_index"],
            DataFormats.__members__[arg["device_dtype"]],
            arg["device_size"],
            [_expression(c) for c in arg["device_coordinates"]],
            arg["allocation"],
            None if arg.get("core") is None else _expression(arg["core"]),
        )
        for arg in fields["args"]
    ]
    space = {symbol(name): (length, cores) for name, (length, cores) in fields["iteration_space"].items()}
    return OpSpec(fields["op"], fields["is_reduction"], space, args, fields["op_info"])


_HEAD = re.compile(r"(?P<fold>fold )?(?P<op>\w+) over (?P<space>.*)")
_ARG = re.compile(
    r"  (?P<role>in |out) (?P<place>\S*) (?P<format>\w+)\[(?P<size>[^]]*)\] at \[(?P<at>.*)\]"
    r"(?: of core (?P<core>.*))?"
)


def _read_lines(text: str) -> dict[str, Any]:
    first, *lines = text.strip("\n").split("\n")
    if any(len(line) > MOST_LINE for line in (first, *lines)):
        raise InvalidOpSpec(f"a line has more than {MOST_LINE} characters")
    head = _HEAD.fullmatch(first)
    if not head:
        raise InvalidOpSpec(f"this is no OpSpec, it begins with: {first[:200]}")
    info, args = {}, []
    for line in lines:
        if line.startswith("  with "):
            info = json.loads(line.removeprefix("  with "))
        elif arg := _ARG.fullmatch(line):
            places = [place for place in arg["place"].split("+") if place]
            index = next((int(place[3:]) for place in places if place.startswith("arg")), -1)
            allocation = dict(place.split("@", 1) for place in places if "@" in place)
            args.append(
                {
                    "is_input": arg["role"] == "in ",
                    "arg_index": index,
                    "device_dtype": arg["format"],
                    "device_size": [int(size) for size in arg["size"].split(",")],
                    "device_coordinates": re.split(r",\s*(?![^(]*\))", arg["at"]),
                    "allocation": {memory: int(address) for memory, address in allocation.items()},
                    "core": arg["core"],
                }
            )
        else:
            raise InvalidOpSpec(f"{head['op'][:99]}: cannot read the line: {line.strip()[:200]}")
    space = dict(re.findall(r"(\w+): (\d+/\d+)", head["space"]))
    return {
        "op": head["op"],
        "is_reduction": bool(head["fold"]),
        "iteration_space": {name: [int(n) for n in given.split("/")] for name, given in space.items()},
        "args": args,
        "op_info": info,
    }


# A coordinate is a sum of terms [factor*]atom. Read by hand: sympy's own parser evaluates what it reads.
_TERM = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<factor>[0-9]{1,13})\*)?(?:(?P<number>[0-9]{1,13})(?!\w)"
    r"|floor\((?P<tile>\w+(?:\(\w+\))?)/(?P<sticks>[1-9][0-9]{0,3})\)"
    r"|Mod\((?P<lane>\w+(?:\(\w+\))?),(?P<length>[1-9][0-9]{0,3})\)|(?P<plain>\w{1,64}(?:\(\w+\))?))"
)


def _expression(text: str) -> sympy.Expr:
    rest, total = text[:MOST_LINE].replace(" ", ""), sympy.S.Zero
    for count in itertools.count():
        if not rest:
            break
        term = _TERM.match(rest)
        if not term or count == MOST_TERMS or len(text) > MOST_LINE:
            raise InvalidOpSpec(f"cannot read the coordinate {text[:200]!r}")
        rest = rest[term.end() :]
        if term["number"]:
            value = sympy.Integer(int(term["number"]))
        elif term["tile"]:
            value = along_sticks(_atom(term["tile"]), int(term["sticks"]))[0]
        elif term["lane"]:
            value = along_sticks(_atom(term["lane"]), int(term["length"]))[1]
        else:
            value = _atom(term["plain"])
        total += value * int(term["factor"] or 1) * (-1 if term["sign"] == "-" else 1)
    return total


def _atom(text: str) -> sympy.Expr:
    name = re.fullmatch(r"IndirectAccess\(arg([0-9]{1,4})\)", text)
    if not name and not re.fullmatch(r"[^\W\d]\w{0,63}", text):
        raise InvalidOpSpec(f"{text[:99]!r} is neither a loop symbol nor IndirectAccess(argN)")
    return indirect(int(name[1])) if name else symbol(text)
