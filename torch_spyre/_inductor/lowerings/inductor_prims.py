"""Lowerings of ops that Inductor defines for its own decompositions; the ops exist once Inductor is imported."""

from __future__ import annotations

import torch
import torch._inductor.inductor_prims

from ..loop_ir.builder import Builder, Value
from .pointwise import result
from .registry import lowers


@lowers(torch.ops.prims.fma.default)
def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return result(b, "fma", x, y, z)
