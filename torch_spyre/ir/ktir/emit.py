"""From OpSpecs to KTIR: a function for each op, in the order in which the kernel runs them. Cannot fail on a spec that
:func:`why_not` lets pass.

A loop that some tensor walks in sticks is two or more dimensions of every view: whole sticks, and positions inside of
them. A core's access tile begins where its slice does; what is beyond a loop's end is outside of the view.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...ops.table import OPS
from ..coordinates import ByteAccess, byte_access
from ..core_split import divided, is_runtime_scalar
from ..op_spec import LoopSpec, OpSpec, TensorArg
from ..op_spec_rules import constants_of, folded_symbols, integer_constants, loop_space
from .attributes import float_text
from .types import F32

TYPES = {"SEN169_FP16": "f16", "IEEE_FP32": "f32", "IEEE_INT32": "i32", "SENINT8": "i8", "SENINT16": "i16"}
FORMATS = {name: given for given, name in TYPES.items()}
BYTES = {"f16": 2, "f32": 4, "i32": 4, "i8": 1, "i16": 2}
_FOLDS = {
    **dict.fromkeys(("sum", "mean", "wide_sum", "wide_mean"), "arith.addf"),
    **{"amax": "arith.maximumf", "amin": "arith.minimumf", "prod": "arith.mulf"},
    **{"any": "spyreop.logical_or", "all": "spyreop.logical_and"},
}


def why_not(spec: OpSpec | LoopSpec) -> str:
    """Why an op cannot be emitted; nothing if it can."""
    if isinstance(spec, LoopSpec):
        return "a tile loop"
    row = OPS[spec.op]
    if row.kind not in ("pointwise", "matmul") and spec.op not in _FOLDS:
        return f"{spec.op}"
    if any(arg.core is not None for arg in spec.args):
        return "what lies in the LX of other cores"
    formats = [arg.device_dtype.name for arg in spec.args]
    if missing := [name for name in formats if name not in TYPES]:
        return f"the format {missing[0]}"
    if row.kind != "pointwise" and any(TYPES[name] not in ("f16", "f32") for name in formats):
        return f"{spec.op} of integers"
    if any(is_runtime_scalar(value) for value in spec.op_info.get("parameters", ())):
        return "a parameter that is known at launch"
    if integer_constants(spec) and row.kind != "pointwise":
        return f"{spec.op} of an integer"
    return ""


def emit(name: str, specs: Sequence[OpSpec]) -> str:
    """The module of a kernel: its functions run one after the other, with the kernel's arguments and its pool."""
    arguments = max((arg.arg_index for spec in specs for arg in spec.args), default=-1) + 1
    lines = [f'module @{json.dumps(name)} attributes {{ktdp.half = "sen169"}} {{']
    for i, spec in enumerate(specs):
        lines += _Function(spec, i, arguments).lines()
    return "\n".join([*lines, "}", ""])


