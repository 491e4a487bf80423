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

# What a bundle may ask for at most; docs/superdsc.md says why.
MOST_TEXT = 1 << 24
MOST_LINE = 1 << 16
MOST_LOOPS = 16  # inside each other
MOST_STEPS = 1 << 16  # loops written out, as many as a card program may have
MOST_BYTES = 1 << 40  # by which a turn moves an address


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
    """Every file exists, its addresses move as it says, by loops that are there, and there are not too many steps."""

    def walk(body: Sequence[Execute | For], loops: frozenset[str]) -> int:
        steps = 0
        for each in body:
            if isinstance(each, For):
                if not 1 <= each.count <= MOST_STEPS or each.symbol in loops:
                    raise InvalidBundle(
                        f"{bundle.name}: loop {each.symbol}: needs a name of its own and a count of 1 to {MOST_STEPS}"
                    )
                if len(loops) == MOST_LOOPS:
                    raise InvalidBundle(f"{bundle.name}: more than {MOST_LOOPS} loops inside each other")
                steps += each.count * walk(each.body, loops | {each.symbol})
                continue
            steps += 1
            if each.file not in files:
                raise InvalidBundle(f"{bundle.name}: sdsc_filename: there is no {each.file}")
            if each.moves != files[each.file]:
                raise InvalidBundle(f"{bundle.name}: symbol_ids of {each.file}: not the loopStrides_ of the file")
            if missing := {symbol for _, moves in each.moves for symbol, _ in moves} - loops:
                raise InvalidBundle(f"{bundle.name}: {each.file} moves with {sorted(missing)}, which no loop counts")
        return steps

    if (steps := walk(bundle.body, frozenset())) > MOST_STEPS:
        raise InvalidBundle(f"{bundle.name}: {steps} steps with loops written out, the limit is {MOST_STEPS}")


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


_NUMBER = r"[0-9]{1,13}"
_LINES = {
    "blank": re.compile(""),
    "module": re.compile(r"module \{"),
    "name": re.compile(r"func\.func @(?P<name>[^\s()]+)\(\) \{"),
    "constant": re.compile(rf"%c(?P<named>{_NUMBER}) = arith\.constant (?P<value>{_NUMBER}) : index"),
    "loop": re.compile(rf"scf\.for %(?P<symbol>\w+) = %c0 to %c(?P<count>{_NUMBER}) step %c1 \{{"),
    "apply": re.compile(
        r"(?P<value>%[0-9]+) = affine\.apply affine_map<\((?P<places>[^()]*)\) -> \((?P<total>[^()]*)\)>"
        r"\((?P<loops>[^()]*)\)"
    ),
    "run": re.compile(
        r"sdscbundle\.sdsc_execute \((?P<values>[^()]*)\) "
        r'\{sdsc_filename = "(?P<file>[^"]+)", symbol_ids = \[(?P<ids>[^\[\]]*)\]\}'
    ),
    "return": re.compile(r"return"),
    "end": re.compile(r"\}"),
}
_MOVE = re.compile(rf"d({_NUMBER}) \* (-?{_NUMBER})")


def parse(text: str) -> Bundle:
    """The bundle that :func:`to_text` wrote. Raises InvalidBundle naming the line."""
    if len(text) > MOST_TEXT:
        raise InvalidBundle(f"the text has {len(text)} characters, the limit is {MOST_TEXT}")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader.read(line.strip())
        except InvalidBundle as error:
            raise InvalidBundle(f"line {number}: {error}") from None
    return reader.done()


class _Reader:
    """Line after line: what is open, and what values stand for."""

    def __init__(self) -> None:
        self.name = ""
        self.body: list[Execute | For] = []
        self.open: list[tuple[str, list[Execute | For]]] = []  # module, function, loops; and where their lines go
        self.applied: dict[str, tuple[tuple[str, int], ...]] = {}

    def read(self, line: str) -> None:
        if len(line) > MOST_LINE:
            raise InvalidBundle(f"{len(line)} characters, the limit is {MOST_LINE}")
        kind, found = next(
            ((kind, found) for kind, form in _LINES.items() if (found := form.fullmatch(line))), ("", None)
        )
        if found is None:
            raise InvalidBundle(f"cannot read: {line[:200]}")
        getattr(self, f"_{kind}")(found)

    def done(self) -> Bundle:
        if not self.name:
            raise InvalidBundle("there is no func.func")
        if self.open:
            raise InvalidBundle(f"a {self.open[-1][0]} has no end")
        return Bundle(self.name, self.body)

    def _inside(self, *places: str) -> None:
        if (self.open[-1][0] if self.open else "") not in places:
            raise InvalidBundle("this line has no place here" if self.name else "there is no func.func around it")

    def _blank(self, found: re.Match[str]) -> None:
        pass

    def _module(self, found: re.Match[str]) -> None:
        self._inside("")
        if self.name:
            raise InvalidBundle("a second module")
        self.open.append(("module", []))

    def _name(self, found: re.Match[str]) -> None:
        self._inside("module")
        if self.name:
            raise InvalidBundle("a second function")
        self.name = found["name"]
        self.open.append(("function", self.body))

    def _constant(self, found: re.Match[str]) -> None:
        self._inside("function")
        if int(found["named"]) != int(found["value"]):
            raise InvalidBundle(f"%c{found['named']} must be {found['named']}")

    def _loop(self, found: re.Match[str]) -> None:
        self._inside("function", "loop")
        loop = For(found["symbol"], int(found["count"]), [])
        if len(self.open) == 2 + MOST_LOOPS:
            raise InvalidBundle(f"more than {MOST_LOOPS} loops inside each other")
        self.open[-1][1].append(loop)
        self.open.append(("loop", loop.body))

    def _apply(self, found: re.Match[str]) -> None:
        self._inside("loop")
        moves = [_MOVE.fullmatch(part) for part in found["total"].split(" + ")]
        loops = [each.strip() for each in found["loops"].split(",")]
        places = ", ".join(f"d{i}" for i in range(len(moves)))
        if found["places"] != places or [int(move[1]) if move else -1 for move in moves] != list(range(len(loops))):
            raise InvalidBundle("affine_map must multiply each loop by a number, in their order")
        if found["value"] in self.applied or not all(re.fullmatch(r"%\w+", each) for each in loops):
            raise InvalidBundle(f"{found['value'][:200]} must be a new value of loops")
        steps = [int(move[2]) for move in moves if move]
        if any(abs(step) > MOST_BYTES for step in steps):
            raise InvalidBundle(f"a turn moves an address by {MOST_BYTES} bytes at most")
        self.applied[found["value"]] = tuple(zip((each[1:] for each in loops), steps, strict=True))

    def _run(self, found: re.Match[str]) -> None:
        self._inside("function", "loop")
        names = [value.strip() for value in found["values"].split(",")] if found["values"] else []
        ids = [each.strip() for each in found["ids"].split(",")] if found["ids"] else []
        if unknown := [name for name in names if name not in self.applied]:
            raise InvalidBundle(f"nothing says what {unknown[0][:200]} is")
        if len(ids) != len(names) or not all(re.fullmatch(_NUMBER, each) for each in ids):
            raise InvalidBundle("symbol_ids must be one number per value")
        moves = tuple((int(lds), self.applied[name]) for lds, name in zip(ids, names, strict=True))
        self.open[-1][1].append(Execute(found["file"], moves))

    def _return(self, found: re.Match[str]) -> None:
        self._inside("function")

    def _end(self, found: re.Match[str]) -> None:
        self._inside("loop", "function", "module")
        self.open.pop()
