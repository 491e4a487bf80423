"""Lowerings turn ATen ops into loop ops; a file per family. An op without one runs on the CPU, with a warning."""

from . import convolution, custom, factories, indexing, matrices, norms, pointwise, pooling, reductions, shapes, views
from .registry import LOWERINGS, Lowering, lowers

__all__ = ["LOWERINGS", "Lowering", "lowers"]

del convolution, custom, factories, indexing, matrices, norms, pointwise, pooling, reductions, shapes, views