@dataclass
class _Loop:
    """One loop of the op as dimensions of views."""

    name: str
    size: int
    cores: int
    points: int  # of a core
    steps: list[int]  # elements of the loop that each dimension counts by; the last is 1

    @property
    def sizes(self) -> list[int]:
        return self._sizes(self.size)

    @property
    def own_sizes(self) -> list[int]:
        """Of one core's part."""
        return self._sizes(self.points)

    def _sizes(self, points: int) -> list[int]:
        outer = [-(-points // self.steps[0])]
        return outer + [a // b for a, b in zip(self.steps[:-1], self.steps[1:], strict=True)]


class _Function:
    def __init__(self, spec: OpSpec, index: int, arguments: int) -> None:
        self.spec, self.index, self.arguments = spec, index, arguments
        space = loop_space(spec)
        self.walks = [self._walk(arg, space) for arg in spec.args]
        elements = [arg.device_dtype.elems_per_stick() for arg in spec.args]
        self.loops = []
        for name, (size, cores) in space.items():
            sticks = sorted(
                {n for n, walk in zip(elements, self.walks, strict=True) if walk.stick == name}, reverse=True
            )
            points = divided(name, size, cores, sticks[0] if sticks else 1).points
            self.loops.append(_Loop(name, size, cores, points, [*sticks, 1]))
        self.text: list[str] = []

    @staticmethod
    def _walk(arg: TensorArg, space: dict[str, tuple[int, int]]) -> ByteAccess:
        return byte_access(arg.device_coordinates, arg.device_size, arg.device_dtype.elems_per_stick(), space)

    def add(self, text: str) -> None:
        self.text += [f"    {line}" for line in text.split("\n")]

    def lines(self) -> list[str]:
        grid = prod(loop.cores for loop in self.loops)
        given = ", ".join([*(f"%arg{i}: index" for i in range(self.arguments)), "%pool: index", *self._scalars()])
        loops = [[loop.size, loop.cores, len(loop.steps)] for loop in self.loops]
        source = json.dumps(self.spec.op_info.get("source", ""))
        head = (
            f"  func.func @f{self.index}_{self.spec.op}({given}) attributes {{grid = [{grid}], ktdp.loops = {loops}, "
        )
        self._places()
        for i in range(len(self.spec.args)):
            self._view(i)
        *inputs, output = range(len(self.spec.args))
        for i in inputs:
            self.add(f"%t{i} = ktdp.load %a{i} : {self._access(i)} -> {self._tile(i)}")
        if OPS[self.spec.op].kind == "matmul":
            self._product()
        elif self.spec.is_reduction:
            self._reduction()
        else:
            self._pointwise()
        self.add(f"ktdp.store %result, %a{output} : {self._tile(output)}, {self._access(output)}\nreturn")
        return [f"{head}ktdp.source = {source}}} {{", *self.text, "  }"]

    def _scalars(self) -> list[str]:
        """Numbers that are known at launch, as arguments: as reals or integers, as the op computes with them."""
        integers, found = integer_constants(self.spec), {}
        for position, value in constants_of(self.spec).items():
            if is_runtime_scalar(value):
                of = "i64" if position in integers else "f32"
                found[f"%scalar{str(value)[1:]}_{of}: {of}"] = True
        return list(found)

    def _places(self) -> None:
        """Where each loop begins for this core; cores that share the last loop are neighbours."""
        self.add("%zero = arith.constant 0 : index\n%id = ktdp.get_compute_tile_id : index")
        inner = prod(loop.cores for loop in self.loops)
        for i, loop in enumerate(self.loops):
            if loop.cores == 1:
                continue
            inner //= loop.cores
            self.add(f"%inner{i} = arith.constant {inner} : index\n%outer{i} = arith.divui %id, %inner{i} : index")
            self.add(
                f"%cores{i} = arith.constant {loop.cores} : index\n%slice{i} = arith.remui %outer{i}, %cores{i} : index"
            )
            self.add(f"%step{i} = arith.constant {loop.points // loop.steps[0]} : index")
            self.add(f"%begin{i} = arith.muli %slice{i}, %step{i} : index")

    def _dimensions(self, position: int) -> list[tuple[int, int, int, int]]:
        """(loop, size, stride in elements, size of a core's part) of each dimension of the view of a tensor."""
        arg, walk = self.spec.args[position], self.walks[position]
        width, elements = BYTES[TYPES[arg.device_dtype.name]], arg.device_dtype.elems_per_stick()
        found = []
        for i in self._kept(position):
            loop = self.loops[i]
            stride = walk.strides.get(loop.name, 0)
            for step, size, own in zip(loop.steps, loop.sizes, loop.own_sizes, strict=True):
                if walk.stick != loop.name:
                    found.append((i, size, stride * step // width, own))
                else:
                    found.append((i, size, step // elements * stride // width if step >= elements else step, own))
        return found

    def _kept(self, position: int) -> list[int]:
        """The loops of a tensor's tile: what is folded, and what a factor lacks, is not in it."""
        row, rank = OPS[self.spec.op], len(self.loops)
        if row.kind == "matmul":
            left_out = {0: rank - 2, 1: rank - 3, 2: rank - 1}[position]
            return [i for i in range(rank) if i != left_out]
        folded = folded_symbols(self.spec) if position == len(self.spec.args) - 1 else []
        return [i for i, loop in enumerate(self.loops) if loop.name not in folded]

    def _view(self, position: int) -> None:
        arg, walk = self.spec.args[position], self.walks[position]
        of, lx = TYPES[arg.device_dtype.name], arg.allocation.get("lx")
        dimensions = self._dimensions(position)
        sizes = [own if lx is not None else size for _, size, _, own in dimensions]
        offset = walk.offset + (lx or 0) + (arg.allocation.get("pool", 0) if arg.arg_index < 0 else 0)
        base = f"%offset{position}"
        self.add(f"{base} = arith.constant {offset // BYTES[of]} : index")
        if lx is None:
            source = f"%arg{arg.arg_index}" if arg.arg_index >= 0 else "%pool"
            self.add(f"%base{position} = arith.addi {source}, {base} : index")
            base = f"%base{position}"
        stick = next((i for i, loop in enumerate(self.loops) if loop.name == walk.stick), -1)
        space = "#ktdp.spyre_memory_space<HBM>" if lx is None else "#ktdp.spyre_memory_space<LX>"
        shape = "x".join(map(str, sizes)) + "x" if sizes else ""
        strides = [stride for _, _, stride, _ in dimensions]
        self.add(
            f"%v{position} = ktdp.construct_memory_view {base}, sizes: {sizes}, strides: {strides} {{\n"
            f"  coordinate_set = {self._set(position, lx is not None)}, memory_space = {space}, stick_loop = {stick}\n"
            f"}} : memref<{shape}{of}>"
        )
        first = [
            f"%begin{i}" if self._begins(dimensions, d) and lx is None else "%zero"
            for d, (i, *_) in enumerate(dimensions)
        ]
        own = [n for *_, n in dimensions]
        rows = ", ".join(f"d{d} >= 0, -d{d} + {n - 1} >= 0" for d, n in enumerate(own))
        names = ", ".join(f"d{d}" for d in range(len(own)))
        self.add(
            f"%a{position} = ktdp.construct_access_tile %v{position}[{', '.join(first)}] {{\n"
            f"  access_tile_set = affine_set<({names}) : ({rows})>\n"
            f"}} : memref<{shape}{of}> -> {self._access(position)}"
        )

    def _begins(self, dimensions: list[tuple[int, int, int, int]], at: int) -> bool:
        """Whether a dimension is the outermost one of a loop that cores share."""
        loop = dimensions[at][0]
        return self.loops[loop].cores > 1 and (at == 0 or dimensions[at - 1][0] != loop)

    def _set(self, position: int, local: bool) -> str:
        dimensions = self._dimensions(position)
        rows, d = [], 0
        for i in self._kept(position):
            loop = self.loops[i]
            for size in loop.own_sizes if local else loop.sizes:
                rows.append(f"d{d} >= 0, -d{d} + {size - 1} >= 0")
                d += 1
            if loop.size % loop.steps[0] and (not local or loop.cores == 1):
                terms = " - ".join(f"d{d - len(loop.steps) + k} * {step}" for k, step in enumerate(loop.steps))
                rows.append(f"{loop.size - 1} - {terms} >= 0")
        names = ", ".join(f"d{d}" for d in range(len(dimensions)))
        return f"affine_set<({names}) : ({', '.join(rows)})>"

    def _own(self, position: int) -> str:
        return "".join(f"{n}x" for *_, n in self._dimensions(position))

    def _access(self, position: int) -> str:
        return f"!ktdp.access_tile<{self._own(position)}index>"

    def _tile(self, position: int, of: str = "") -> str:
        return f"tensor<{self._own(position)}{of or TYPES[self.spec.args[position].device_dtype.name]}>"

    def _maps(self) -> str:
        """The loops of each tensor, over all dimensions of the space."""
        dims: list[tuple[int, int]] = [(i, k) for i, loop in enumerate(self.loops) for k in range(len(loop.steps))]
        names = ", ".join(f"d{d}" for d in range(len(dims)))
        maps = []
        for position in range(len(self.spec.args)):
            kept = self._kept(position)
            maps.append(
                f"affine_map<({names}) -> ({', '.join(f'd{d}' for d, (i, _) in enumerate(dims) if i in kept)})>"
            )
        return f"[{', '.join(maps)}]"

    def _iterators(self) -> str:
        last = len(self.spec.args) - 1
        kept = self._kept(last)
        kinds = [("parallel" if i in kept else "reduction") for i, loop in enumerate(self.loops) for _ in loop.steps]
        return json.dumps(kinds)

    def _nest(self, inputs: str, out: str, result: str, of: str, body: str, facts: str) -> None:
        self.add(
            f"%{result} = linalg.generic {{indexing_maps = {self._maps()}, iterator_types = {self._iterators()}}}\n"
            f"    {inputs}outs({out}) attrs = {{{facts}}} {{\n{body}\n}} -> {of}"
        )

    def _pointwise(self) -> None:
        spec, last = self.spec, len(self.spec.args) - 1
        values, integers = constants_of(spec), integer_constants(spec)
        out, out_type = self._tile(last), TYPES[spec.args[-1].device_dtype.name]
        count = len(spec.args) - 1 + len(values)
        tensors = iter(range(last))
        operands, types, constants = [], [], []
        for position in range(count):
            if position in values:
                of = "i64" if position in integers else "f32"
                number = values[position]
                types.append(of)
                if is_runtime_scalar(number):
                    operands.append(f"%scalar{str(number)[1:]}_{of}")
                    continue
                constants.append(f"  %k{position} = arith.constant {_number(number, of)} : {of}")
                operands.append(f"%k{position}")
            else:
                at = next(tensors)
                operands.append(f"%e{at}")
                types.append(TYPES[spec.args[at].device_dtype.name])
        parameters = list(spec.op_info.get("parameters", ()))
        facts = f" {{parameters = {json.dumps([float(p) for p in parameters])}}}" if parameters else ""
        arguments = ", ".join(f"%e{i}: {TYPES[arg.device_dtype.name]}" for i, arg in enumerate(spec.args))
        signature = f"{', '.join(types)} -> {out_type}"
        body = "\n".join(
            [
                f"^bb0({arguments}):",
                *constants,
                f"  %r = spyreop.{spec.op} {', '.join(operands)}{facts} : {signature}",
                f"  linalg.yield %r : {out_type}",
            ]
        )
        self.add(f"%start = tensor.empty() : {out}")
        inputs = ", ".join(f"%t{i}" for i in range(last))
        kinds = ", ".join(self._tile(i) for i in range(last))
        self._nest(f"ins({inputs} : {kinds}) " if last else "", f"%start : {out}", "result", out, body, self._facts())

    def _facts(self) -> str:
        checked = ", checked" if self.spec.op_info.get("checked", False) else ""
        parameters = self.spec.op_info.get("parameters", ())
        given = f", parameters = {[float(p) for p in parameters]}" if parameters else ""
        return f"spyre_op = {json.dumps(self.spec.op)}{given}{checked}"

    def _reduction(self) -> None:
        spec, row = self.spec, OPS[self.spec.op]
        source, out = TYPES[spec.args[0].device_dtype.name], TYPES[spec.args[1].device_dtype.name]
        wide = self._tile(1, "f32")
        assert row.start is not None
        self.add(f"%first = arith.constant {_number(row.start, 'f32')} : f32\n%start = tensor.splat %first : {wide}")
        widened = "  %w = arith.extf %e : f16 to f32\n" if source == "f16" else ""
        name = "%w" if widened else "%e"
        body = (
            f"^bb0(%e: {source}, %sofar: f32):\n{widened}  %next = {_FOLDS[spec.op]} %sofar, {name} : f32\n"
            "  linalg.yield %next : f32"
        )
        self._nest(f"ins(%t0 : {self._tile(0)}) ", f"%start : {wide}", "folded", wide, body, self._facts())
        value = "%folded"
        if factors := spec.op_info.get("parameters", ()):
            self.add(
                f"%factor = arith.constant {_number(factors[0], 'f32')} : f32\n%factors = tensor.splat %factor : {wide}"
            )
            self.add(f"%scaled = arith.mulf %folded, %factors : {wide}")
            value = "%scaled"
        self._round(value, wide, self._tile(1), out)

    def _product(self) -> None:
        out = TYPES[self.spec.args[2].device_dtype.name]
        wide = self._tile(2, "f32")
        types = [TYPES[arg.device_dtype.name] for arg in self.spec.args[:2]]
        names, widened = [], []
        for i, of in enumerate(types):
            names.append(f"%w{i}" if of == "f16" else f"%e{i}")
            if of == "f16":
                widened.append(f"  %w{i} = arith.extf %e{i} : f16 to f32\n")
        body = (
            f"^bb0(%e0: {types[0]}, %e1: {types[1]}, %sum: f32):\n{''.join(widened)}"
            f"  %p = arith.mulf {names[0]}, {names[1]} : f32\n  %next = arith.addf %sum, %p : f32\n"
            "  linalg.yield %next : f32"
        )
        self.add(f"%first = arith.constant 0.0 : f32\n%start = tensor.splat %first : {wide}")
        inputs = f"ins(%t0, %t1 : {self._tile(0)}, {self._tile(1)}) "
        self._nest(inputs, f"%start : {wide}", "product", wide, body, self._facts())
        self._round("%product", wide, self._tile(2), out)

    def _round(self, value: str, wide: str, tile: str, out: str) -> None:
        if out == "f32":
            self.add(f"%one = arith.constant 1.0 : f32\n%ones = tensor.splat %one : {wide}")
            self.add(f"%result = arith.mulf {value}, %ones : {wide}")
        else:
            self.add(f"%result = arith.truncf {value} : {wide} to {tile}")


def _number(value: Any, of: str) -> str:
    """As the op computes with it: fp32 or int64."""
    return str(int(value)) if of == "i64" else float_text(ctypes.c_float(value).value, F32)
