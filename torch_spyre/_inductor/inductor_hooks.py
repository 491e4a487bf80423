"""The card as a device of Inductor, and the place where graphs with card tensors enter this compiler."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import DeviceOpOverrides, register_backend_for_device, register_device_op_overrides
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_custom_graph_passes
from torch._inductor.fx_passes import post_grad
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from ..caching.version import compiler_version
from ..compile_records import timed
from ..constants import DEVICE_NAME
from ..failures import during
from . import config
from .errors import Unsupported
from .fx import guards
from .fx.decompositions.table import decompositions as card_decompositions
from .fx.hints import gather_hints, mark_backward
from .fx.inductor_lowerings import warn_of_unused_lowerings
from .fx.keep_storages import KeepStorages
from .fx.kernel_call import GeneratedCode
from .fx.lower import source_of
from .fx.name_lines import lines_of, name_lines
from .fx.specialize import DynamicCode, is_symbolic
from .fx.views_of_inputs import note_aliased, views_of_inputs
from .propagate_named_dims import give_names

# What Inductor does differently for graphs with card tensors.
CONFIG = {
    "always_keep_tensor_constants": True,  # small ones would become loops
    "cpp_wrapper": False,
    "fallback_random": True,  # numbers come from the device's generator, as in eager
    "freezing": False,
    "fx_wrapper": False,
    "graph_partition": False,
    "triton.cudagraphs": False,
}

_EARLY = "joint_custom_pre_pass"  # Inductor's hook in front of its own passes

# What the code of the current graph depends on besides what Inductor's caches see: layouts of inputs, hints, and lines
# of the program, which kernels name in errors, profiles and reports.
_unseen: ContextVar[tuple[str, ...]] = ContextVar("unseen", default=())


def install(compile_fx: ModuleType) -> None:
    """Make ``torch._inductor.compile_fx`` hand graphs with card tensors to this compiler."""
    register_backend_for_device(
        DEVICE_NAME,
        Scheduling,
        GeneratedCode,
        device_custom_pass=Partition(),
        device_custom_config=config,  # type: ignore[arg-type]
    )
    register_device_op_overrides(DEVICE_NAME, SpyreOpOverrides())
    post_grad.get_all_devices = _with_devices_inside(post_grad.get_all_devices)  # type: ignore[assignment]
    compile_fx.compile_fx = _compile_here(compile_fx.compile_fx)  # type: ignore[attr-defined]


def _with_devices_inside(original: Callable[[GraphModule], Any]) -> Callable[[GraphModule], Any]:
    """Adds the devices of inner nodes: Inductor looks at inputs and outputs, and the card may be used in between."""

    @functools.wraps(original)
    def get_all_devices(gm: GraphModule) -> Any:
        inside = (node.meta.get("val") for node in gm.graph.nodes)
        return original(gm) | {val.device for val in inside if isinstance(val, torch.Tensor) and _is_card(val)}

    return get_all_devices


def spyre(graph: GraphModule, inputs: Sequence[Any], mode: str | None = None, options: Any = None) -> Any:
    """``torch.compile(backend="spyre")``: Inductor, whose graphs with card tensors come here anyway."""
    return torch._TorchCompileInductorWrapper(mode, options, None)(graph, inputs)


def _compile_here(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_fx(
        model_: GraphModule,
        example_inputs_: Sequence[Any],
        inner_compile: Callable[..., Any] | None = None,
        config_patches: dict[str, Any] | None = None,
        decompositions: dict[Any, Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        inner_compile = inner_compile or torch._inductor.compile_fx.compile_fx_inner
        if not _on_card(model_, example_inputs_):
            return original(model_, example_inputs_, inner_compile, config_patches, decompositions, **kwargs)
        if V.aot_compilation:
            raise Unsupported(
                "AOTInductor makes a C++ library of a program, and kernels of the card are launched from Python: "
                "save the program with torch.export.save, and compile what torch.export.load(...).module() gives"
            )
        patches = {**(config_patches or {}), **CONFIG}
        theirs = get_custom_graph_passes(patches.get(_EARLY, inductor_config.joint_custom_pre_pass))
        patches[_EARLY] = (*theirs, KeepStorages())
        table = card_decompositions() if decompositions is None else {**card_decompositions(), **decompositions}
        hints = gather_hints(model_)
        names = guards.guard_names(model_) if hints else []
        unseen = (*guards.guard_layouts(model_), *map(str, hints), *map(str, names), _lines_key(model_))

        # Backward graphs are compiled after this call has returned: they bring the settings with them.
        def inner(graph: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
            is_backward = kwargs.get("is_backward", False)
            aliased = () if is_backward else note_aliased(graph.graph)
            if is_backward:
                mark_backward(graph)
            else:
                give_names(graph.graph, names)

            def compile_static(graph: GraphModule, inputs: Sequence[Any]) -> Any:
                warn_of_unused_lowerings(graph.graph)
                with inductor_config.patch(patches), _keyed_on((*unseen, f"{aliased} are views of inputs")):
                    lines = lines_of(graph.graph)
                    code = inner_compile(graph, inputs, **kwargs)
                    name_lines(code, lines)
                    return code

            if any(map(is_symbolic, inputs)):
                return DynamicCode(graph, inputs, is_backward, compile_static)
            return compile_static(graph, inputs)

        with during("compile_frontend"), timed("pipeline:graph"), inductor_config.patch(patches), _keyed_on(unseen):
            return original(model_, example_inputs_, inner, None, table, **kwargs)

    return compile_fx


def _is_card(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_card, value))
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME


def _on_card(model: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph takes, holds or makes card tensors."""
    if _is_card(inputs):
        return True
    if not isinstance(model, torch.nn.Module):
        return False
    graphs = (module.graph for module in model.modules() if isinstance(module, GraphModule))
    return any(_is_card(tensor) for tensor in (*model.parameters(), *model.buffers())) or any(
        _is_card(node.meta.get("val", node.meta.get("example_value"))) for graph in graphs for node in graph.nodes
    )


