"""ATen to loop ops, a file per family. An op without a lowering here runs on the CPU, warned."""

from . import convolution, custom, factories, indexing, matrices, norms, pointwise, pooling, reductions, shapes, views
from .registry import LOWERINGS, Lowering, lowers

__all__ = ["LOWERINGS", "Lowering", "lowers"]

del convolution, custom, factories, indexing, matrices, norms, pointwise, pooling, reductions, shapes, views
