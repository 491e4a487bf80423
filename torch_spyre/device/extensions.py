"""What the device adds to PyTorch's own classes and functions, all in one place."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.utils._device
import torch.utils.dlpack

from .. import _C
from ..constants import DEVICE_NAME
from . import random


def install() -> None:
    """Add them; called once, by autoload."""
    # torch.device(...) as a context compares functions with this cached set: it must know the original torch.empty.
    torch.utils._device._device_constructors()
    _change(torch.Tensor, "device_tensor_layout", lambda _: device_tensor_layout)
    _change(torch.Tensor, "to", _to_with_layout)
    # Parameters without a shape yet know by identity what may be done to them.
    torch.nn.parameter.UninitializedParameter._allowed_methods.append(torch.Tensor.to)  # type: ignore[attr-defined]
    _change(torch, "empty", _empty_with_layout)
    torch.jit._builtins._register_builtin(torch.empty, "aten::empty")  # known to torch.jit.script by identity
    _change(torch._tensor_str, "_tensor_str", _print_host_copy)
    _change(torch.Tensor, "__dlpack_device__", _dlpack_device)
    _change(torch.Tensor, "__dlpack__", _dlpack)
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
        _change(torch.UntypedStorage, name, _not_shared)
    _change(torch.nn.Module, "_apply", _apply_keeping_parameters)
    _change(torch.amp.GradScaler, "unscale_", _unscale_on_host)
    for name in ("manual_seed", "manual_seed_all"):
        if not hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(random, name))
    _after_import("torch._dynamo.device_interface", _register_interface)
    _after_import("torch._dynamo.trace_rules", _run_generators)
    _after_import("torch._dynamo.backends.registry", _register_backend)
    _after_import("torch._inductor.compile_fx", _install_compiler)
    _after_import("torch._prims.rng_prims", _add_to_recomputation)
    _after_import("torch._higher_order_ops.flex_attention", _write_out_flex_attention)
    _after_import("torch.nn.attention.flex_attention", _allow_flex_attention)
    _change(torch.jit._trace, "_check_trace", _check_trace_on_host)
    _after_import("safetensors", _open_safetensors_to_card)
    _after_import("safetensors.torch", _measure_for_safetensors)
    _after_import("transformers", _fix_hugging_face)
    _after_import("fms.triton.pytorch_ops", _fix_fms)


def _change(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name, None)))


def device_tensor_layout(tensor: torch.Tensor) -> _C.SpyreTensorLayout | None:
    """How the tensor's storage lies on the card; None for tensors elsewhere."""
    return _C.get_spyre_tensor_layout(tensor) if tensor.device.type == DEVICE_NAME and not _is_fake(tensor) else None


def _register_interface(_: ModuleType) -> None:
    """Dynamo learns of the device when it is imported, not before: that takes seconds."""
    from . import interface  # noqa: F401 - registers itself


def _run_generators(rules: ModuleType) -> None:
    """Seeds and states of generators are not traced, as those of other devices."""
    rules.add(random.__name__)


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


