"""Gradients of elementwise ops."""

from __future__ import annotations

import torch

from .registry import decomposes

aten = torch.ops.aten


@decomposes(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(gradient: torch.Tensor, x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.where((x >= -limit) & (x <= limit), 0.0, gradient)
