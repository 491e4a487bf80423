"""How far a result of the card may be off: the one theory that ``torch.spyre.compare`` and all tests share.

The reference is PyTorch on the host in float64, from the values that the card holds. The card computes in fp32 and
rounds the result of each op once into the format of its dtype. A bound therefore follows from three facts:

- **the format**: :data:`FORMATS` says what one rounding changes (:func:`rounding`), which numbers a format holds
  without rounding (:func:`representable`), and below which magnitude it holds nothing (:func:`smallest`);
- **the kind of op**: an op that moves or chooses numbers changes nothing, an element-wise one rounds once, a sum also
  depends on its order, a composite op adds up what its parts may be off;
- **the length of the reduction**: K terms added in fp32, in any order, are off by K · 2^-24 · Σ|terms|
  (:func:`accumulation`).

Errors of operands reach a result as far as moving the operands moves it (:func:`displacement`), in a product by the
product rule (:func:`product_error`). What differs between the suites is only how they know an op's kind: the op grid
and fuzz have a rule in each row, coverage takes ops apart with PyTorch's decompositions, and the generic suites count
roundings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FP32 = 2.0**-24  # what adding one term in fp32 changes, relative to the magnitudes added
FUNCTION = 2.0**-21  # the same for a function: the card evaluates polynomials in fp32


@dataclass(frozen=True)
class Format:
    """How the card holds a floating-point dtype.

    ``unit`` is the relative change of one rounding, ``leaving`` that of the way out of the card, where the dtype has
    fewer bits than the card's format. Numbers of at most ``bits`` bits enter without rounding, others change by
    ``entering``. Magnitudes below ``smallest`` lose bits or become zero; those above ``largest`` overflow.
    """

    unit: float
    leaving: float
    entering: float
    bits: int
    smallest: float
    largest: float


# Both half formats are SEN169 on the card, which has one bit less than fp16; a number given in Python enters a bfloat16
# tensor as a bfloat16.
_SEN169_LARGEST = 2**33 * (1 - 2**-9)
FORMATS = {
    torch.float16: Format(2**-9, 0.0, 2**-9, 10, 2**-24, _SEN169_LARGEST),
    torch.bfloat16: Format(2**-9, 2**-8, 2**-8, 8, 2**-31, _SEN169_LARGEST),
    torch.float32: Format(FUNCTION, 0.0, FP32, 24, 2**-126, torch.finfo(torch.float32).max),
}


def format_of(dtype: torch.dtype) -> Format:
    """The format of a dtype; what the card has no format for is computed on the host, at least in float32."""
    return FORMATS.get(dtype, FORMATS[torch.float32])


def unit(dtype: torch.dtype) -> float:
    """The relative change of one rounding as the host sees it, the way out of the card included."""
    return FORMATS[dtype].unit + FORMATS[dtype].leaving


def smallest(dtype: torch.dtype) -> float:
    """The magnitude below which numbers have lost bits: fp16 keeps less than the card there, SEN169 nothing."""
    return FORMATS[dtype].smallest if dtype in FORMATS else 0.0


def rounding(value: Tensor, dtype: torch.dtype, roundings: int = 1) -> Tensor:
    """What so many roundings into a dtype change."""
    return roundings * unit(dtype) * value.double().abs()


def representable(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a number needs no rounding."""
    return fits_bits(value, FORMATS[dtype].bits) & ((value.abs() >= 2.0**-14) | (value == 0))


def fits_bits(value: Tensor, bits: int) -> Tensor:
    """Where a number has at most so many significant bits."""
    digits = torch.frexp(value).mantissa * 2.0**bits
    return digits == digits.round()


def accumulation(terms: int, magnitude: Tensor) -> Tensor:
    """What the order of a sum in fp32 may change; ``magnitude`` is the sum of the terms' absolute values."""
    return terms * FP32 * magnitude


def product_error(a: Tensor, a_error: Tensor, b: Tensor, b_error: Tensor) -> Tensor:
    """How far a product is off whose factors are."""
    return a.abs() * b_error + b.abs() * a_error + a_error * b_error


def displacement(value: Tensor, *others: Tensor) -> Tensor:
    """How far a result moves at most, given what it is for moved operands: the ends of their intervals, or draws."""
    return torch.stack([(other - value).abs() for other in others]).amax(0)


# --- the comparison


def inside(found: Tensor, want: Tensor, bound: Tensor) -> Tensor:
    """Where a result is right: within the bound after rounding into its own dtype, or equal, or NaN like the reference.

    An infinite bound says nothing about a result.
    """
    low, high = (want.double() - bound).to(found.dtype), (want.double() + bound).to(found.dtype)
    return (found >= low) & (found <= high) | (found.isnan() & want.isnan()) | (found == want) | (bound == torch.inf)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, apart from which NaN."""
    if a.dtype.is_floating_point:
        known = ~a.isnan()
        return (
            torch.equal(known, ~b.isnan())
            and torch.equal(a[known], b[known])
            and torch.equal(a[known].signbit(), b[known].signbit())
        )
    return torch.equal(a, b)


def difference(found: Tensor, want: Tensor, bound: Tensor) -> str:
    """What a failed comparison says: how many elements differ, and the one that is furthest beyond its bound."""
    if found.is_complex():
        return "complex numbers differ"
    got, wanted, limit = (x.double().expand(found.shape) for x in (found, want, bound))
    beyond = ((got - wanted).abs() - limit).nan_to_num(torch.inf)
    beyond = torch.where((got == wanted) | (got.isnan() & wanted.isnan()), -1.0, beyond)
    at = int(beyond.argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(at), beyond.shape)] if beyond.dim() else []
    g, w, off = (float(x.flatten()[at]) for x in (got, wanted, limit))
    return f"{int((beyond > 0).sum())} of {beyond.numel()} differ; at {place}: {g:.6g}, not {w:.6g} ± {off:.2g}"
