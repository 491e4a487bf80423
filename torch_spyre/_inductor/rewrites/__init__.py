"""ATen to ATen, a file per family: ops that the card lacks, written with ops that it has."""

from . import attention, convolution, padding, pointwise, pooling, products, resampling
from .registry import REWRITES

__all__ = ["REWRITES"]

del attention, convolution, padding, pointwise, pooling, products, resampling
