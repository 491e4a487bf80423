"""Arguments as text: a file, random values of a shape, or a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..ir.ktir.source import KtirError

_TYPES: dict[str, Any] = {
    **dict.fromkeys(("f16", "fp16", "float16"), np.float16),
    **dict.fromkeys(("f32", "fp32", "float32"), np.float32),
    **dict.fromkeys(("bf16", "bfloat16"), torch.bfloat16),
    **dict.fromkeys(("i8", "int8"), np.int8),
    **dict.fromkeys(("i16", "int16"), np.int16),
    **dict.fromkeys(("i32", "int32"), np.int32),
    **dict.fromkeys(("i64", "int64", "index"), np.int64),
    **dict.fromkeys(("i1", "bool"), np.bool_),
    **dict.fromkeys(("u8", "uint8"), np.uint8),
}
MOST_ELEMENTS = 1 << 32
_RANDOM = re.compile(r"(\d+(?:x\d+)*)@(\w+)")


def type_named(name: str) -> Any:
    if name not in _TYPES:
        raise KtirError(f"there is no type {name}; there are {', '.join(_TYPES)}")
    return _TYPES[name]


def array(shape: list[int], of: Any, generator: np.random.Generator | None) -> Any:
    """Random values, or zeros without a generator."""
    count = 1
    for n in shape:
        count *= n
    if count > MOST_ELEMENTS:
        raise KtirError(f"an array of the shape {shape} has more than {MOST_ELEMENTS} elements")
    if of is torch.bfloat16:
        return torch.from_numpy(array(shape, np.float32, generator)).to(torch.bfloat16)
    if generator is None:
        return np.zeros(shape, of)
    if np.issubdtype(of, np.floating):
        return generator.standard_normal(shape, np.float32).astype(of)
    return generator.integers(0, 2 if of is np.bool_ else 100, shape).astype(of)


def value(text: str, seed: int) -> Any:
    """`10x512@f16` is random, a number is a number, and everything else is a .npy file."""
    if match := _RANDOM.fullmatch(text):
        return array([int(n) for n in match[1].split("x")], type_named(match[2]), np.random.default_rng(seed))
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d*(e-?\d+)?", text):
        return float(text)
    return np.load(Path(text), allow_pickle=False)


def pairs(texts: list[str]) -> dict[str, str]:
    """`name=value` each."""
    found = {}
    for text in texts:
        name, separator, rest = text.partition("=")
        if not separator or not name:
            raise KtirError(f"{text!r} is not NAME=VALUE")
        found[name] = rest
    return found


def save(path: Path, result: Any) -> None:
    """bfloat16 as float32, which NumPy has."""
    if isinstance(result, torch.Tensor):
        result = (result.float() if result.dtype is torch.bfloat16 else result).numpy()
    np.save(path, result)


def summary(name: str, result: Any) -> str:
    values = np.asarray(result.float() if isinstance(result, torch.Tensor) else result).astype(np.float64)
    if not values.size:
        return f"{name} {list(values.shape)}"
    return f"{name} {list(values.shape)}: min {values.min():g}, max {values.max():g}, mean {values.mean():g}"