def _lines_key(model: torch.nn.Module) -> str:
    """A hash of the lines that a graph comes from."""
    graphs = (module.graph for module in model.modules() if isinstance(module, GraphModule))
    lines = "\n".join(source_of(node) for graph in graphs for node in graph.nodes)
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def _keyed_on(unseen: tuple[str, ...]) -> Iterator[None]:
    token = _unseen.set(unseen)
    try:
        yield
    finally:
        _unseen.reset(token)


class Partition(CustomGraphModulePass):
    """Inductor's hook at the end of its own passes: from here on nothing of the card is left to Inductor."""

    def __call__(self, gm: GraphModule) -> None:
        from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

        from .fx.join_launches import join_launches
        from .fx.partition import partition
        from .fx.schedule_collectives import schedule_collectives

        views_of_inputs(gm.graph)
        decompose_auto_functionalized(gm.graph)  # Inductor would do it later, with clones that are loops
        schedule_collectives(gm.graph)
        with timed("stage:partition"):
            partition(gm)
        join_launches(gm)

    def uuid(self) -> tuple[str, ...]:
        return (compiler_version(), *_unseen.get())


class Scheduling(BaseScheduling):
    """Emits calls of kernels; Inductor generates no loops for the card."""

    def group_fn(self, sizes: Any) -> tuple[Any, ...]:
        return tuple(tuple(size) for size in sizes)

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        return False

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        return False

    def codegen_node(self, node: Any) -> None:
        origins = ", ".join(sorted({str(origin.target) for each in node.get_nodes() for origin in each.node.origins}))
        raise Unsupported(
            f"{node.get_name()} ({origins}) was left to Inductor's own loops, which the card does not run: "
            "torch_spyre.compiler.register_lowering says what an op is on the card"
        )

    def codegen_sync(self) -> None:
        raise Unsupported("Inductor asked for a synchronization in generated code; the card's streams keep the order")

    def flush(self) -> None:
        pass

    def ready_to_flush(self) -> bool:
        return False


class SpyreOpOverrides(DeviceOpOverrides):
    """Lines of generated code that name the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_spyre.device.interface import SpyreInterface; {name} = SpyreInterface.get_raw_stream"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"
