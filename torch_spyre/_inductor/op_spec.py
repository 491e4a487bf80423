"""OpSpec by the name that users know it by."""

from ..ir.op_spec import IndirectAccess, LoopSpec, OpSpec, TensorArg

__all__ = ["IndirectAccess", "LoopSpec", "OpSpec", "TensorArg"]
