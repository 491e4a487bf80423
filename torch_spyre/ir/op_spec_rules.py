"""What must hold of an OpSpec. Emission cannot fail on one that passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import TYPE_CHECKING

from .._C import DataFormats
from ..card import description
from ..card.description import STICK_BYTES
from ..ops.table import OPS, OpRow
from .coordinates import ByteAccess, bounds, byte_access, terms, via
from .core_split import BY_NATURE, divided, is_runtime_scalar

if TYPE_CHECKING:
    from .op_spec import OpSpec, TensorArg

INTEGERS = ("IEEE_INT32", "SENINT8", "SENINT16", "SENUINT32")


class InvalidOpSpec(ValueError):
    """An OpSpec that breaks a rule. The message names op and field."""


def folded_symbols(spec: OpSpec) -> list[str]:
    """The symbols that the result does not have: those named, or what the op folds by its nature."""
    kind = OPS[spec.op].kind
    if kind in BY_NATURE:
        return [str(name) for name in list(spec.iteration_space)[-BY_NATURE[kind] :]]
    return list(spec.op_info.get("reduced", ())) if kind in ("reduction", "argreduce") else []


def index_bounds(spec: OpSpec) -> dict[int, int]:
    """Extent of what each index tensor counts, by its position in args."""
    return {int(position): extent for position, extent in spec.op_info.get("bounds", {}).items()}


def constants_of(spec: OpSpec) -> dict[int, float | str]:
    return {int(position): value for position, value in spec.op_info.get("constants", {}).items()}


def computes_integers(spec: OpSpec) -> bool:
    """Whether the op computes on integers: its last input that is a tensor and no index is one, or else its result."""
    indices = index_bounds(spec)
    data = [arg for position, arg in enumerate(spec.args[:-1]) if position not in indices]
    return (data or spec.args)[-1].device_dtype.name in INTEGERS


def integer_constants(spec: OpSpec) -> set[int]:
    """The constants that are integers to the op: by their format, or as the op computes."""
    formats = {int(position): name for position, name in spec.op_info.get("formats", {}).items()}
    otherwise = computes_integers(spec)
    return {i for i in constants_of(spec) if (formats[i] in INTEGERS if i in formats else otherwise)}


def loop_space(spec: OpSpec) -> dict[str, tuple[int, int]]:
    return {s.name: given for s, given in spec.iteration_space.items()}


def points_per_core(spec: OpSpec) -> dict[str, int]:
    """How many points of each loop a core takes, which is also the size of what it has in LX."""
    units: dict[str, int] = {}
    for arg in spec.args:
        elements = arg.device_dtype.elems_per_stick()
        stick = byte_access(arg.device_coordinates, arg.device_size, elements, loop_space(spec)).stick
        units[stick] = max(units.get(stick, 1), elements)
    return {
        name: divided(name, length, cores, units.get(name, 1)).points
        for name, (length, cores) in loop_space(spec).items()
    }


def verify(spec: OpSpec, loops: Mapping[str, int] | None = None, cores: int | None = None) -> None:
    """Raises InvalidOpSpec. ``loops``: counts of the loops around the op, by symbol name; ``cores``: of the card."""
    for field, why in _broken(spec, loops or {}, cores or int(description.constants()["cores"])):
        raise InvalidOpSpec(f"{spec.op}: {field}: {why}")


def _broken(spec: OpSpec, loops: Mapping[str, int], cores: int) -> Iterator[tuple[str, str]]:
    row = OPS.get(spec.op)
    if row is None:
        yield "op", "the op table has no such op"
        return
    yield from _space(spec, cores)
    yield from _counts(spec, row)
    yield from _folds(spec, row)
    ranges = {name: length for name, (length, _) in loop_space(spec).items()} | dict(loops)
    extents = index_bounds(spec)
    ranges |= {via(position): extent for position, extent in extents.items()}
    walks = []
    points = points_per_core(spec) if any("lx" in arg.allocation for arg in spec.args) else {}
    for position, arg in enumerate(spec.args):
        field = f"args[{position}]"
        yield from _placement(arg, field)
        try:
            walk = byte_access(
                arg.device_coordinates, arg.device_size, arg.device_dtype.elems_per_stick(), loop_space(spec)
            )
        except ValueError as error:
            yield f"{field}.device_coordinates", str(error)
            return
        yield from _symbols(walk, ranges, field)
        if arg.core is not None:
            yield from _other_cores(spec, row, position, walk, cores)
        over = ranges | points if "lx" in arg.allocation and arg.core is None else ranges
        for expr, size in zip(arg.device_coordinates, arg.device_size, strict=True):
            low, high = bounds(terms(expr), over)
            if low < 0 or high >= size:
                yield f"{field}.device_coordinates", f"{expr} runs over [{low}, {high}], outside a dimension of {size}"
        walks.append(walk)
    yield from _indirection(spec, row, walks, extents)
    yield from _sticks(spec, row, walks)


def _space(spec: OpSpec, cores: int) -> Iterator[tuple[str, str]]:
    if not spec.iteration_space:
        yield "iteration_space", "is empty; a scalar has one loop of range 1"
    for name, (length, slices) in spec.iteration_space.items():
        if length < 1:
            yield "iteration_space", f"{name} has the range {length}"
        if not 1 <= slices <= length:
            yield "iteration_space", f"{name} of range {length} is divided over {slices} cores"
    used = prod(slices for _, slices in spec.iteration_space.values())
    if used > cores:
        yield "iteration_space", f"uses {used} cores, the card has {cores}"


def _counts(spec: OpSpec, row: OpRow) -> Iterator[tuple[str, str]]:
    roles = [arg.is_input for arg in spec.args]
    if not roles or roles != [True] * (len(roles) - 1) + [False]:
        yield "args", "must be the inputs, then the one output"
    constants, indices = constants_of(spec), index_bounds(spec)
    inputs = len(roles) - 1 + len(constants)
    if inputs != row.arity + len(indices):
        yield "args", f"{row.name} takes {row.arity} inputs and {len(indices)} indices, has {inputs}"
    for position in constants:
        if not 0 <= position < row.arity + len(indices):
            yield "op_info.constants", f"{row.name} has no input {position} that could be a number"
    for position, name in spec.op_info.get("formats", {}).items():
        if int(position) not in constants or name not in DataFormats.__members__:
            yield "op_info.formats", f"{name} of input {position} is no format of a constant"
    for position, value in constants.items():
        if isinstance(value, str):
            if not is_runtime_scalar(value):
                yield "op_info.constants", f"{value!r} of input {position} is no number"
        elif position in integer_constants(spec) and not (
            isfinite(value) and value == int(value) and abs(value) < 2**63
        ):
            yield "op_info.constants", f"input {position} is an integer, not {value}"
    if row.is_paged and len(spec.iteration_space) != 8:
        yield "iteration_space", "paged attention runs over [head, group, token, e, request, page, key, d]"
        return
    wanted = row.parameter_count([length for length, _ in spec.iteration_space.values()])
    given = len(spec.op_info.get("parameters", ()))
    if given != wanted:
        yield "op_info.parameters", f"{row.name} takes {wanted}, has {given}"
    if row.kind in ("pointwise", "reduction") and spec.is_reduction != row.is_reduction:
        yield "is_reduction", f"{row.name} is a {row.kind}"


def _folds(spec: OpSpec, row: OpRow) -> Iterator[tuple[str, str]]:
    names, folded = [str(s) for s in spec.iteration_space], folded_symbols(spec)
    if row.is_matmul and len(names) < 3:
        yield "iteration_space", "a matrix product runs over [batch ..., m, n, k]"
    if row.is_attention:
        if len(names) < 4:
            yield "iteration_space", "attention runs over [batch ..., q, e, l, d]"
        for name in names[-3:]:
            if loop_space(spec)[name][1] > 1:
                yield "iteration_space", f"{name} is divided: cores do not share results or keys of a row"
    if row.is_paged:
        for i in (1, 2, 3, 4, 5, 7):
            if spec.iteration_space and loop_space(spec)[names[i]][1] > 1:
                yield "iteration_space", f"{names[i]} is divided: cores share heads and keys alone"
    if row.folds_by_choice and not folded:
        yield "op_info.reduced", f"{row.name} folds nothing"
    if spec.op_info.get("reduced") and not folded:
        yield "op_info.reduced", f"the result of {row.name} has every dimension"
    if folded and names[-len(folded) :] != folded:
        yield "op_info.reduced", f"{folded} must be the last of {names}, in their order"
    divided = [name for name, (_, slices) in loop_space(spec).items() if name in folded and slices > 1]
    if len(divided) > 1:
        yield "iteration_space", f"{divided} are all folded and divided; one may be"


def _placement(arg: TensorArg, field: str) -> Iterator[tuple[str, str]]:
    elements = arg.device_dtype.elems_per_stick()
    if len(arg.device_coordinates) != len(arg.device_size):
        yield (
            f"{field}.device_coordinates",
            f"has {len(arg.device_coordinates)} for a device_size of {len(arg.device_size)}",
        )
    if not arg.device_size or min(arg.device_size) < 1 or arg.device_size[-1] != elements:
        yield f"{field}.device_size", f"{arg.device_size} does not end in one stick of {elements} elements"
    if len(arg.allocation) + (arg.arg_index >= 0) != 1 or not set(arg.allocation) <= {"pool", "lx"}:
        yield f"{field}.allocation", f"arg_index {arg.arg_index} and {arg.allocation} must name exactly one place"
    if any(address < 0 or address % STICK_BYTES for address in arg.allocation.values()):
        yield f"{field}.allocation", f"{arg.allocation} is not at a whole stick"


def core_strides(arg: TensorArg) -> dict[str, int]:
    """By symbol name: how many cores further along its loop lies what is in the LX of other cores."""
    return {} if arg.core is None else dict(terms(arg.core).plain)


def _other_cores(spec: OpSpec, row: OpRow, position: int, walk: ByteAccess, cores: int) -> Iterator[tuple[str, str]]:
    arg, field = spec.args[position], f"args[{position}].core"
    if row.name != "copy" or not arg.is_input or "lx" not in arg.allocation:
        yield field, "only what a copy reads in LX lies in that of other cores"
    if arg.device_dtype != spec.args[-1].device_dtype:
        yield field, f"{arg.device_dtype.name} comes over the ring as it is, not as {spec.args[-1].device_dtype.name}"
    try:
        at = terms(arg.core)
    except ValueError as error:
        yield field, str(error)
        return
    ranges = {name: length for name, (length, _) in loop_space(spec).items()}
    if at.constant or at.tiles or at.lanes or not {name for name, _ in at.plain} <= ranges.keys() - {walk.stick}:
        yield field, f"{arg.core} is no sum of loops, those along sticks left out"
        return
    low, high = bounds(at, ranges)
    if low < 0 or high >= cores:
        yield field, f"{arg.core} runs over [{low}, {high}], the card has {cores} cores"


def _symbols(walk: ByteAccess, ranges: Mapping[str, int], field: str) -> Iterator[tuple[str, str]]:
    for name in walk.strides:
        if name not in ranges and name.startswith("@"):
            yield "op_info.bounds", f"lacks the extent that args[{name[1:]}], an index of {field}, counts"
        elif name not in ranges:
            yield f"{field}.device_coordinates", f"the symbol {name} is not in the iteration space"


def _indirection(
    spec: OpSpec, row: OpRow, walks: list[ByteAccess], extents: Mapping[int, int]
) -> Iterator[tuple[str, str]]:
    last = len(spec.args) - 1
    used: set[int] = set()
    for position, walk in enumerate(walks):
        indices = {int(name[1:]) for name in walk.strides if name.startswith("@")}
        if indices and not row.is_table(position, last):
            yield f"args[{position}].device_coordinates", f"{row.name} has no indices there"
        used |= indices
    if used != set(extents):
        yield "op_info.bounds", f"has {sorted(extents)}, the indices are {sorted(used)}"
    for position in used:
        if not 0 <= position < last or row.is_table(position, last):
            yield "op_info.bounds", f"args[{position}] cannot be an index"
        elif spec.args[position].device_dtype.name not in INTEGERS:
            yield f"args[{position}].device_dtype", f"{spec.args[position].device_dtype.name} is no index"


def _sticks(spec: OpSpec, row: OpRow, walks: list[ByteAccess]) -> Iterator[tuple[str, str]]:
    space, folded, out = loop_space(spec), folded_symbols(spec), len(walks) - 1
    for name in folded:
        if walks[out].strides.get(name):
            yield f"args[{out}].device_coordinates", f"the result moves along {name}, which is folded"
    for name, (length, slices) in space.items():
        # Along sticks cores take whole ones; elsewhere what a core writes must end with a stick.
        if slices == 1 or name in folded or walks[out].stick == name or "lx" in spec.args[out].allocation:
            continue
        units = [
            arg.device_dtype.elems_per_stick() for arg, walk in zip(spec.args, walks, strict=True) if walk.stick == name
        ]
        distance = divided(name, length, slices, max(units, default=1)).points * walks[out].strides.get(name, 0)
        if distance == 0 or distance % STICK_BYTES:
            yield "iteration_space", f"dividing {name} makes two cores write into one stick"
    if row.is_matmul and len(walks) == 3:
        n, k = list(space)[-2:]
        for position, allowed in ((0, (k,)), (1, (n, k)), (2, (n,))):
            if walks[position].stick not in allowed:
                yield (
                    f"args[{position}].device_coordinates",
                    f"a matrix product needs sticks along {' or '.join(allowed)}",
                )
    if row.is_attention and len(space) > 3:
        e, d = list(space)[-3], list(space)[-1]
        for position, wanted in ((0, d), (1, d), (2, e), (out, e)):
            if walks[position].stick != wanted:
                yield f"args[{position}].device_coordinates", f"attention needs sticks along {wanted}"
    if row.is_paged and len(space) == 8:
        e, d = list(space)[3], list(space)[7]
        for position, wanted in ((0, d), (1, d), (2, e), (out, e)):
            if walks[position].stick != wanted:
                yield f"args[{position}].device_coordinates", f"paged attention needs sticks along {wanted}"
    if row.name == "restickify" and spec.args[0].device_dtype != spec.args[1].device_dtype:
        yield "args[1].device_dtype", "a restickify keeps the format"
