"""How far results may be off: rules that carry an error bound through each op.

A :class:`Ref` is what a tensor should be: its value in float64 (integers and bools as they are), and for each element
how far a right card may be from it, whether or not it rounds between ops. Bounds follow from the formats' stated
tolerance: an op rounds once into its dtype, sums add 2^-24 per term in fp32. Elements whose bound is zero are *exact*:
small numbers that every format has. Ops that jump (comparisons, casts to integers, positions) take exact operands only,
so whatever differs by more than the bound is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_spyre.compare.error_bounds import (
    FP32,
    FUNCTION,
    accumulation,
    displacement,
    product_error,
    representable,
    smallest,
    unit,
)

LARGEST = 2.0**13  # of floats: far from overflow in every format
LARGEST_INTEGER = 2**20
LOOSEST = 2.0**-4  # relative: a looser bound would show nothing


class Invalid(Exception):
    """A program without a known answer: PyTorch refuses it, or its bounds say nothing."""


@dataclass(frozen=True)
class Ref:
    """``value`` and ``error`` have the strides and the aliasing that the tensor has on the CPU."""

    value: Tensor
    error: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def exact(self) -> bool:
        return not self.error.any()

    @property
    def real(self) -> bool:
        return self.dtype.is_floating_point


@dataclass(frozen=True)
class Call:
    """One op on its operands; ``dtype`` is the result's, or that of the tensor it is written to."""

    code: str
    refs: tuple[Ref, ...]
    parameters: dict[str, Any]
    dtype: torch.dtype

    def apply(self, *tensors: Any) -> Tensor:
        """The op itself on other tensors."""
        names = {f"t{i}": tensor for i, tensor in enumerate(tensors)}
        shown = {k: v if isinstance(v, str) else repr(v) for k, v in self.parameters.items()}
        return eval(self.code.format(*names, **shown), {"torch": torch, "F": F, **names})

    def cast(self, i: int) -> Ref:
        """An operand as an element of the result's dtype: ops of two dtypes convert first."""
        return converted(self.refs[i], self.dtype)


Rule = Callable[[Call], tuple[Tensor, Tensor]]


