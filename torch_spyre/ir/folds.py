"""How a SuperDSC writes the division of work over cores: maps by core, and affine folds. Emitter and rules share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

Shape = Sequence[tuple[str, int, int]]  # (dimension, size, cores that share it)


@cache
def core_ids(count: int) -> list[str]:
    return [str(core) for core in range(count)]


@cache
def core_slices(slices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The slice of each dimension that each core takes: row-major, so that the last dimension's are neighbours."""
    return list(product(*map(range, slices)))


def json_number(value: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if math.isfinite(value) else str(value)


def per_core(dims: Sequence[str], sizes: Sequence[int], slices: Sequence[int]) -> dict[str, Any]:
    """``dataStageParam_``: what every core but the last takes of each dimension, and what is left for the last."""
    steady: dict[str, Any] = {"name_": "core"}
    rest: dict[str, Any] = {"name_": "core"}
    for dim, size, cores in zip(dims, sizes, slices, strict=True):
        points = -(-size // cores)
        steady[f"{dim}_"] = points
        rest[f"{dim}_"] = max(size - (cores - 1) * points, 0)
    return {"ss_": steady, "el_": rest}


def start_addresses(first: int, strides: Mapping[str, int], stick: str, elements: int, shape: Shape) -> dict[str, Any]:
    """``startAddressCoreCorelet_``: where each core begins, in bytes from the beginning of the tensor's memory."""
    found = [first]
    for dim, size, cores in shape:
        if cores > 1:
            points = -(-size // cores)
            step = (points // elements if dim == stick else points) * strides[dim]
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


def walk_of_cores(size: int, cores: int) -> dict[str, Any]:
    """``coordInfo`` of one dimension: coordinate = points * (slice of the core) + element."""
    points = -(-size // cores)
    return {
        "spatial": 3,
        "temporal": 0,
        "elemArr": 1,
        "padding": "nopad",
        "folds": {
            "dim_prop_func": [
                {"Affine": {"alpha_": points if cores > 1 else 0, "beta_": 0}},
                {"Affine": {"alpha_": 0, "beta_": 0}},
                {"Affine": {"alpha_": 0, "beta_": 0}},
                {"Affine": {"alpha_": 1, "beta_": 0}},
            ],
            "dim_prop_attr": [
                {"factor_": cores, "label_": "core_fold"},
                {"factor_": 1, "label_": "corelet_fold"},
                {"factor_": 1, "label_": "row_fold"},
                {"factor_": points, "label_": "elem_arr_0"},
            ],
        },
    }
