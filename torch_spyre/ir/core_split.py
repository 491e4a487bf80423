"""The core split as a SuperDSC writes it: the division of loops over cores. The emitter and the rules share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

# How many of the last dimensions ops of these kinds always fold.
BY_NATURE = {"matmul": 1, "topk": 1, "attention": 2, "paged_attention": 4}


class Dim(NamedTuple):
    """One dimension of an iteration space and its division."""

    name: str
    size: int
    cores: int
    points: int  # of every core but the last, which takes the rest


def divided(name: str, size: int, cores: int, unit: int) -> Dim:
    """Divides a dimension into equal parts, rounded up to ``unit``, the sticks of all operands along it."""
    points = -(-size // cores)
    return Dim(name, size, cores, min(-(-points // unit) * unit, size) if cores > 1 else points)


@cache
def core_ids(count: int) -> list[str]:
    return [str(core) for core in range(count)]


@cache
def core_slices(slices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The slice of each dimension that each core takes: row-major, so cores that share the last one are neighbours."""
    return list(product(*map(range, slices)))


def json_number(value: float | str) -> float | str:
    """A number as JSON, which has no infinities and no NaN: these become strings."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def is_runtime_scalar(value: Any) -> bool:
    """Whether a value is a runtime scalar, which a launch gives: "%2" is number 2."""
    return isinstance(value, str) and value[:1] == "%" and value[1:].isdecimal() and value.isascii() and len(value) < 9


def per_core(shape: Sequence[Dim]) -> dict[str, Any]:
    """``dataStageParam_``: the points of each dimension that every core but the last takes, and those of the last."""
    steady: dict[str, Any] = {"name_": "core"}
    rest: dict[str, Any] = {"name_": "core"}
    for name, size, cores, points in shape:
        steady[f"{name}_"] = points
        rest[f"{name}_"] = max(size - (cores - 1) * points, 0)
    return {"ss_": steady, "el_": rest}


def start_addresses(
    first: int, strides: Mapping[str, int], stick: str, elements: int, shape: Sequence[Dim], local: bool
) -> dict[str, Any]:
    """``startAddressCoreCorelet_``: each core's first byte, counted from the start of the tensor's memory.

    ``local``: the tensor is in LX, where every core has its own part at the same address.
    """
    found = [first]
    for dim, _, cores, points in shape:
        if cores > 1:
            step = 0 if local else (points // elements if dim == stick else points) * strides[dim]
            found = [address + i * step for address in found for i in range(cores)]
    return {
        "dim_prop_func": [{"Map": {}}, {"Const": {}}, {"Const": {}}],
        "dim_prop_attr": [
            {"factor_": len(found), "label_": "core"},
            {"factor_": 1, "label_": "corelet"},
            {"factor_": 1, "label_": "time"},
        ],
        "data_": dict(zip(_address_keys(len(found)), found, strict=True)),
    }


@cache
def _address_keys(count: int) -> list[str]:
    return [f"[{core}, 0, 0]" for core in range(count)]


def walk_of_cores(dim: Dim) -> dict[str, Any]:
    """``coordInfo`` of one dimension: coordinate = points * (slice of the core) + element."""
    return {
        "spatial": 3,
        "temporal": 0,
        "elemArr": 1,
        "padding": "nopad",
        "folds": {
            "dim_prop_func": [
                {"Affine": {"alpha_": dim.points if dim.cores > 1 else 0, "beta_": 0}},
                {"Affine": {"alpha_": 0, "beta_": 0}},
                {"Affine": {"alpha_": 0, "beta_": 0}},
                {"Affine": {"alpha_": 1, "beta_": 0}},
            ],
            "dim_prop_attr": [
                {"factor_": dim.cores, "label_": "core_fold"},
                {"factor_": 1, "label_": "corelet_fold"},
                {"factor_": 1, "label_": "row_fold"},
                {"factor_": dim.points, "label_": "elem_arr_0"},
            ],
        },
    }


def constant_data(bits: int | str) -> dict[str, Any]:
    """``data_`` of a constant: the same bits, or the same runtime scalar, for every core."""
    return {
        "dim_prop_func": [{"Const": {}}, {"Const": {}}, {"Map": {}}],
        "dim_prop_attr": [
            {"factor_": 1, "label_": "core"},
            {"factor_": 1, "label_": "corelet"},
            {"factor_": 1, "label_": "time"},
        ],
        "data_": {"[0, 0, 0]": [bits]},
    }


def masked_tails(
    kind: str, sticks: Sequence[tuple[str, int]], folded: Sequence[str], sizes: Mapping[str, int]
) -> dict[str, list[list[int]]]:
    """``coordinateMasking_``: [[elements, padding]] of folded dimensions whose last stick is not full.

    The padding must not take part in the fold. ``sticks`` has each input's stick dimension and elements per stick.
    """
    if kind not in ("reduction", "argreduce", *BY_NATURE):
        return {}
    return {
        dim: [[sizes[dim], -sizes[dim] % elements]]
        for dim, elements in sticks
        if dim in folded and sizes[dim] % elements
    }
