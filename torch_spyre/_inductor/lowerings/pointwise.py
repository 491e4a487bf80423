"""Pointwise ops. Most are one row of a table: the ATen op and the tile operation that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan, nan, pi
from typing import Any

import torch

from ..loop_ir.builder import Builder, Number, Unsupported, Value, as_kept, fitting, is_integer
from ..loop_ir.runtime_scalars import is_open, real, whole
from .registry import lowers

aten = torch.ops.aten

# ATen packet -> tile operation with the same inputs (tensors or numbers) and no further arguments.
_SAME = {
    **{
        getattr(aten, name): name
        for name in [
            "abs",
            "neg",
            "sign",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfc",
            "sigmoid",
            "silu",
            "relu",
            "mish",
            "hardswish",
            "hardsigmoid",
            "floor",
            "ceil",
            "trunc",
            "frac",
            "isnan",
            "isinf",
            "logical_not",
            "logical_and",
            "logical_or",
            "logical_xor",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "maximum",
            "minimum",
            "fmax",
            "fmin",
            "atan2",
            "hypot",
            "copysign",
            "logaddexp",
            "fmod",
            "remainder",
            "floor_divide",
            "mul",
            "square",
            "erfinv",
            "lgamma",
            "digamma",
            "i0",
            "gcd",
        ]
    },
    **{getattr(aten, f"special_{name}"): name for name in ("erfcx", "log_ndtr", "i0e", "i1", "i1e")},
    aten.isfinite: "isfinite",
    aten.bitwise_left_shift: "shift_left",
    aten.bitwise_right_shift: "shift_right",
    aten.__lshift__: "shift_left",
    aten.__rshift__: "shift_right",
}
_BOOL = {
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "bitwise_not": "logical_not",
}


def result(b: Builder, name: str, *inputs: Value | Number, parameters: tuple[float, ...] = ()) -> Value:
    """A pointwise op into the current node's dtype and strides."""
    return b.pointwise(name, *inputs, dtype=b.meta.dtype, parameters=parameters, stride=b.meta.stride())


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compared(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a comparison; numbers are rounded to the 16-bit dtype of the tensor that they are compared with."""
    halves = [v.dtype for v in inputs if isinstance(v, Value) and v.dtype in (torch.float16, torch.bfloat16)]
    if not halves or all(isinstance(v, Value) for v in inputs):
        return inputs
    return tuple(v if isinstance(v, Value) else as_kept(v, halves[0]) for v in inputs)


def _same_lowering(name: str) -> Callable[..., Value]:
    def lowering(b: Builder, *inputs: Any, **kwargs: Any) -> Value:
        if any(value is not None for value in kwargs.values()):
            raise Unsupported(f"{name} with the arguments {', '.join(kwargs)}")
        if name == "mul" and b.meta.dtype == torch.bool:
            return result(b, "logical_and", *inputs)
        if name in ("remainder", "fmod") and b.meta.dtype == torch.bool:
            raise Unsupported(f"{name} is not defined for bool")  # the fallback raises PyTorch's own error
        if name in _COMPARISONS:
            inputs = compared(inputs)
        if name in ("maximum", "minimum") and b.meta.dtype == torch.bool:
            return result(b, "logical_or" if name == "maximum" else "logical_and", *inputs)
        return result(b, name, *inputs)

    return lowering


for _op, _name in _SAME.items():
    lowers(_op)(_same_lowering(_name))


@lowers(aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor, aten.bitwise_not, aten.__and__, aten.__or__, aten.__xor__)
def bitwise(b: Builder, *inputs: Any) -> Value:
    name = b.op._schema.name.split("::")[1].strip("_")
    name = name if name.startswith("bitwise") else f"bitwise_{name}"
    if b.meta.dtype == torch.bool:
        return result(b, _BOOL[name], *inputs)
    return result(b, name, *inputs)


def _scaled(b: Builder, name: str, x: Value | Number, y: Value | Number, alpha: Number) -> Value:
    """x + alpha * y, or x - alpha * y."""
    if b.meta.dtype == torch.bool:
        return result(b, "logical_or" if name == "add" else "logical_xor", x, y if alpha else False)
    if alpha == 1:
        return result(b, name, x, y)
    alpha = alpha if name == "add" else -alpha
    if b.meta.dtype.is_floating_point:
        return result(b, "fma", y, real(fitting(alpha, b.meta.dtype)), x)
    alpha = fitting(whole(alpha), b.meta.dtype)
    return result(b, "add", x, b.pointwise("mul", y, alpha, dtype=b.meta.dtype))  # both ops wrap alike


@lowers(aten.add)
def add(b: Builder, x: Value | Number, y: Value | Number, *, alpha: Number = 1) -> Value:
    return _scaled(b, "add", x, y, alpha)


@lowers(aten.sub, aten.subtract)
def sub(b: Builder, x: Value | Number, y: Value | Number, *, alpha: Number = 1) -> Value:
    return _scaled(b, "sub", x, y, alpha)


@lowers(aten.rsub)
def rsub(b: Builder, x: Value, y: Value | Number, alpha: Number = 1) -> Value:
    if any(isinstance(v, bool) or isinstance(v, Value) and v.dtype == torch.bool for v in (x, y)):
        raise Unsupported("subtraction is not defined for bool")  # the fallback raises PyTorch's own error
    return _scaled(b, "sub", y, x, alpha)


@lowers(aten.div, aten.true_divide)
def div(b: Builder, x: Value | Number, y: Value | Number, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return result(b, "div", x, y)
    if rounding_mode == "floor":
        return result(b, "floor_divide", x, y)
    if all(is_integer(v.dtype) if isinstance(v, Value) else isinstance(v, int) for v in (x, y)):
        return result(b, "trunc_divide", x, y)
    return result(b, "trunc", b.pointwise("div", x, y, dtype=torch.float32))


@lowers(torch.ops.prims.div.default)
def prims_div(b: Builder, x: Value, y: Value) -> Value:
    return div(b, x, y, rounding_mode="trunc" if is_integer(b.meta.dtype) else None)


@lowers(aten.round)
def round_(b: Builder, x: Value, *, decimals: int = 0) -> Value:
    if is_integer(x.dtype):
        return x
    if not decimals:
        return result(b, "round", x)
    unit, (before, after) = 10.0 ** abs(decimals), ("mul", "div") if decimals > 0 else ("div", "mul")
    scaled = b.pointwise(before, x, unit, dtype=torch.float32)
    return result(b, after, b.pointwise("round", scaled, dtype=torch.float32), unit)


@lowers(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    if is_integer(x.dtype) or x.dtype == torch.bool:
        return result(b, "lt", x, 0)
    sign = b.pointwise("copysign", 1.0, x, dtype=x.dtype)  # lt itself ignores the sign of -0 and of NaN
    return result(b, "lt", sign, 0.0)


@lowers(aten.pow)
def power(b: Builder, x: Value | Number, y: Value | Number) -> Value:
    if is_integer(b.meta.dtype):
        if not isinstance(y, Value) and y < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        if any(isinstance(v, Value) and v.dtype == torch.bool for v in (x, y)):
            x, y = (b.cast(v, b.meta.dtype) if isinstance(v, Value) else v for v in (x, y))
        return result(b, "pow", fitting(x, b.meta.dtype), fitting(y, b.meta.dtype))
    if isinstance(y, Value) or not isinstance(x, Value):
        return result(b, "pow", x, y)
    if y == 2:
        return result(b, "square", x)
    if y == 1:
        return b.copy(b.cast(x, b.meta.dtype), stride=b.meta.stride())
    if y in (0.5, -0.5, -1):
        return result(b, {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[y], x)
    if b.meta.dtype == torch.float32 and abs(y) > 2**24 and y % 2 == 1:  # odd, but even after rounding to fp32
        return result(b, "copysign", b.pointwise("pow", x, float(y), dtype=torch.float32), x)
    return result(b, "pow", x, float(y))


@lowers(aten.angle.default)
def angle(b: Builder, x: Value) -> Value:
    """The angle of a real number: 0, pi, or NaN."""
    angles = b.pointwise("where", b.pointwise("lt", x, 0, dtype=torch.bool), pi, 0.0, dtype=torch.float32)
    if not x.dtype.is_floating_point:
        return b.cast(angles, b.meta.dtype, stride=b.meta.stride())
    return result(b, "where", b.pointwise("isnan", x, dtype=torch.bool), x, angles)


@lowers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor)
def isin(b: Builder, x: Any, wanted: Any, *, assume_unique: bool = False, invert: bool = False) -> Value:
    """Compares every element with every test element; many test elements are left to the host, which sorts them."""
    if isinstance(wanted, Value) and wanted.numel > 64:
        raise Unsupported(f"isin with {wanted.numel} test elements; the card compares with at most 64")
    name, fold = ("ne", "all") if invert else ("eq", "any")
    if not isinstance(wanted, Value):
        return result(b, name, *compared((x, wanted)))
    flat = replace(b.contiguous(wanted), size=(wanted.numel,), stride=(1,))
    column = x.unsqueeze(-1) if isinstance(x, Value) else x
    matches = b.pointwise(name, *compared((column, flat)), dtype=torch.bool)
    return b.reduce(fold, matches, [-1], False, torch.bool)


@lowers(aten.polygamma.default)
def polygamma(b: Builder, order: int, x: Value) -> Value:
    if order:
        raise Unsupported(f"polygamma of order {order}; the card computes order 0")
    return result(b, "digamma", x)


@lowers(aten.logit.default)
def logit(b: Builder, x: Value, eps: float | None = None) -> Value:
    if eps is not None:
        x = b.cast(x, torch.float32)
        x = b.pointwise("clamp", x, dtype=torch.float32, parameters=(eps, 1 - eps))
    return result(b, "logit", x)


@lowers(aten.clamp, aten.clamp_min, aten.clamp_max, aten.clip)
def clamp(b: Builder, x: Value, *bounds: Any, min: Any = None, max: Any = None) -> Value:
    name = b.op._schema.name.split("::")[1]
    if name == "clamp_max":
        low, high = None, (bounds or (max,))[0]
    else:
        low, high = (*bounds, None, None)[:2] if bounds else (min, max)
        high = max if high is None else high
    if any(_is_nan(bound) for bound in (low, high)):
        return b.fill(nan, b.like_meta())
    if isinstance(low, Value) or isinstance(high, Value):
        if low is not None:
            x = b.pointwise("maximum", x, low, dtype=b.meta.dtype)
        return x if high is None else b.pointwise("minimum", x, high, dtype=b.meta.dtype)
    if is_integer(b.meta.dtype) and not isinstance(low, float) and not isinstance(high, float):
        low, high = fitting(low, b.meta.dtype), fitting(high, b.meta.dtype)
        return result(
            b, "clamp", x, parameters=(-(2.0**31) if low is None else low, 2.0**31 - 1 if high is None else high)
        )
    if is_integer(x.dtype):
        x = b.cast(x, torch.float32)
    return _clamped(b, x, -inf if low is None else low, inf if high is None else high)


def _clamped(b: Builder, x: Value, low: Number, high: Number) -> Value:
    """A clamp whose bounds are rounded to the dtype of the result."""
    dtype = b.meta.dtype
    return result(b, "clamp", x, parameters=(as_kept(fitting(low, dtype), dtype), as_kept(fitting(high, dtype), dtype)))


def _is_nan(bound: Any) -> bool:
    return isinstance(bound, float) and not is_open(bound) and isnan(bound)  # a runtime scalar is no NaN here


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(b: Builder, condition: Value, x: Value | Number, y: Value | Number) -> Value:
    if condition.dtype != torch.bool:
        condition = b.cast(condition, torch.bool)
    if b.meta.dtype.is_floating_point:
        x, y = (as_kept(v, b.meta.dtype) if not isinstance(v, Value) else v for v in (x, y))
    x, y = fitting(x, b.meta.dtype), fitting(y, b.meta.dtype)
    return result(b, "where", condition, x, y)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Value | Number) -> Value:
    return where(b, mask, fitting(value, b.meta.dtype), x)


@lowers(aten.threshold.default)
def threshold(b: Builder, x: Value, limit: Number, value: Number) -> Value:
    if is_integer(x.dtype):
        limit, value = whole(limit), whole(value)
    below = b.pointwise("le", *compared((x, limit)), dtype=torch.bool)
    return masked_fill(b, x, below, value)


@lowers(aten.gelu.default)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    return result(b, f"gelu_{approximate}", x)


@lowers(aten.softplus.default)
def softplus(b: Builder, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    return result(b, "softplus", x, parameters=(beta, threshold))


@lowers(aten.elu.default)
def elu(b: Builder, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    if input_scale != 1:
        raise Unsupported("elu with an input_scale other than 1")
    if scale == 1:
        return result(b, "elu", x, parameters=(alpha,))
    return result(b, "mul", b.pointwise("elu", x, dtype=torch.float32, parameters=(alpha,)), real(scale))


@lowers(aten.leaky_relu.default)
def leaky_relu(b: Builder, x: Value, slope: Number = 0.01) -> Value:
    return result(b, "leaky_relu", x, parameters=(slope,))


@lowers(aten.hardtanh.default, aten.relu6.default)
def hardtanh(b: Builder, x: Value, low: Number = -1, high: Number = 1) -> Value:
    if b.op is aten.relu6.default:
        low, high = 0, 6
    return clamp(b, x, low, high)


@lowers(aten.nan_to_num.default)
def nan_to_num(
    b: Builder, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not x.dtype.is_floating_point:
        return b.copy(x)
    largest = torch.finfo(x.dtype).max
    values = (nan or 0.0, largest if posinf is None else posinf, -largest if neginf is None else neginf)
    return result(b, "nan_to_num", x, parameters=tuple(as_kept(value, x.dtype) for value in values))


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, x: Value, end: Value, weight: Value | Number) -> Value:
    return result(b, "lerp", x, end, weight if isinstance(weight, Value) else real(weight))


def _combined(b: Builder, name: str, x: Value, y: Value, z: Value, value: Number) -> Value:
    """x + value * (y op z); (y op z) stays in fp32."""
    if is_integer(b.meta.dtype):
        dtype = b.meta.dtype
        inner = b.pointwise("mul", b.pointwise(name, y, z, dtype=dtype), whole(value), dtype=dtype)
        return result(b, "add", x, inner)
    return result(b, "fma", b.pointwise(name, y, z, dtype=torch.float32), real(value), x)


@lowers(aten.addcmul.default)
def addcmul(b: Builder, x: Value, y: Value, z: Value, *, value: Number = 1) -> Value:
    return _combined(b, "mul", x, y, z, value)


@lowers(aten.addcdiv.default)
def addcdiv(b: Builder, x: Value, y: Value, z: Value, *, value: Number = 1) -> Value:
    return _combined(b, "div", x, y, z, value)
