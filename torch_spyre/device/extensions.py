"""The changes that the device makes to PyTorch's own classes and functions, and to other packages: one list of all.

Larger ones have modules of their own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils._device

from .. import diagnostics, signals
from ..constants import DEVICE_NAME
from ..distributed import monitored
from . import dlpack, layout_arguments, module_moves, random, safetensors_support
from .import_hooks import after_import


def install() -> None:
    """Make the changes; called once, by autoload."""
    # torch.device(...) as a context compares functions with this cached set: it must know the original torch.empty.
    torch.utils._device._device_constructors()
    _change(torch.Tensor, "device_tensor_layout", lambda _: layout_arguments.device_tensor_layout)
    _change(torch.Tensor, "to", layout_arguments.to_with_layout)
    # Parameters without a shape allow only methods of this list, compared by identity.
    torch.nn.parameter.UninitializedParameter._allowed_methods.append(torch.Tensor.to)  # type: ignore[attr-defined]
    _change(torch, "empty", layout_arguments.empty_with_layout)
    torch.jit._builtins._register_builtin(torch.empty, "aten::empty")  # known to torch.jit.script by identity
    _change(torch._tensor_str, "_tensor_str", _print_host_copy)
    _change(torch.Tensor, "__dlpack_device__", dlpack.with_card_device)
    _change(torch.Tensor, "__dlpack__", dlpack.with_card_check)
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
        _change(torch.UntypedStorage, name, _not_shared)
    _change(torch.nn.Module, "_apply", module_moves.apply_keeping_parameters)
    _change(torch.amp.GradScaler, "unscale_", _unscale_on_host)
    if torch.distributed.is_available():
        barrier = monitored.of_cards(torch.distributed.monitored_barrier)
        for owner in (torch.distributed, torch.distributed.distributed_c10d):
            _change(owner, "monitored_barrier", lambda _: barrier)
        _change(torch.distributed.ProcessGroup, "monitored_barrier", monitored.of_group)
    for function in (diagnostics.capture, diagnostics.get_diagnostic_report):
        setattr(sys.modules[__package__], function.__name__, function)
    for name in ("manual_seed", "manual_seed_all"):
        if not hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(random, name))
    after_import("torch._dynamo.device_interface", _register_interface)
    after_import("torch._dynamo.trace_rules", _run_generators)
    after_import("torch._dynamo.guards", _keep_interrupts)
    after_import("torch._dynamo.backends.registry", _register_backend)
    after_import("torch._inductor.compile_fx", _install_compiler)
    after_import("torch._prims.rng_prims", _add_to_recomputation)
    after_import("torch._higher_order_ops.flex_attention", _write_out_flex_attention)
    after_import("torch.nn.attention.flex_attention", _allow_flex_attention)
    after_import("torch.distributed.tensor._random", _seed_shards)
    _change(torch.jit._trace, "_check_trace", _check_trace_on_host)
    after_import("safetensors", safetensors_support.open_to_card)
    after_import("safetensors.torch", safetensors_support.ignore_padding)
    after_import("transformers", _fix_hugging_face)
    after_import("fms.triton.pytorch_ops", _fix_fms)


def _change(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name, None)))


def _register_interface(_: ModuleType) -> None:
    """Dynamo learns of the device when it is imported: importing it here would take seconds."""
    from . import interface  # noqa: F401 - registers itself


def _run_generators(rules: ModuleType) -> None:
    """Seeds and states of generators are not traced, as on other devices."""
    rules.add(random.__name__)


def _keep_interrupts(guards: ModuleType) -> None:
    """Dynamo tries new guards from C++, which drops exceptions of Python's: a Ctrl-C there would be lost."""
    original = guards.CheckFunctionManager.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with signals.deferred():
            original(self, *args, **kwargs)

    guards.CheckFunctionManager.__init__ = init


def _fix_fms(ops: ModuleType) -> None:
    from ..models import fms

    fms.install(ops)


def _register_backend(registry: ModuleType) -> None:
    """``torch.compile(backend="spyre")``; Inductor itself is imported by the first compile."""

    def spyre(*args: Any, **kwargs: Any) -> Any:
        from .._inductor import inductor_hooks

        return inductor_hooks.spyre(*args, **kwargs)

    registry.register_backend(spyre, name=DEVICE_NAME)


def _install_compiler(compile_fx: ModuleType) -> None:
    from .._inductor import inductor_hooks

    inductor_hooks.install(compile_fx)


def _not_shared(original: Any) -> Any:
    @functools.wraps(original)
    def share(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            raise RuntimeError(
                "memory of a card belongs to one process and cannot be shared: send a CPU tensor (tensor.cpu()) and "
                "move it to the card in the other process"
            )
        return original(self, *args, **kwargs)

    return share


def _print_host_copy(original: Any) -> Any:
    """Printing computes widths and digits in float64, which the card lacks: it gets a host copy."""

    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    return tensor_str


def _unscale_on_host(original: Any) -> Any:
    """GradScaler takes the reciprocal of its scale in float64, which the card lacks: the host does it."""

    @functools.wraps(original)
    def unscale_(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        scale = self._scale
        if scale is None or scale.device.type != DEVICE_NAME:
            return original(self, optimizer)
        self._scale = scale.cpu()
        try:
            return original(self, optimizer)
        finally:
            self._scale = scale

    return unscale_


def _write_out_flex_attention(flex: ModuleType) -> None:
    """The card has no kernel that takes a user's function of a score: FlexAttention is composed of other ops, before
    autograd and the compiler see it."""
    original = flex.FlexAttentionHOP.__call__

    @functools.wraps(original)
    def call(self: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.device.type != DEVICE_NAME:
            return original(self, query, *args, **kwargs)
        return flex.sdpa_dense(query, *args, **kwargs)

    flex.FlexAttentionHOP.__call__ = call


def _allow_flex_attention(flex: ModuleType) -> None:
    original = flex._validate_device

    @functools.wraps(original)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != DEVICE_NAME:
            original(query, key, value)

    flex._validate_device = validate_device  # type: ignore[attr-defined]


def _check_trace_on_host(original: Any) -> Any:
    """torch.jit.trace compares results in float64, which the card lacks: the host converts them instead."""
    double = torch.Tensor.double

    def double_on_host(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return double(self.cpu() if self.device.type == DEVICE_NAME else self, **kwargs)

    @functools.wraps(original)
    def check_trace(*args: Any, **kwargs: Any) -> Any:
        torch.Tensor.double = double_on_host  # type: ignore[assignment, method-assign]
        try:
            return original(*args, **kwargs)
        finally:
            torch.Tensor.double = double  # type: ignore[method-assign]

    return check_trace


def _add_to_recomputation(rng_prims: ModuleType) -> None:
    from . import recomputation

    recomputation.add_card(rng_prims)


def _seed_shards(tracker: ModuleType) -> None:
    from ..distributed import dtensor_random

    dtensor_random.seed_shards(tracker)


def _fix_hugging_face(_: ModuleType) -> None:
    from ..models.hugging_face.fixes import FIXES

    for name, fix in FIXES.items():
        after_import(name, fix)
