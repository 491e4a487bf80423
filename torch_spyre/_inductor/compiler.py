"""From a kernel in loop IR to the description of a card program: the pipeline, the emitter, the back end."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache

from .. import _C
from ..backend import compile_bundle
from ..backend.ktir.kernels import compile_module
from ..card import description
from ..compile_records import timed
from ..failures import during, note
from ..ir import bundle, provenance
from ..ir.ktir import emit as ktir
from ..ir.op_spec import OpSpec, verify_all
from ..ir.signature import Argument
from ..kernel_types import CompiledDescription, KernelDescription, LayoutDescription, Provenance
from ..logging import folder_of, frontend_only, log_pass, save_artifacts
from . import config, pipeline
from .errors import FrontendOnly, Unsupported
from .layout.device_ir import Plan
from .loop_ir import Kernel
from .planning.describe_plan import describe_plan


def compile_kernel(kernel: Kernel, signature: tuple[Argument, ...]) -> CompiledDescription:
    """Compiles a kernel for arguments with this signature. The passes change the kernel itself.

    Ops of a backward graph have the hints of their forward ops. If a pass refuses these, the kernel is compiled without
    hints.
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
    """Pauses the garbage collector: the passes make many objects and almost no cycles. Searching for cycles, among all
    objects of PyTorch as well, would take a tenth of the compile time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compiled(kernel: Kernel, signature: tuple[Argument, ...]) -> CompiledDescription:
    inputs, outputs = kernel.inputs(), kernel.outputs()
    with during("compile_frontend", name=kernel.name), folder_of(kernel.name):
        log_pass("lowered", kernel)
        with timed("stage:passes"):
            plan = pipeline.run(_unplanned(kernel, signature))
        note(op_specs=lambda: [str(spec) for spec in plan.specs])
        with timed("stage:emit"):
            if not config.verify:  # else the pipeline has done that
                verify_all(plan.specs)
            as_ktir = _as_ktir(plan) if config.ktir else ""
            chain, texts = ("", [as_ktir]) if as_ktir else bundle.emit(plan.kernel.name, plan.specs)
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
        if as_ktir:
            code = compile_module(kernel.name, as_ktir, sizes, plan.pool_bytes)
        else:
            code = compile_bundle(kernel.name, texts, sizes, plan.pool_bytes, chain)
    found = _identify(code, plan)
    return {
        **code,
        "provenance": found,
        "bound_us": plan.bound_us,
        "planner": plan.planner,
        "plan": describe_plan(plan),
        "inputs": [(list(buffer.size), list(buffer.stride)) for buffer in inputs],
        "outputs": [
            {
                "size": list(buffer.size),
                "stride": list(buffer.stride),
                "dtype": str(buffer.dtype).removeprefix("torch."),
                "layout": _layout_fields(plan.layouts[buffer.name]),
            }
            for buffer in outputs
        ],
    }


def _as_ktir(plan: Plan) -> str:
    """The kernel as KTIR, or nothing, with a warning, where an op of it is not emitted as KTIR yet."""
    for spec in plan.specs:
        if why := ktir.why_not(spec):
            _warn(why)
            return ""
    return ktir.emit(plan.kernel.name, [spec for spec in plan.specs if isinstance(spec, OpSpec)])


class KtirWarning(UserWarning):
    """A kernel that was asked for as KTIR goes to the card as SuperDSC."""


@cache
def _warn(why: str) -> None:
    message = f"TORCH_SPYRE_KTIR=1: {why} is not emitted as KTIR yet; kernels with it go to the card as SuperDSC"
    warnings.warn(message, KtirWarning, stacklevel=2)


def _identify(code: KernelDescription, plan: Plan) -> Provenance:
    """Names the kernel after its OpSpecs, and each of its steps after an op of the program. Returns the OpSpecs."""
    specs = list(provenance.flat(plan.specs))
    key = provenance.key_of(plan.specs)
    code["name"] = provenance.kernel_name((spec.op_info["aten"] for spec in specs), key)
    steps = [step for job in code["steps"] if job["type"] == "Compute" for step in job["program"]["steps"]]
    for step, number in zip(steps, provenance.execution_order(plan.specs), strict=True):
        step["spec"], step["aten"] = number, specs[number].op_info["aten"]
    return {"key": key, "specs": [str(spec) for spec in specs]}


def _unplanned(kernel: Kernel, signature: tuple[Argument, ...]) -> Plan:
    """The plan that the pipeline starts from: the kernel, layouts of its arguments, cores and span of the card."""
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


def _layout_fields(layout: _C.SpyreTensorLayout) -> LayoutDescription:
    return {
        "device_size": list(layout.device_size),
        "stride_map": list(layout.stride_map),
        "device_dtype": layout.device_dtype.name,
    }
