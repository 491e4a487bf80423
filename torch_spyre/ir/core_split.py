"""The core split in a SuperDSC: how it writes the division of loops over cores. Emitter and rules share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

# How many of the last dimensions an op folds that cannot choose.
BY_NATURE = {"matmul": 1, "topk": 1, "attention": 2}


class Dim(NamedTuple):
    """One dimension of an iteration space and its division."""

    name: str
    size: int
    cores: int
    points: int  # that every core but the last takes


def divided(name: str, size: int, cores: int, unit: int) -> Dim:
    """Cores take equal parts, rounded up to ``unit``: whole sticks of every operand that lies along the dimension."""
    points = -(-size // cores)
    return Dim(name, size, cores, min(-(-points // unit) * unit, size) if cores > 1 else points)


@cache
def core_ids(count: int) -> list[str]:
    return [str(core) for core in range(count)]


@cache
def core_slices(slices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The slice of each dimension that each core takes: row-major, so that the last dimension's are neighbours."""
    return list(product(*map(range, slices)))


def json_number(value: float | str) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def is_runtime_scalar(value: Any) -> bool:
    """Whether this stands for a number that a launch gives: "%2" is number 2 of them."""
    return isinstance(value, str) and value[:1] == "%" and value[1:].isdecimal() and value.isascii() and len(value) < 9


def per_core(shape: Sequence[Dim]) -> dict[str, Any]:
    """``dataStageParam_``: what every core but the last takes of each dimension, and what is left for the last."""
    steady: dict[str, Any] = {"name_": "core"}
    rest: dict[str, Any] = {"name_": "core"}
    for name, size, cores, points in shape:
        steady[f"{name}_"] = points
        rest[f"{name}_"] = max(size - (cores - 1) * points, 0)
    return {"ss_": steady, "el_": rest}


def start_addresses(
    first: int, strides: Mapping[str, int], stick: str, elements: int, shape: Sequence[Dim], local: bool
) -> dict[str, Any]:
    """``startAddressCoreCorelet_``: where each core begins, in bytes from the beginning of the tensor's memory.

    ``local``: in LX, where every core has its own part at the same address.
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
    """``data_`` of a constant: the same bits for every core, or what stands for a number of the launch."""
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
    """``coordinateMasking_``: [[elements, padding]] of folded dimensions whose last stick is not full: what lies behind
    must not count. ``sticks``: the stick dimension of each input, and the elements of its sticks."""
    if kind not in ("reduction", "argreduce", *BY_NATURE):
        return {}
    return {
        dim: [[sizes[dim], -sizes[dim] % elements]]
        for dim, elements in sticks
        if dim in folded and sizes[dim] % elements
    }