def _is_fake(tensor: torch.Tensor | None = None) -> bool:
    """Whether the tensor, or what would be made now, has no memory: fake tensors have no layout."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return True
    return tensor is not None and type(tensor).__name__ == "FakeTensor"


def _to_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layout = kwargs.pop("device_layout", None)
        if layout is None:
            return original(self, *args, **kwargs)
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if memory_format is not None:
            raise TypeError("Tensor.to(device_layout=...) does not take memory_format")
        device = device or (self.device if self.device.type == DEVICE_NAME else torch.device(DEVICE_NAME))
        dtype = dtype or self.dtype
        _check_device(device)
        if _is_fake(self):
            return original(self, device, dtype, non_blocking, True)
        there = self.device.type == DEVICE_NAME and device.index in (None, self.device.index) and self.dtype == dtype
        if there and not copy and self.is_contiguous() and _C.get_spyre_tensor_layout(self) == layout:
            return self
        return _C.empty_with_layout(list(self.size()), dtype, layout, device).copy_(self, non_blocking=non_blocking)

    return to


def _check_device(device: torch.device) -> None:
    if device.type != DEVICE_NAME:
        raise ValueError(f"device_layout describes tensors on {DEVICE_NAME}, not on {device}")


def _empty_with_layout(original: Any) -> Any:
    @functools.wraps(original)
    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
        layout = kwargs.pop("device_layout", None)
        if layout is None:
            return original(*size, **kwargs)
        device = torch.device(kwargs.pop("device", None) or DEVICE_NAME)
        dtype = kwargs.pop("dtype", None) or torch.get_default_dtype()
        requires_grad = kwargs.pop("requires_grad", False)
        shape = kwargs.pop("size", size)
        if kwargs:
            raise TypeError(f"torch.empty(device_layout=...) does not take {', '.join(kwargs)}")
        _check_device(device)
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = shape[0]
        if _is_fake():
            return original(shape, dtype=dtype, device=device, requires_grad=requires_grad)
        return _C.empty_with_layout(list(shape), dtype, layout, device).requires_grad_(requires_grad)

    return empty


def _print_host_copy(original: Any) -> Any:
    """Printing computes widths and digits in float64, which the card lacks: it is given a host copy."""

    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.cpu() if self.device.type == DEVICE_NAME else self, indent)

    return tensor_str


def _dlpack_device(original: Any) -> Any:
    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != DEVICE_NAME:
            return original(self)
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    return dlpack_device


def _dlpack(original: Any) -> Any:
    """A capsule holds an address and strides, no layout: only this device can read it, through the memory's owner."""

    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *, dl_device: tuple[Any, int] | None = None, **kwargs: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
                raise BufferError(
                    f"a tensor on {self.device} lies in sticks, in the card's number formats: no other device can read "
                    "its memory. Export a host copy: tensor.cpu()"
                )
            if not self.requires_grad and not kwargs.get("copy"):
                seen = torch._C._from_dlpack(torch._C._to_dlpack(self))
                if self.numel() > 0 and device_tensor_layout(seen) != device_tensor_layout(self):
                    raise BufferError("this tensor reads shared memory by a layout of its own: export tensor.clone()")
        return original(self, dl_device=dl_device, **kwargs)

    return dlpack


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


def _apply_keeping_parameters(original: Any) -> Any:
    """Module.to must keep its Parameter objects: optimizers hold them, and tied weights are one object.

    PyTorch moves a parameter in place with ``.data =`` where it knows both devices, which PrivateUse1 is not among; for
    the others it makes new parameters. Here what it would put in their place goes into the old ones. Weights come to
    the card laid out as compiled calls want them.
    """

    @functools.wraps(original)
    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if not isinstance(fn, _LaidOut):
            fn = _LaidOut(fn, self)
        if recurse:
            for module in self.children():
                module._apply(fn)
        before = dict(self._parameters)
        original(self, fn, recurse=False)
        for name, old in before.items():
            new = self._parameters[name]
            if old is None or new is None or new is old or DEVICE_NAME not in (old.device.type, new.device.type):
                continue
            if _is_fake(old) or _is_fake(new):
                continue
            _C.set_data(old, new.data)
            old.grad = new.grad
            self._parameters[name] = old
        return self

    return apply


