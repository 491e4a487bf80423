"""Torch-Spyre for every machine: the PyTorch device ``spyre`` on a software card.

PyTorch finds this package through its entry point and calls :func:`_autoload`; users import nothing.
"""

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import Report
    from .explain import Report as Explanation

__version__ = "0.1.0"

_loaded = False


def compare(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Report":
    """``torch.spyre.compare``: see :func:`torch_spyre.compare.compare`."""
    from .compare.api import compare

    return compare(function, *args, **kwargs)


def explain(program: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Explanation":
    """``torch.spyre.explain``: see :func:`torch_spyre.explain.explain`."""
    from .explain.api import explain

    return explain(program, *args, **kwargs)


def _paged_attention(*args: Any, **kwargs: Any) -> Any:
    from .eager.paged_attention import paged_attention

    return paged_attention(*args, **kwargs)


def _provenance_path() -> str:
    """Where the environment wants the sidecar of kernels; empty: nowhere."""
    from .constants import PROVENANCE_FILE

    asked = os.environ.get("INDUCTOR_PROVENANCE", "0") not in ("", "0")
    return os.environ.get("TORCH_SPYRE_PROVENANCE_PATH", PROVENANCE_FILE if asked else "")


def _register() -> None:
    import torch

    from . import _C, diagnostics, logging_config
    from .card import description
    from .constants import DEVICE_NAME

    logging_config.register()
    _C.set_hardware_file(description.file_for_card())
    torch.utils.rename_privateuse1_backend(DEVICE_NAME)

    from . import device, distributed
    from .device import extensions
    from .ops import attention, custom, paged_attention  # noqa: F401  register attention, define torch.ops.spyre

    device.compare, device.explain = compare, explain  # tools above the device, imported when they are used
    torch._register_device_module(DEVICE_NAME, device)
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=[torch.float64])
    extensions.install()
    paged_attention.on_card(_paged_attention)
    distributed.register()
    diagnostics.collect_failures()
    if path := _provenance_path():
        from . import provenance

        provenance.collect_into(path)


def _autoload() -> None:
    """Register the device. Prints nothing, starts no runtime, and never breaks ``import torch``."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    try:
        _register()
    except Exception as error:  # whatever is wrong here must not take PyTorch with it
        warnings.warn(f"torch_spyre could not register the device 'spyre': {error}", stacklevel=2)


def __getattr__(name: str) -> object:
    import importlib

    if name in ("constants", "device", "ops", "streams", "card", "profiler", "smi", "timing"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'torch_spyre' has no attribute {name!r}")
