"""One SuperDSC, one step of a card program."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.core_split import json_number
from ..ir.step import compute_step
from ..ir.superdsc import body, constant_value
from ..kernel_types import Constant, Description, Operand, Step
from ..ops.table import OPS


def step_of(dsc: Description, pool: int, moved: Mapping[int, int] | None = None) -> Step:
    """The step of a verified SuperDSC, without its tile.

    ``pool`` is the position of the pool among the arguments; ``moved`` are the bytes by which loops around the op have
    moved each tensor, by ldsIdx_.
    """
    _, top, op = body(dsc)
    dims, compute = op["dimOrder_"], op["computeOp_"][0]
    row = OPS[compute["opFuncName"]]
    tensors = [
        _operand(label, node, dims, pool, (moved or {}).get(label["ldsIdx_"], 0))
        for label, node in zip(op["labeledDs_"], op["scheduleTree_"], strict=True)
    ]
    named: dict[str, Operand | Constant] = {f"Tensor{i}-idx{i}": operand for i, operand in enumerate(tensors)}
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
    indirect = [index for node in op["scheduleTree_"] for index in node["indirect_"]]
    if indirect:
        step["indirect"] = [
            {
                "operand": 1 + inputs.index(f"Tensor{index['ldsIdx_']}-idx{index['ldsIdx_']}"),
                "extent": index["extent_"],
                "stride": index["stride_"],
                "stick": bool(index["stick_"]),
            }
            for index in indirect
        ]
    return step


def _operand(label: Description, node: Description, dims: list[str], pool: int, moved: int) -> Operand:
    offset = node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"] + moved
    argument = label["argument_"]
    strides, data_format = [node["byteStrides_"][dim] for dim in dims], label["dataFormat_"]
    operand: Operand
    if node["component_"] == "lx":
        operand = {"lx": offset, "strides": strides, "format": data_format}
    elif argument >= 0:
        operand = {"argument": argument, "offset": offset, "strides": strides, "format": data_format}
    else:
        offset += label["poolOffset_"]
        operand = {"argument": pool, "offset": offset, "strides": strides, "format": data_format}
    if node["coreStrides_"]:
        operand["core_strides"] = [node["coreStrides_"][dim] for dim in dims]
    if node["stickDim_"]:
        operand["stick"] = dims.index(node["stickDim_"])
    return operand


def _constant(constant: Description) -> Constant:
    value = constant_value(constant)
    integer = constant["dataFormat_"] == "IEEE_INT64"
    return {"value": json_number(value), "format": "IEEE_INT32" if integer else "IEEE_FP32"}
