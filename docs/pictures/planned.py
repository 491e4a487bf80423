"""What the compiler plans for a function, as data."""

from collections.abc import Callable
from typing import Any


def planned(function: Callable[..., Any], *sizes: tuple[int, ...]) -> Any:
    """The one kernel of a function of halves of these sizes (torch_spyre/explain/run_data.py has its fields)."""
    import torch

    report = torch.spyre.explain(function, *(torch.zeros(size).half().to("spyre") for size in sizes), trials=False)
    (kernel,) = report.data["kernels"]
    return kernel
