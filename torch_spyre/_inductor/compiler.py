"""From a kernel in loop IR to the description of a card program: the pipeline, the emitter, the back end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from .. import _C
from ..backend import compile_bundle
from ..card import description
from ..compile_records import timed
from ..failures import during, note
from ..ir import bundle, provenance
from ..ir.op_spec import verify_all
from ..ir.signature import Argument
from ..logging import folder_of, frontend_only, log_pass, save_artifacts
from . import config, pipeline
from .errors import FrontendOnly, Unsupported
from .layout.device_ir import Plan
from .loop_ir import Kernel
from .planning.describe_plan import describe_plan


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
    with during("compile_frontend", name=kernel.name), folder_of(kernel.name):
        log_pass("lowered", kernel)
        with timed("stage:passes"):
            plan = pipeline.run(_unplanned(kernel, signature))
        note(op_specs=lambda: [str(spec) for spec in plan.specs])
        with timed("stage:emit"):
            if not config.verify:  # else the pipeline has done that
                verify_all(plan.specs)
            chain, texts = bundle.emit(plan.kernel.name, plan.specs)
        note(superdsc=texts, bundle=chain)
        kernel = plan.kernel
        folder = save_artifacts(kernel.name, kernel, plan.specs, texts, chain)
    if frontend_only():
        raise FrontendOnly(
            f"kernel {kernel.name} is planned and was not launched, since TORCH_SPYRE_FRONTEND_ONLY=1: "
            f"its {len(texts)} SuperDSC are in {folder}"
        )
    sizes = [plan.layouts[buffer.name].device_bytes() for buffer in (*inputs, *outputs)]
    with during("compile_backend"), timed("stage:backend"):
        code = compile_bundle(kernel.name, texts, sizes, plan.pool_bytes, chain)
    _identify(code, plan)
    code["bound_us"] = plan.bound_us
    code["planner"] = plan.planner
    code["plan"] = describe_plan(plan)
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


def _identify(code: dict[str, Any], plan: Plan) -> None:
    """Names the kernel by its OpSpecs, which it keeps, and its steps by the ops of the program."""
    specs = list(provenance.flat(plan.specs))
    key = provenance.key_of(plan.specs)
    code["name"] = provenance.kernel_name((spec.op_info["aten"] for spec in specs), key)
    code["provenance"] = {"key": key, "specs": [str(spec) for spec in specs]}
    for step in code["steps"][0]["program"]["steps"]:
        step["aten"] = specs[step["spec"]].op_info["aten"]


def _unplanned(kernel: Kernel, signature: tuple[Argument, ...]) -> Plan:
    """The plan that the pipeline begins with: the kernel, how its arguments lie, and what the card has."""
    names = [buffer.name for buffer in kernel.inputs()]
    given = dict(zip(names, signature, strict=True))
    return Plan(
        kernel,
        offsets={name: argument.offset for name, argument in given.items()},
        layouts={name: _C.canonical_layout(argument.layout) for name, argument in given.items()},
        cores=min(config.sencores, _C.card_cores(-1)),
        span=int(description.constants()["span_bytes"]),
        storages={name: names[argument.storage] for name, argument in given.items()},
        arguments={buffer.name: i for i, buffer in enumerate([*kernel.inputs(), *kernel.outputs()])},
    )


def _layout_fields(layout: _C.SpyreTensorLayout) -> dict[str, Any]:
    return {
        "device_size": list(layout.device_size),
        "stride_map": list(layout.stride_map),
        "device_dtype": layout.device_dtype.name,
    }
