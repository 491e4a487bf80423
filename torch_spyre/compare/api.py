"""Running a program with every op compared."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .. import _C
from ..constants import DEVICE_NAME
from ..ops.fallbacks import fallback
from .compiled import observing_kernels
from .observe import ObserveOps, Observer
from .report import Output, Report
from .values import held, is_real, on_card


def compare(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Calls ``function`` once, with every op on the card compared with the same op on the host.

    ``function`` is any callable: a function, a module, one that ``torch.compile`` made, a training step. Where nothing
    of it is on a card yet, a copy of the module and its arguments go there first. The report names every op with its
    line and its error in what the op's roundings explain; ``report.first`` is the first that they do not.
    """
    if not callable(function):
        raise TypeError(
            f"torch.spyre.compare takes something to call and its arguments, got a {type(function).__name__}"
        )
    if _C.card_mode() == "timing":
        raise RuntimeError("SPYRE_CARD=timing computes no values: there is nothing to compare")
    function, args, kwargs = _moved(function, args, kwargs)
    observer = Observer()
    watching = ObserveOps(observer, _run.__code__)
    with _noting_forward_lines(), fallback("count"), observing_kernels(observer), watching:
        result = _run(function, args, kwargs)
    report = observer.report
    report.result = result
    leaves = [leaf for leaf in tree_leaves(result) if on_card(leaf) and is_real(leaf)]
    report.outputs = [_output(leaf, observer.reference.of(leaf)) for leaf in leaves]
    return report


def _run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Lines of the program are those that this function calls."""
    return function(*args, **kwargs)


def _moved(function: Any, args: Any, kwargs: Any) -> Any:
    """A program that is on the host alone, on the card."""
    module = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    own = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
    tensors = [leaf for leaf in (*own, *tree_leaves((args, kwargs))) if isinstance(leaf, Tensor)]
    if not tensors or any(tensor.device.type != "cpu" for tensor in tensors):
        return function, args, kwargs
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).to(DEVICE_NAME)
    args, kwargs = tree_map(lambda x: x.to(DEVICE_NAME) if isinstance(x, Tensor) else x, (args, kwargs))
    return function, args, kwargs


@contextmanager
def _noting_forward_lines() -> Iterator[None]:
    """Inside, autograd notes the line of each op, which is the line of its gradient, too."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
    with anomaly:
        yield


def _output(found: Tensor, reference: Tensor) -> Output:
    got, want = held(found).double(), reference.double()
    off = (got - want).masked_fill((got == want) | (got.isnan() & want.isnan()), 0.0)
    error = float(off.abs().amax()) if off.numel() else 0.0
    norm = float(want.norm())
    relative = float(off.norm()) / norm if norm else error
    return Output(str(found.dtype).removeprefix("torch."), tuple(found.shape), error, relative)
