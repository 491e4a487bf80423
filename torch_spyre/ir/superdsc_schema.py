"""The fields that each object of a SuperDSC must have, no more and no less; docs/superdsc.md says what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class InvalidSuperDSC(ValueError):
    """A SuperDSC that breaks a rule. The message names file and field."""


def _fields(names: str) -> frozenset[str]:
    return frozenset(names.split())


TOP = _fields(
    "source_ sdscFoldProps_ sdscFolds_ coreFoldProp_ coreletFoldProp_ numCoresUsed_ coreIdToDsc_ numWkSlicesPerDim_ "
    "coreIdToWkSlice_ coreIdToDscSchedule dscs_"
)
OP = _fields(
    "numCoresUsed_ numCoreletsUsed_ coreIdsUsed_ dimOrder_ foldedDims_ N_ dataStageParam_ primaryDsInfo_ scheduleTree_ "
    "labeledDs_ constantInfo_ coordinateMasking_ maskingConstId_ indirectAccessIndexLabeledDs computeOp_"
)
LABELED = _fields("ldsIdx_ dsName_ dsType_ scale_ wordLength dataFormat_ memOrg_ argument_ poolOffset_ sizeBytes_")
NODE = _fields(
    "nodeType_ name_ prev_ ldsIdx_ component_ layoutDimOrder_ maxDimSizes_ startAddressCoreCorelet_ "
    "isStartAddrSymbolic_ backGapCore_ coordinates_ byteStrides_ stickDim_ coreStrides_ loopStrides_ "
    "indirectAllocType_ relatedIndirectAccessAlloc_ indirect_"
)
COMPUTE = _fields("exUnit opFuncName attributes_ location inputLabeledDs outputLabeledDs parameters_ checked_")
CONSTANT = _fields("dataFormat_ name_ data_")
INDIRECT = _fields("ldsIdx_ extent_ stride_ stick_")


def check_fields(name: str, top: dict[str, Any]) -> None:
    """Raises InvalidSuperDSC for the first field that is missing or unknown."""
    for path, given, wanted in _objects(top):
        if given.keys() == wanted:
            continue
        prefix = f"{path}." if path else ""
        for field in sorted(wanted - given.keys()):
            raise InvalidSuperDSC(f"{name[:99]}: {prefix}{field}: is missing")
        for field in sorted(given.keys() - wanted):
            raise InvalidSuperDSC(f"{name[:99]}: {prefix}{field[:99]}: is no field of a SuperDSC")


def _objects(top: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], frozenset[str]]]:
    """Path, content and fields of each object of a file. Outer objects come first: they lead to the inner ones."""
    yield "", top, TOP
    ((op_name, op),) = top["dscs_"][0].items()
    yield f"dscs_[0].{op_name}", op, OP
    for i, label in enumerate(op["labeledDs_"]):
        yield f"labeledDs_[{i}]", label, LABELED
    for i, node in enumerate(op["scheduleTree_"]):
        yield f"scheduleTree_[{i}]", node, NODE
        for each in node["indirect_"]:
            yield f"scheduleTree_[{i}].indirect_", each, INDIRECT
    yield "computeOp_[0]", op["computeOp_"][0], COMPUTE
    for i, constant in op["constantInfo_"].items():
        yield f"constantInfo_.{i}", constant, CONSTANT