def kept(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The dtype that values are kept in."""
    if dtype.is_floating_point:
        return value.double()
    return value.bool() if dtype == torch.bool else value.long()


def rounded(value: Tensor, error: Tensor, dtype: torch.dtype, exactly: bool = True) -> tuple[Tensor, Tensor]:
    """After one rounding; what is exact and has a place in the format stays so, if the op is ``exactly`` rounded."""
    if not dtype.is_floating_point:
        if error.any():
            raise Invalid("an integer that is not exact")
        return kept(value, dtype), error
    value = value.double()
    more = error + unit(dtype) * (value.abs() + error) + smallest(dtype)
    if exactly:
        more = torch.where((error == 0) & representable(value, dtype), 0.0, more)
    return value, more


def converted(ref: Ref, dtype: torch.dtype) -> Ref:
    if ref.dtype == dtype:
        return ref
    if ref.real and not dtype.is_floating_point:
        _demand(ref.exact, "a cast to integers of something not exact")
        return Ref(kept(ref.value, dtype), torch.zeros_like(ref.error), dtype)
    return Ref(*rounded(kept(ref.value, dtype), ref.error, dtype), dtype)


def check_limits(value: Tensor, error: Tensor, dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        _demand(bool((value.abs() + error <= LARGEST).all()), "too large")
        _demand(bool((error <= LOOSEST * (0.25 + value.abs())).all()), "too loose")
    elif dtype != torch.bool:
        _demand(bool((value.abs() <= LARGEST_INTEGER).all()), "too large an integer")


def _demand(condition: bool, why: str) -> None:
    if not condition:
        raise Invalid(why)


def _wide(call: Call) -> list[Ref]:
    return [call.cast(i) for i in range(len(call.refs))]


# --- rules


def discrete(call: Call) -> tuple[Tensor, Tensor]:
    """Anything of exact operands, computed as PyTorch does."""
    _demand(all(ref.exact for ref in call.refs), "a jump in something not exact")
    value = call.apply(*(ref.value for ref in call.refs))
    return rounded(value, torch.zeros(value.shape, dtype=torch.float64), call.dtype)


def _or_discrete(rule: Rule) -> Rule:
    """Integers have no errors."""
    return lambda call: rule(call) if call.dtype.is_floating_point else discrete(call)


def monotone(low: float = -LARGEST, high: float = LARGEST, exactly: bool = False) -> Rule:
    """Monotone in every operand, all in [low, high]: what the ends of the intervals give bounds the result."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        refs = _wide(call)
        for ref in refs:
            _demand(bool(((ref.value - ref.error >= low) & (ref.value + ref.error <= high)).all()), "domain")
        value = call.apply(*(ref.value for ref in refs))
        ends = [call.apply(*(ref.value + sign * ref.error for ref in refs)) for sign in (-1, 1)]
        return rounded(value, displacement(value, *ends), call.dtype, exactly)

    return _or_discrete(rule)


def selects() -> Rule:
    """Gives one of its operands' elements, monotone in all."""
    return monotone(exactly=True)


def lipschitz(most: float, low: float = -4, high: float = 4) -> Rule:
    def rule(call: Call) -> tuple[Tensor, Tensor]:
        ref = call.cast(0)
        _demand(bool(((ref.value - ref.error >= low) & (ref.value + ref.error <= high)).all()), "domain")
        return rounded(call.apply(ref.value), most * ref.error, call.dtype, exactly=False)

    return _or_discrete(rule)


def _added(call: Call) -> tuple[Tensor, Tensor]:
    refs = _wide(call)
    value = call.apply(*(ref.value for ref in refs))
    error = sum((ref.error for ref in refs), torch.zeros((), dtype=torch.float64))
    return rounded(value, error.expand(value.shape), call.dtype)


added = _or_discrete(_added)


def _scaled(call: Call) -> tuple[Tensor, Tensor]:
    """An operand times a number, or plus one."""
    ref = call.cast(0)
    value = call.apply(ref.value)
    return rounded(value, (call.apply(ref.value + ref.error) - value).abs(), call.dtype)


scaled = _or_discrete(_scaled)


def _off(a: Ref, b: Ref) -> Tensor:
    return product_error(a.value, a.error, b.value, b.error)


def _multiplied(call: Call) -> tuple[Tensor, Tensor]:
    a, b = call.cast(0), call.cast(-1)  # of a square, the same
    value = a.value * b.value
    return rounded(value, _off(a, b), call.dtype)


multiplied = _or_discrete(_multiplied)


def _quotient(a: Ref, b: Ref) -> tuple[Tensor, Tensor]:
    least = b.value.abs() - b.error
    _demand(bool((least >= 0.25).all()), "division by something small")
    value = a.value / b.value
    return value, (a.error + value.abs() * b.error) / least


def _divided(call: Call) -> tuple[Tensor, Tensor]:
    a, b = _wide(call)
    value, error = _quotient(a, b)
    return rounded(value, error, call.dtype)


divided = _or_discrete(_divided)


def _multiplied_and_added(call: Call) -> tuple[Tensor, Tensor]:
    """x + number y z, where the product may round."""
    x, y, z = _wide(call)
    scale = abs(call.parameters["number"])
    inner = scale * y.value * z.value
    error = x.error + scale * _off(y, z) + unit(call.dtype) * inner.abs()
    return rounded(call.apply(x.value, y.value, z.value), error, call.dtype, exactly=False)


multiplied_and_added = _or_discrete(_multiplied_and_added)


def moved(*data: int) -> Rule:
    """Elements go elsewhere unchanged. ``data``: the operands they come from; the others say where to."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        refs = [call.cast(i) if i in data else ref for i, ref in enumerate(call.refs)]
        value = call.apply(*(ref.value for ref in refs))
        error = call.apply(*(ref.error if i in data else ref.value for i, ref in enumerate(refs)))
        return value, error

    return rule


def filled(*data: int) -> Rule:
    """Elements go elsewhere, and numbers come in between that every format has."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        refs = [call.cast(i) if i in data else ref for i, ref in enumerate(call.refs)]

        def apply(extra: int) -> Tensor:
            shifted = [ref.value + extra * ref.error if i in data else ref.value for i, ref in enumerate(refs)]
            return call.apply(*shifted)

        value = apply(0)
        return rounded(value, (apply(1) - value).abs() if call.dtype.is_floating_point else _none(value), call.dtype)

    return rule


def _none(value: Tensor) -> Tensor:
    return torch.zeros(value.shape, dtype=torch.float64)


def made(call: Call) -> tuple[Tensor, Tensor]:
    """New numbers, whatever the operand is."""
    value = call.apply(*(ref.value for ref in call.refs))
    return rounded(kept(value, call.dtype), _none(value), call.dtype)


def cast(call: Call) -> tuple[Tensor, Tensor]:
    ref = call.cast(-1 if len(call.refs) > 1 else 0)
    if len(call.refs) > 1:  # copy_ into a larger tensor
        return ref.value.expand(call.refs[0].shape), ref.error.expand(call.refs[0].shape)
    return ref.value, ref.error


def summed(*data: int, exactly: bool = True) -> Rule:
    """Linear in ``data``: a sum of at most as many terms as these have elements."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        if not all(call.refs[i].real for i in data):
            return discrete(call)
        refs = [call.cast(i) if i in data else ref for i, ref in enumerate(call.refs)]

        def apply(what: Callable[[Ref], Tensor]) -> Tensor:
            return call.apply(*(what(ref) if i in data else ref.value for i, ref in enumerate(refs)))

        value, error, size = apply(lambda r: r.value), apply(lambda r: r.error), apply(lambda r: r.value.abs())
        terms = sum(refs[i].value.numel() for i in data)
        error = error + _accumulation([refs[i] for i in data], size, terms)
        return rounded(value, error, call.dtype, exactly)

    return rule


def _accumulation(refs: Sequence[Ref], size: Tensor, terms: int) -> Tensor:
    """What a sum in fp32 loses: nothing while every partial sum is a small multiple of a sixteenth."""
    fine = all(ref.exact and bool((ref.value * 4 == (ref.value * 4).round()).all()) for ref in refs)
    if fine and (not size.numel() or float(size.amax()) * 16 < 2**24):
        return torch.zeros_like(size)
    return accumulation(terms, size)


def _bilinear(call: Call, a: Ref, b: Ref) -> tuple[Tensor, Tensor]:
    value, size = call.apply(a.value, b.value), call.apply(a.value.abs(), b.value.abs())
    parts = (a.value.abs(), b.error), (a.error, b.value.abs()), (a.error, b.error)
    error = torch.stack([call.apply(*part) for part in parts]).sum(0)
    return value, error + _accumulation([a, b], size, 1 + max(a.value.numel(), b.value.numel()))


def product(call: Call) -> tuple[Tensor, Tensor]:
    """Linear in each of two operands."""
    if not call.dtype.is_floating_point:
        return discrete(call)
    return rounded(*_bilinear(call, *_wide(call)), call.dtype)


def product_and_sum(inner: str, first: int, second: int, addend: int) -> Rule:
    """A product that may round before something is added to it."""

    def rule(call: Call) -> tuple[Tensor, Tensor]:
        if not call.dtype.is_floating_point:
            return discrete(call)
        alone = replace(call, code=inner)
        value, error = rounded(*_bilinear(alone, call.cast(first), call.cast(second)), call.dtype)
        more = call.cast(addend)
        return rounded(value + more.value, error + more.error, call.dtype)

    return rule


def _dims(call: Call) -> list[int]:
    given = call.parameters["dim"]
    return [given] if isinstance(given, int) else list(given)


def softmax(call: Call) -> tuple[Tensor, Tensor]:
    """Each part rounds: the difference to the largest, its exponential, the sum, the quotient."""
    x, (dim,) = call.cast(0), _dims(call)
    value = call.apply(x.value)
    u = unit(call.dtype)
    off = x.error + x.error.amax(dim, True) + u * (x.value.amax(dim, True) - x.value + x.error)
    _demand(bool((off < 0.5).all()), "too loose an exponent")
    relative = torch.expm1(2 * off.amax(dim, True) + off) + 6 * u + x.shape[dim] * FP32
    # An exponential that is too small for the format is 0: as much is missing from the result, at most.
    return rounded(value, value * relative + 4 * smallest(call.dtype), call.dtype, exactly=False)


def log_softmax(call: Call) -> tuple[Tensor, Tensor]:
    x, (dim,) = call.cast(0), _dims(call)
    spread = x.value.amax(dim, True) - x.value
    error = x.error + x.error.amax(dim, True) + (x.shape[dim] + 16) * FP32 * 8 * (1 + spread)
    return rounded(call.apply(x.value), error, call.dtype, exactly=False)


def logsumexp(call: Call) -> tuple[Tensor, Tensor]:
    """PyTorch takes it apart: difference, exponential, sum, logarithm and sum round."""
    x, (dim,) = call.cast(0), _dims(call)
    value, u = call.apply(x.value), unit(call.dtype)
    keep = bool(call.parameters["keepdim"])
    largest, least = x.value.amax(dim, keep).abs(), (x.value.amax(dim, keep) - x.value.amin(dim, keep))
    error = x.error.amax(dim, keep) * 2 + u * (4 + least + largest + value.abs()) + x.shape[dim] * FP32
    return rounded(value, error, call.dtype, exactly=False)


def _moments(x: Ref, dims: list[int], keep: bool, correction: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Deviations with their errors, and the variance with its own; in fp32."""
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    _demand(count > correction, "no degree of freedom")
    most = x.value.abs().amax(dims, True)
    centred = x.value - x.value.mean(dims, True)
    off = x.error + x.error.mean(dims, True) + (count + 4) * FP32 * most
    squares, square_off = centred.square(), 2 * centred.abs() * off + off.square()
    square_off = square_off + (count + 4) * FP32 * (squares + square_off)
    variance = squares.sum(dims, keep) / (count - correction)
    return centred, off, variance, square_off.sum(dims, keep) / (count - correction)


def variance(root: bool) -> Rule:
    def rule(call: Call) -> tuple[Tensor, Tensor]:
        keep, correction = bool(call.parameters["keepdim"]), int(call.parameters["correction"])
        _, _, value, error = _moments(call.cast(0), _dims(call), keep, correction)
        if root:
            ends = [(value + sign * error).clamp(min=0).sqrt() for sign in (-1, 1)]
            value = value.sqrt()
            error = displacement(value, *ends) + FUNCTION * value
        return rounded(value, error, call.dtype, exactly=False)

    return rule


def _times_root(centred: Tensor, off: Tensor, spread: Tensor, spread_off: Tensor) -> tuple[Tensor, Tensor]:
    """Something over the root of something, eps included."""
    root = spread.rsqrt()
    low = (spread - spread_off).clamp(min=1e-5)
    root_off = torch.maximum(low.rsqrt() - root, root - (spread + spread_off).rsqrt()) + 8 * FUNCTION * root
    value = centred * root
    return value, centred.abs() * root_off + off * (root + root_off)


def _affine(call: Call, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Times a weight and plus a bias, each part of which may round."""
    value, error = rounded(value, error, call.dtype, exactly=False)
    normal = Ref(value, error, call.dtype)
    for i in range(1, len(call.refs)):
        other = call.cast(i)
        if i == 1:
            normal = Ref(*rounded(value * other.value, _off(normal, other), call.dtype, False), call.dtype)
        else:
            both = normal.value + other.value, normal.error + other.error
            normal = Ref(*rounded(*both, call.dtype, False), call.dtype)
    return normal.value, normal.error


def layer_norm(call: Call) -> tuple[Tensor, Tensor]:
    centred, off, spread, spread_off = _moments(call.cast(0), [-1], True, 0)
    return _affine(call, *_times_root(centred, off, spread + 1e-5, spread_off))


def rms_norm(call: Call) -> tuple[Tensor, Tensor]:
    x = call.cast(0)
    count = x.shape[-1]
    squares = x.value.square().mean(-1, True) + 1e-5
    off = (2 * x.value.abs() * x.error + x.error.square()).mean(-1, True) + (count + 4) * FP32 * squares
    return _affine(call, *_times_root(x.value, x.error, squares, off))


def norm(call: Call) -> tuple[Tensor, Tensor]:
    """The root of a sum of squares; the sum may round too."""
    x, dims, keep = call.cast(0), _dims(call), bool(call.parameters["keepdim"])
    squares = x.value.square().sum(dims, keep)
    off = (2 * x.value.abs() * x.error + x.error.square()).sum(dims, keep) + x.value.numel() * FP32 * squares
    squares, off = rounded(squares, off, call.dtype, exactly=False)
    value = squares.sqrt()
    ends = [(squares + sign * off).clamp(min=0).sqrt() for sign in (-1, 1)]
    return rounded(value, displacement(value, *ends), call.dtype, exactly=False)