class _LaidOut:
    """What Module._apply does to each tensor; weights that it moves to the card lie there as they are used."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor], root: torch.nn.Module) -> None:
        self.fn, self.root = fn, root
        self.owners: dict[int, list[tuple[torch.nn.Module, str]]] | None = None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        has_shape = not isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))
        if not has_shape or tensor.device.type != "cpu" or _is_fake(tensor):
            return self.fn(tensor)
        from ..model_utils import way_to_lie

        shape, owners = tuple(tensor.shape), self._owners_of(tensor)
        make = way_to_lie(shape, owners) if owners else None
        if make is None:
            return self.fn(tensor)
        moved = self.fn(torch.zeros([2] * len(shape), dtype=tensor.dtype))  # where to, as what, in which memory format
        in_order = moved.is_contiguous() and (len(shape) < 4 or tensor.is_contiguous())
        if moved.device.type != DEVICE_NAME or not in_order:
            return self.fn(tensor)
        value = tensor.detach().to(moved.dtype).contiguous()
        return value.to(moved.device, device_layout=make(shape, moved.dtype))  # type: ignore[call-overload]

    def _owners_of(self, tensor: torch.Tensor) -> list[tuple[torch.nn.Module, str]]:
        if self.owners is None:
            self.owners = {}
            for module in self.root.modules():
                for name, each in (*module._parameters.items(), *module._buffers.items()):
                    if each is not None:
                        self.owners.setdefault(id(each), []).append((module, name))
        if isinstance(tensor, torch.nn.Parameter):
            return self.owners.get(id(tensor), [])
        return self.owners.pop(id(tensor), [])  # a buffer is replaced, and its id may be another tensor's then


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
    """The card has no kernel that takes a user's function of a score: FlexAttention is written with other ops there,
    before autograd and the compiler see it."""
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
    """torch.jit.trace compares results in float64, which the card lacks: meanwhile the host makes them."""
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


def _open_safetensors_to_card(safetensors: ModuleType) -> None:
    """safetensors knows devices by name and not ours: map the file on the host, send each tensor when asked for it."""
    original = safetensors.safe_open

    def is_card(device: Any) -> bool:
        return isinstance(device, (str, torch.device)) and torch.device(device).type == DEVICE_NAME

    class safe_open:  # noqa: N801 - the name users import
        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
            return object.__new__(cls) if is_card(device) else original(filename, framework, device, **kwargs)

        def __init__(self, filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> None:
            self._file, self._device = original(filename, framework, "cpu", **kwargs), device

        def __enter__(self) -> safe_open:
            self._file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._file.__exit__(*error)

        def keys(self) -> list[str]:
            return self._file.keys()

        def offset_keys(self) -> list[str]:
            return self._file.offset_keys()

        def metadata(self) -> dict[str, str] | None:
            return self._file.metadata()

        def get_tensor(self, name: str) -> torch.Tensor:
            return self._file.get_tensor(name).to(self._device)

        def get_tensors(self) -> dict[str, torch.Tensor]:
            return {name: self.get_tensor(name) for name in self.keys()}

        def get_slice(self, name: str) -> Slice:
            return Slice(self._file.get_slice(name), self._device)

    class Slice:
        def __init__(self, part: Any, device: Any) -> None:
            self._part, self._device = part, device

        def __getattr__(self, name: str) -> Any:
            return getattr(self._part, name)

        def __getitem__(self, index: Any) -> torch.Tensor:
            return self._part[index].to(self._device)

    safetensors.safe_open = safe_open  # type: ignore[attr-defined]


def _measure_for_safetensors(safetensors_torch: ModuleType) -> None:
    """safetensors asks whether a tensor covers its storage: padding on the card does not count."""
    original = safetensors_torch.storage_size

    @functools.wraps(original)
    def storage_size(tensor: torch.Tensor) -> int:
        if tensor.device.type != DEVICE_NAME or _is_fake(tensor):
            return original(tensor)
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage()).nbytes

    safetensors_torch.storage_size = storage_size  # type: ignore[attr-defined]


def _fix_hugging_face(_: ModuleType) -> None:
    from ..models import hugging_face

    for name, fix in hugging_face.FIXES.items():
        _after_import(name, fix)


def _leave(finder: importlib.abc.MetaPathFinder) -> None:
    """A new list: whoever goes through the old one would miss the next finder."""
    sys.meta_path = [other for other in sys.meta_path if other is not finder]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs a function on a module right after its import, whenever that is."""

    def __init__(self, name: str, change: Any) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.change(module)
                _leave(self)  # not before: many only look whether there is such a module, and Ctrl-C may end an import

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _WhenComplete(importlib.abc.MetaPathFinder):
    """Runs a function on a module that imports torch itself, at the first import after it is complete."""

    def __init__(self, module: ModuleType, change: Any) -> None:
        self.module, self.change = module, change

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if not _is_incomplete(self.module):
            _leave(self)
            try:
                self.change(self.module)
            except BaseException:  # Ctrl-C too: the next import tries again
                sys.meta_path.insert(0, self)
                raise


def _is_incomplete(module: ModuleType) -> bool:
    return getattr(module.__spec__, "_initializing", False)


def _after_import(name: str, change: Any) -> None:
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _AfterImport(name, change))
    elif _is_incomplete(module):
        sys.meta_path.insert(0, _WhenComplete(module, change))
    else:
        change(module)
