"""SuperDSC: one JSON file per op, with everything that a back end needs. The schema is in docs/superdsc.md."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from .superdsc_rules import verify
from .superdsc_schema import InvalidSuperDSC

if TYPE_CHECKING:
    from .op_spec import OpSpec

MOST_TEXT = 1 << 24  # characters of a file

__all__ = ["InvalidSuperDSC", "dumps", "emit", "loads", "show", "verify"]


def emit(spec: OpSpec, index: int) -> dict[str, Any]:
    """The SuperDSC of a verified OpSpec; ``index`` numbers it among the files of its kernel."""
    from .emit import superdsc  # needs sympy, which reading a file does not

    return superdsc(spec, index)


def dumps(dsc: dict[str, Any]) -> str:
    return json.dumps(dsc, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> dict[str, Any]:
    """``dumps(loads(text)) == text`` for every text that ``dumps`` wrote."""
    if len(text) > MOST_TEXT:
        raise InvalidSuperDSC(f"the text has {len(text)} characters, the limit is {MOST_TEXT}")
    try:
        dsc = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # not JSON, a number with thousands of digits, or nested too deeply
        raise InvalidSuperDSC(f"this is no JSON: {error}") from error
    if not isinstance(dsc, dict) or len(dsc) != 1:
        raise InvalidSuperDSC("this is no SuperDSC: it must be one object with one key, <number>_<op>")
    return dsc


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def body(dsc: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The name of a file, its outer object and the object of its op."""
    ((name, top),) = dsc.items()
    ((_, op),) = top["dscs_"][0].items()
    return name, top, op


def show(dsc: dict[str, Any]) -> str:
    """A summary in a few lines: dimensions and their division, tensors and their layout, constants."""
    name, top, op = body(dsc)
    compute, slices = op["computeOp_"][0], top["numWkSlicesPerDim_"]
    dims = ", ".join(f"{dim} {op['N_'][dim + '_']}/{slices[dim]}" for dim in op["dimOrder_"])
    folded = f", folds {' '.join(op['foldedDims_'])}" if op["foldedDims_"] else ""
    lines = [f"{name} on {compute['exUnit']}, {top['numCoresUsed_']} cores: {dims}{folded}"]
    if top["source_"]:
        lines.append(f"  from {top['source_']}")
    for label, node in zip(op["labeledDs_"], op["scheduleTree_"], strict=True):
        place = f"argument {label['argument_']}" if label["argument_"] >= 0 else f"pool at {label['poolOffset_']}"
        if node["component_"] == "lx":
            place = "lx of other cores" if node["coreStrides_"] else "lx"
        steps = [f"{dim} {step}" for dim, step in node["byteStrides_"].items() if step]
        stick = f", sticks along {node['stickDim_']}" if node["stickDim_"] else ""
        first = node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"]
        lines.append(
            f"  {label['dsType_']:<8} {label['dataFormat_']} in {place}, {label['sizeBytes_']} bytes, from {first}"
            f"; bytes per step: {', '.join(steps) or 'none'}{stick}"
        )
        lines += [
            f"    moved by Tensor{at['ldsIdx_']} in {at['extent_']} * {at['stride_']}" for at in node["indirect_"]
        ]
    lines += [f"  {constant['name_']} = {constant_value(constant)!r}" for constant in op["constantInfo_"].values()]
    if compute["parameters_"]:
        lines.append(f"  parameters {compute['parameters_']}")
    return "\n".join(lines)


def constant_value(constant: dict[str, Any]) -> float | str:
    """The number that a constant's bits encode, or the name of a runtime scalar."""
    (bits,) = constant["data_"]["data_"]["[0, 0, 0]"]
    if isinstance(bits, str):
        return bits
    if constant["dataFormat_"] == "IEEE_INT64":
        return float(bits - 2**64 if bits >= 2**63 else bits)
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
