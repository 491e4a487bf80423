"""From loop IR to a card program: the passes in order, then the emitters."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

from .. import _C
from ..backend import compile_bundle
from ..card import description
from ..execution.signature import Argument
from ..ir import bundle
from ..ir.op_spec import verify_all
from . import config
from .errors import Unsupported
from .logging import log_pass, save_artifacts
from .loop_ir import Kernel
from .passes.build_specs import build_specs
from .passes.choose_layouts import choose_layouts, may_gain
from .passes.coarse_tile import coarse_tile
from .passes.dead_code import dead_code
from .passes.divide_work import divide_work
from .passes.elide_copies import elide_copies
from .passes.fold_order import fold_orders
from .passes.forward_copies import forward_copies
from .passes.insert_restickify import insert_restickify
from .passes.lift_ops import lift_ops
from .passes.name_dims import name_dims
from .passes.plan import Plan
from .passes.plan_memory import plan_memory
from .passes.plan_scratchpad import plan_scratchpad
from .passes.propagate_layouts import propagate_layouts
from .passes.resolve_aliases import resolve_aliases
from .passes.separate_overlaps import separate_overlaps
from .passes.tile_chains import tile_chains
from .passes.tile_products import tile_products


def compile_kernel(kernel: Kernel, signature: tuple[Argument, ...]) -> dict[str, Any]:
    """The description of a kernel for ``_C.prepare_kernel``, the sizes and strides of its inputs ("inputs"),
    and how its outputs are to be allocated ("outputs").

    The passes work on the kernel itself: it is used up. Gradients have the hints of what they are gradients of: where a
    pass refuses these, the kernel is compiled without.
    """
    with _collector_paused():
        if not any(op.hints.get("backward") for op in kernel.ops):
            return _compiled(kernel, signature)
        unhinted = deepcopy(kernel)
        for op in unhinted.ops:
            op.hints = {}
        try:
            return _compiled(kernel, signature)
        except Unsupported:
            return _compiled(unhinted, signature)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """The passes make much that stays until they end, and next to no cycles: looking for these, through all that
    PyTorch holds too, would take a tenth of their time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compiled(kernel: Kernel, signature: tuple[Argument, ...]) -> dict[str, Any]:
    inputs, outputs = kernel.inputs(), kernel.outputs()
    names = [buffer.name for buffer in inputs]
    offsets = {name: argument.offset for name, argument in zip(names, signature, strict=True)}
    storages = {name: names[argument.storage] for name, argument in zip(names, signature, strict=True)}
    arguments = {buffer.name: i for i, buffer in enumerate([*inputs, *outputs])}

    log_pass("lowered", kernel)
    resolve_aliases(kernel, offsets, storages)
    dead_code(kernel)
    together = config.planning == "together"
    elide_copies(kernel, into_arguments_only=not together)
    if together:
        forward_copies(kernel)
    separate_overlaps(kernel)
    log_pass("mutations resolved", kernel)
    name_dims(kernel)
    coarse_tile(kernel)
    layouts = {name: _C.canonical_layout(argument.layout) for name, argument in zip(names, signature, strict=True)}
    cores = min(config.sencores, _C.card_cores(-1))
    plan = _divided(Plan(kernel, offsets, layouts, cores, int(description.constants()["span_bytes"])))
    kernel = plan.kernel
    log_pass("restickified", kernel)
    if config.lx_planning:
        plan_scratchpad(plan)
    plan_memory(plan)
    specs = build_specs(plan, arguments)
    log_pass("planned", *specs)
    verify_all(specs)

    chain, texts = bundle.emit(kernel.name, specs)
    save_artifacts(kernel.name, kernel, specs, texts, chain)
    sizes = [layouts[buffer.name].device_bytes() for buffer in inputs]
    sizes += [plan.layouts[buffer.name].device_bytes() for buffer in outputs]
    code = compile_bundle(kernel.name, texts, sizes, plan.pool_bytes, chain)
    code["bound_us"] = plan.bound_us
    code["planner"] = plan.planner
    code["inputs"] = [(list(buffer.size), list(buffer.stride)) for buffer in inputs]
    code["outputs"] = [
        {
            "size": list(buffer.size),
            "stride": list(buffer.stride),
            "dtype": str(buffer.dtype).removeprefix("torch."),
            "layout": _layout_fields(plan.layouts[buffer.name]),
        }
        for buffer in outputs
    ]
    return code


def _divided(plan: Plan) -> Plan:
    """With tiles around chains where they pay. How values lie is settled behind that: tiles that cut sticks are given
    up, and so are those that would change the order of a sum."""
    whole = _copy(plan)
    _settle_layouts(whole)
    if config.planning == "together" and config.lx_planning and tile_chains(plan.kernel, plan):
        try:
            _settle_layouts(plan)
            if fold_orders(plan) == fold_orders(whole):
                return _fastest(plan)
        except Unsupported:
            pass
    return _fastest(whole)


def _copy(plan: Plan) -> Plan:
    kernel = replace(plan.kernel, buffers=dict(plan.kernel.buffers), ops=list(plan.kernel.ops))
    return Plan(kernel, plan.offsets, dict(plan.layouts), plan.cores, plan.span)


def _settle_layouts(plan: Plan) -> None:
    together = config.planning == "together"
    if together and config.lx_planning:
        tile_products(plan.kernel, plan.cores)
    propagate_layouts(plan, by_default=not together)


def _fastest(plan: Plan) -> Plan:
    """In the layouts of the rules, or in others where that is faster over the whole kernel."""
    log_pass("tiled", plan.kernel)
    as_it_is = _copy(plan)
    insert_restickify(plan)
    plans = [plan]
    if config.planning == "together" and may_gain(as_it_is, plan):
        plans += choose_layouts(as_it_is)
    for each in plans[1:]:
        insert_restickify(each)
    possible, reasons = [], []
    for each in plans:
        try:
            lift_ops(each)
            divide_work(each)
            possible.append(each)
        except Unsupported as reason:  # one core would reach too far: in other layouts it may not
            reasons.append(reason)
    if not possible:
        raise reasons[0]
    return min(possible, key=lambda each: each.planned_us)


def _layout_fields(layout: _C.SpyreTensorLayout) -> dict[str, Any]:
    return {
        "device_size": list(layout.device_size),
        "stride_map": list(layout.stride_map),
        "device_dtype": layout.device_dtype.name,
    }
