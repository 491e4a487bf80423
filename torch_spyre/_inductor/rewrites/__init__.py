"""ATen to ATen, a file per family: ops that the card lacks, written with ops that it has."""

from . import attention, convolution, factories, padding, pointwise, pooling, products, resampling
from .registry import REWRITES

__all__ = ["REWRITES"]

del attention, convolution, factories, padding, pointwise, pooling, products, resampling
