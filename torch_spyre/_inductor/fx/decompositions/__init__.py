"""Decompositions: ATen ops that the card lacks, written with ATen ops that it has; a file per family.

:mod:`.table` combines them with PyTorch's own decompositions.
"""

from . import attention, convolution, factories, nonzero, padding, pointwise, pooling, products, resampling
from .registry import DECOMPOSITIONS

__all__ = ["DECOMPOSITIONS"]

del attention, convolution, factories, nonzero, padding, pointwise, pooling, products, resampling
