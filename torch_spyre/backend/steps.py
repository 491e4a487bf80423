"""One SuperDSC, one step of a card program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.core_split import json_number
from ..ir.step import compute_step
from ..ir.superdsc import body, constant_value
from ..ops.table import OPS


def step_of(dsc: dict[str, Any], pool: int, moved: Mapping[int, int] | None = None) -> dict[str, Any]:
    """The step as the card takes it, without its tile. ``pool``: the argument that is the kernel's own memory;
    ``moved``: bytes by which loops around the op have moved each tensor, by ldsIdx_."""
    _, top, op = body(dsc)
    dims, compute = op["dimOrder_"], op["computeOp_"][0]
    row = OPS[compute["opFuncName"]]
    tensors = [
        _operand(label, node, dims, pool, (moved or {}).get(label["ldsIdx_"], 0))
        for label, node in zip(op["labeledDs_"], op["scheduleTree_"], strict=True)
    ]
    named = {f"Tensor{i}-idx{i}": operand for i, operand in enumerate(tensors)}
    named |= {constant["name_"]: _constant(constant) for constant in op["constantInfo_"].values()}
    inputs = compute["inputLabeledDs"]
    step = compute_step(
        row,
        [op["N_"][f"{dim}_"] for dim in dims],
        [top["numWkSlicesPerDim_"][dim] for dim in dims],
        [tensors[-1], *(named[each] for each in inputs)],
        reduced=len(op["foldedDims_"]),
        constants=compute["parameters_"],
    )
    if compute["checked_"]:
        step["checked"] = True
    if top["source_"]:
        step["source"] = top["source_"]
    indirect = [at for node in op["scheduleTree_"] for at in node["indirect_"]]
    if indirect:
        step["indirect"] = [
            {
                "operand": 1 + inputs.index(f"Tensor{at['ldsIdx_']}-idx{at['ldsIdx_']}"),
                "extent": at["extent_"],
                "stride": at["stride_"],
                "stick": bool(at["stick_"]),
            }
            for at in indirect
        ]
    return step


def _operand(label: dict[str, Any], node: dict[str, Any], dims: list[str], pool: int, moved: int) -> dict[str, Any]:
    offset = node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"] + moved
    argument = label["argument_"]
    if node["component_"] == "lx":
        place = {"lx": offset}
    elif argument >= 0:
        place = {"argument": argument, "offset": offset}
    else:
        place = {"argument": pool, "offset": offset + label["poolOffset_"]}
    operand = place | {
        "strides": [node["byteStrides_"][dim] for dim in dims],
        "format": label["dataFormat_"],
    }
    if node["coreStrides_"]:
        operand["core_strides"] = [node["coreStrides_"][dim] for dim in dims]
    return operand | {"stick": dims.index(node["stickDim_"])} if node["stickDim_"] else operand


def _constant(constant: dict[str, Any]) -> dict[str, Any]:
    value = constant_value(constant)
    integer = constant["dataFormat_"] == "IEEE_INT64"
    return {"value": json_number(value), "format": "IEEE_INT32" if integer else "IEEE_FP32"}
