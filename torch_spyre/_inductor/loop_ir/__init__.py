"""Loop IR: what a kernel computes, in PyTorch's own sizes, strides and offsets."""

from .ir import (
    Access,
    Buffer,
    Constant,
    Indirect,
    Kernel,
    LoopOp,
    Parameter,
    RuntimeScalar,
    contiguous,
    from_json,
    known,
)

__all__ = [
    "Access",
    "Buffer",
    "Constant",
    "RuntimeScalar",
    "Indirect",
    "Kernel",
    "LoopOp",
    "Parameter",
    "contiguous",
    "from_json",
    "known",
]
