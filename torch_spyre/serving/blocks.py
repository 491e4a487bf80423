"""One program for all blocks of a model: weights, caches and the step are its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .attention import CardAttention
from .mamba import CardMamba

SHAPES = 256  # programs of a kind of block, far more than a ladder has


def compile_blocks(model: nn.Module) -> None:
    """Compiles the forward of each kind of block once; blocks are what lists of layers with caches hold."""
    compiled: dict[type[nn.Module], Callable[..., Any]] = {}
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList):
            for block in layers:
                if any(isinstance(each, CardAttention | CardMamba) for each in block.modules()):
                    kind = type(block)
                    if kind not in compiled:
                        compiled[kind] = _compiled(kind)
                    block.forward = functools.partial(compiled[kind], block)


def _compiled(kind: type[nn.Module]) -> Callable[..., Any]:
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "recompile_limit": SHAPES}
    forward = torch.compile(kind.forward, **options)
    signature = inspect.signature(kind.forward)
    if "residual" not in signature.parameters:
        return forward

    def with_residual(*args: Any, **kwargs: Any) -> Any:
        """The first block has no residual; with zeros for it, its program is that of the others."""
        given = signature.bind(*args, **kwargs).arguments
        if given["residual"] is None:
            given["residual"] = torch.zeros_like(given["hidden_states"])
        rest = given.pop("kwargs", {})
        return forward(**given, **rest)

    return with_residual
