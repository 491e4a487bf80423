"""Planned ops as OpSpecs: everything the emitters need, and nothing of the plan's own objects."""

from __future__ import annotations

from itertools import groupby

import sympy

from ..._C import get_device_dtype
from ...ir.op_spec import IndirectAccess, LoopSpec, OpSpec, TensorArg, symbol
from ..layout.coordinates import Coordinates
from ..layout.device_ir import DeviceOp, Plan
from ..loop_ir import Access, Constant, Parameter, RuntimeScalar

_symbols = [sympy.Symbol(f"c{i}", integer=True, nonnegative=True) for i in range(32)]


def build_specs(plan: Plan) -> None:
    """Fills ``plan.specs``."""
    plan.specs = _nested([(op.loop_op.tile_loops, _spec(plan, op)) for op in plan.device_ops], 0)


def _nested(specs: list[tuple[tuple[tuple[int, int], ...], OpSpec]], depth: int) -> list[OpSpec | LoopSpec]:
    """Neighbours in the same loops share them."""
    found: list[OpSpec | LoopSpec] = []
    for loop, group in groupby(specs, key=lambda pair: pair[0][depth] if len(pair[0]) > depth else None):
        inside = list(group)
        if loop is None:
            found += [spec for _, spec in inside]
        else:
            found.append(LoopSpec(loop[1], _nested(inside, depth + 1), [_tile_symbol(depth)]))
    return found


def _tile_symbol(depth: int) -> sympy.Symbol:
    return symbol(f"t{depth}")


def _spec(plan: Plan, op: DeviceOp) -> OpSpec:
    symbols = _symbols[: len(op.counts)]
    loop_op = op.loop_op
    info: dict[str, object] = {"source": loop_op.source, "aten": loop_op.aten, "loop_op": loop_op.position}
    constants = {str(i): _number(a.value) for i, a in enumerate(op.loop_op.ins) if isinstance(a, Constant)}
    if constants:
        info["constants"] = constants
        info["formats"] = {
            str(i): get_device_dtype(a.dtype).name for i, a in enumerate(op.loop_op.ins) if isinstance(a, Constant)
        }
    if op.parameters:
        info["parameters"] = [_number(value) for value in op.parameters]
    if op.reduced:
        info["reduced"] = [str(s) for s in symbols[len(symbols) - op.reduced :]]
    if op.loop_op.checked:
        info["checked"] = True
    if op.loop_op.indirect:
        info["bounds"] = {str(i.operand): i.extent for i in op.loop_op.indirect}
    accesses = op.accesses()
    args = []
    for position, (access, operand) in enumerate(zip(accesses, op.operands, strict=True)):
        indices = [i.operand for i in op.loop_op.jumps(position, len(accesses) - 1)]
        across = op.across if position == 0 else ()
        args.append(_argument(plan, access, operand, symbols, indices, position < len(accesses) - 1, across))
    space = {s: (n, cores) for s, n, cores in zip(symbols, op.counts, op.slices, strict=True)}
    return OpSpec(op.loop_op.name, bool(op.reduced), space, args, info)


def _number(value: Parameter) -> float | str:
    return str(value) if isinstance(value, RuntimeScalar) else value


def _argument(
    plan: Plan,
    access: Access,
    operand: Coordinates,
    symbols: list[sympy.Symbol],
    indices: list[int],
    is_input: bool,
    across: tuple[int, ...],
) -> TensorArg:
    layout = plan.layouts[access.buffer]
    lane = len(layout.device_size) - 1
    elements = layout.device_size[-1]
    coordinates = []
    stick = symbols[operand.stick] if operand.stick >= 0 else None
    for dim in range(lane + 1):
        moving = [(s, row[dim]) for s, row in zip(symbols, operand.inside(across), strict=True) if row[dim]]
        coordinates.append(
            sympy.Add(operand.constant[dim], *(s * n for s, n in moving if dim != lane or s is not stick))
        )
    if stick is not None:
        coordinates[lane] = sympy.Mod(stick, elements)
        if operand.tile_dim >= 0:
            coordinates[operand.tile_dim] += sympy.floor(stick / elements)
    for depth, row in enumerate(operand.tile_steps):
        for dim, step in enumerate(row):
            coordinates[dim] += step * _tile_symbol(depth)
    for index, (dim, step, sticks) in zip(indices, operand.jumps, strict=True):
        value = IndirectAccess(sympy.Symbol(f"arg{index}"))
        if not sticks:
            coordinates[dim] += step * value
        elif step == 1:
            coordinates[lane] = sympy.Mod(value, elements)
            coordinates[operand.tile_dim] += sympy.floor(value / elements)
        else:
            coordinates[operand.tile_dim] += step // elements * value
    where, size = {}, list(layout.device_size)
    if access.buffer in plan.lx:
        # A core's part begins at 0 of its own LX.
        where["lx"], there = plan.lx[access.buffer]
        size = list(there.size)
        coordinates = [c - begin for c, begin in zip(coordinates, there.origin, strict=True)]
    elif access.buffer in plan.pool:
        where["pool"] = plan.pool[access.buffer]
    return TensorArg(
        is_input=is_input,
        arg_index=-1 if where else plan.arguments[access.buffer],
        device_dtype=layout.device_dtype,
        device_size=size,
        device_coordinates=coordinates,
        allocation=where,
        core=sympy.Add(*(s * n for s, n in zip(symbols, across, strict=True))) if across else None,
    )
