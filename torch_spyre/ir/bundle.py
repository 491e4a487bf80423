"""bundle.mlir: the order in which a kernel runs its SuperDSC files, with constant loops around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import superdsc

if TYPE_CHECKING:
    from .op_spec import LoopSpec, OpSpec

Moves = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]


class InvalidBundle(ValueError):
    """A bundle that cannot be read, or does not fit its files."""


@dataclass(frozen=True)
class Execute:
    """Run a file; ``moves``: (ldsIdx_, ((loop, bytes per turn), ...)) of each tensor that loops move."""

    file: str
    moves: Moves = ()


@dataclass(frozen=True)
class For:
    symbol: str
    count: int
    body: list[Execute | For]


@dataclass(frozen=True)
class Bundle:
    name: str
    body: list[Execute | For] = field(default_factory=list)


def file_name(position: int) -> str:
    return f"sdsc_{position}.json"


def emit(name: str, specs: Sequence[OpSpec | LoopSpec]) -> tuple[str, list[str]]:
    """The text of a kernel's bundle and of its SuperDSC files, in the order of their numbers."""
    from .op_spec import LoopSpec

    texts: list[str] = []

    def node(spec: OpSpec | LoopSpec) -> Execute | For:
        if isinstance(spec, LoopSpec):
            if len(spec.tiled_symbols) != 1:
                raise InvalidBundle(f"{name}: a loop over {spec.tiled_symbols}: one loop counts one symbol")
            return For(str(spec.tiled_symbols[0]), spec.count, [node(each) for each in spec.body])
        dsc = superdsc.emit(spec, len(texts))
        texts.append(superdsc.dumps(dsc))
        return Execute(file_name(len(texts) - 1), moves_of(dsc))

    body = [node(spec) for spec in specs]
    return to_text(Bundle(name, body)), texts


def moves_of(dsc: dict[str, Any]) -> Moves:
    """How loops move the tensors of a file."""
    nodes = superdsc.body(dsc)[2]["scheduleTree_"]
    return tuple((node["ldsIdx_"], tuple(node["loopStrides_"].items())) for node in nodes if node["loopStrides_"])


def verify(bundle: Bundle, files: Mapping[str, Moves]) -> None:
    """Every file exists, and its addresses move as it says, by loops that are there."""

    def walk(body: Sequence[Execute | For], loops: frozenset[str]) -> None:
        for each in body:
            if isinstance(each, For):
                if each.count < 1 or each.symbol in loops:
                    raise InvalidBundle(f"{bundle.name}: loop {each.symbol}: needs a name of its own and a count")
                walk(each.body, loops | {each.symbol})
            elif each.file not in files:
                raise InvalidBundle(f"{bundle.name}: sdsc_filename: there is no {each.file}")
            elif each.moves != files[each.file]:
                raise InvalidBundle(f"{bundle.name}: symbol_ids of {each.file}: not the loopStrides_ of the file")
            elif missing := {symbol for _, moves in each.moves for symbol, _ in moves} - loops:
                raise InvalidBundle(f"{bundle.name}: {each.file} moves with {sorted(missing)}, which no loop counts")

    walk(bundle.body, frozenset())


def to_text(bundle: Bundle) -> str:
    values = iter(range(1 << 30))

    def lines(body: Sequence[Execute | For], indent: str) -> Iterator[str]:
        for each in body:
            if isinstance(each, For):
                yield f"{indent}scf.for %{each.symbol} = %c0 to %c{each.count} step %c1 {{"
                yield from lines(each.body, indent + "  ")
                yield f"{indent}}}"
                continue
            names = []
            for _, moves in each.moves:
                names.append(f"%{next(values)}")
                places = ", ".join(f"d{i}" for i in range(len(moves)))
                total = " + ".join(f"d{i} * {step}" for i, (_, step) in enumerate(moves))
                loops = ", ".join(f"%{symbol}" for symbol, _ in moves)
                yield f"{indent}{names[-1]} = affine.apply affine_map<({places}) -> ({total})>({loops})"
            ids = ", ".join(str(lds) for lds, _ in each.moves)
            facts = f'sdsc_filename = "{each.file}", symbol_ids = [{ids}]'
            yield f"{indent}sdscbundle.sdsc_execute ({', '.join(names)}) {{{facts}}}"

    counts = sorted({0, 1, *_counts(bundle.body)}) if any(isinstance(each, For) for each in bundle.body) else []
    constants = [f"    %c{count} = arith.constant {count} : index" for count in counts]
    inner = [*constants, *lines(bundle.body, "    ")]
    return "\n".join(["module {", f"  func.func @{bundle.name}() {{", *inner, "    return", "  }", "}", ""])


def _counts(body: Sequence[Execute | For]) -> Iterator[int]:
    for each in body:
        if isinstance(each, For):
            yield each.count
            yield from _counts(each.body)


_LINES = {
    "ignored": re.compile(r"module \{|return|%c\d+ = arith\.constant \d+ : index|"),
    "name": re.compile(r"func\.func @(?P<name>\S+)\(\) \{"),
    "loop": re.compile(r"scf\.for %(?P<symbol>\w+) = %c0 to %c(?P<count>\d+) step %c1 \{"),
    "apply": re.compile(r"(?P<value>%\d+) = affine\.apply affine_map<\([^)]*\) -> \((?P<total>.*)\)>\((?P<loops>.*)\)"),
    "run": re.compile(
        r"sdscbundle\.sdsc_execute \((?P<values>.*)\) "
        r'\{sdsc_filename = "(?P<file>[^"]+)", symbol_ids = \[(?P<ids>.*)\]\}'
    ),
    "end": re.compile(r"\}"),
}


def parse(text: str) -> Bundle:
    """The bundle that :func:`to_text` wrote."""
    name = ""
    open_bodies: list[list[Execute | For]] = [[]]
    applied: dict[str, tuple[tuple[str, int], ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        kind, found = next(
            ((kind, found) for kind, form in _LINES.items() if (found := form.fullmatch(line.strip()))), ("", None)
        )
        if found is None:
            raise InvalidBundle(f"line {number}: cannot read: {line.strip()}")
        if kind == "name":
            name = found["name"]
        elif kind == "loop":
            loop = For(found["symbol"], int(found["count"]), [])
            open_bodies[-1].append(loop)
            open_bodies.append(loop.body)
        elif kind == "apply":
            steps = [int(part.split("*")[1]) for part in found["total"].split(" + ")]
            loops = [each.strip().removeprefix("%") for each in found["loops"].split(",")]
            applied[found["value"]] = tuple(zip(loops, steps, strict=True))
        elif kind == "run":
            values = [applied[value.strip()] for value in found["values"].split(",") if value]
            ids = [int(lds) for lds in found["ids"].split(",") if lds]
            open_bodies[-1].append(Execute(found["file"], tuple(zip(ids, values, strict=True))))
        elif kind == "end" and len(open_bodies) > 1:
            open_bodies.pop()
    if not name:
        raise InvalidBundle("there is no func.func")
    return Bundle(name, open_bodies[0])
