"""The rules of a SuperDSC: tables of (field, predicate, message), for a whole file and for each of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from ..card import description
from ..card.description import STICK_BYTES
from ..ops.table import OPS
from .core_split import (
    BY_NATURE,
    constant_data,
    core_ids,
    is_runtime_scalar,
    masked_tails,
    per_core,
    start_addresses,
    walk_of_cores,
)
from .superdsc_schema import InvalidSuperDSC, check_fields
from .superdsc_view import (
    FORMATS,
    MOST_DIMENSIONS,
    MOST_TENSORS,
    File,
    Tensor,
    elements_of,
    is_count,
    is_distance,
    row_major,
)

Subject = TypeVar("Subject")


def verify(dsc: dict[str, Any], cores: int | None = None) -> None:
    """Raises InvalidSuperDSC for the first rule that does not hold. ``cores`` are those of the card."""
    name = next(iter(dsc), "")
    file = File(dsc, cores or int(description.constants()["cores"]))
    try:
        check_fields(name, file.top)
    except _WRONG_KIND as error:
        if isinstance(error, InvalidSuperDSC):
            raise
        raise InvalidSuperDSC(f"{name[:99]}: the objects of the file are incomplete: {_seen(error)}") from error
    for i, label in enumerate(file.labels):  # first, because the rules below use stick sizes, which follow from formats
        _apply(name, "labeledDs_[{i}].dataFormat_", _stored, label, "must be a number format that the card stores", i)
    for path, holds, message in RULES:
        _apply(name, path, holds, file, message)
    for i in range(len(file.labels)):
        tensor = Tensor(file, i)
        for path, tensor_holds, message in TENSOR_RULES:
            _apply(name, path, tensor_holds, tensor, message, i)


def _apply(name: str, path: str, holds: Callable[[Subject], bool], part: Subject, message: str, i: int = 0) -> None:
    try:
        if holds(part):
            return
    except _WRONG_KIND as error:
        raise InvalidSuperDSC(f"{name[:99]}: {path.format(i=i)}: {message} ({_seen(error)})") from error
    raise InvalidSuperDSC(f"{name[:99]}: {path.format(i=i)}: {message}")


# The errors that a rule raises if a value has another type than it expects.
_WRONG_KIND = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError)


def _seen(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:200]


Rule = tuple[str, Callable[[File], bool], str]
TensorRule = tuple[str, Callable[[Tensor], bool], str]

RULES: list[Rule] = [
    ("dscs_", lambda f: len(f.top["dscs_"]) == 1 and f.name in OPS, "must hold one op of the op table"),
    ("<top key>", lambda f: bool(re.fullmatch(rf"\d+_{f.name}", next(iter(f.dsc)))), "must be <number>_<op>"),
    (
        "source_",
        lambda f: isinstance(f.top["source_"], str) and len(f.top["source_"]) < 1 << 16,
        "must be a text of less than 2^16 characters",
    ),
    ("numCoresUsed_", lambda f: is_count(f.cores, 1) and f.cores <= f.card_cores, "must be 1 to the number of cores"),
    (
        "sdscFoldProps_",
        lambda f: f.top["sdscFoldProps_"] == [{"factor_": 1, "label_": "time"}],
        "must be one time fold of factor 1",
    ),
    (
        "sdscFolds_",
        lambda f: (
            f.top["sdscFolds_"]["dim_prop_attr"] == f.top["sdscFoldProps_"]
            and f.top["sdscFolds_"]["dim_prop_func"] == [{"Affine": {"alpha_": 1, "beta_": 0}}]
            and f.top["sdscFolds_"]["data_"] == {"[0]": "0"}
        ),
        "must be one time fold of factor 1",
    ),
    (
        "coreFoldProp_",
        lambda f: f.top["coreFoldProp_"] == {"factor_": f.cores, "label_": "core"},
        "must be a fold of numCoresUsed_",
    ),
    (
        "coreletFoldProp_",
        lambda f: f.top["coreletFoldProp_"] == {"factor_": 1, "label_": "corelet"},
        "must be a fold of 1",
    ),
    (
        "dimOrder_",
        lambda f: (
            isinstance(f.dims, list)
            and len(set(f.dims)) == len(f.dims) > 0
            and len(f.dims) <= MOST_DIMENSIONS
            and all(isinstance(dim, str) and dim for dim in f.dims)
        ),
        f"must name every dimension once, {MOST_DIMENSIONS} at most",
    ),
    (
        "N_",
        lambda f: (
            f.op["N_"].keys() == {"name_", *(f"{dim}_" for dim in f.dims)}
            and f.op["N_"]["name_"] == "n"
            and all(is_count(size, 1) for size in f.sizes)
        ),
        "must give every dimension of dimOrder_ a size of at least 1",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: (
            f.top["numWkSlicesPerDim_"].keys() == set(f.dims)
            and all(is_count(cores, 1) and cores <= size for size, cores in zip(f.sizes, f.slices, strict=True))
            and prod(f.slices) == f.cores
        ),
        "must have a count for every dimension, numCoresUsed_ slices in all",
    ),
    (
        "coreIdToDsc_",
        lambda f: f.top["coreIdToDsc_"] == dict.fromkeys(core_ids(f.cores), 0),
        "must map every core to 0",
    ),
    (
        "coreIdToWkSlice_",
        lambda f: f.top["coreIdToWkSlice_"] == row_major(tuple(f.dims), f.slices),
        "must number the slices in row-major order, the last dimension fastest",
    ),
    (
        "coreIdToDscSchedule",
        lambda f: f.top["coreIdToDscSchedule"] == {core: [[-1, 0, 0, 0]] for core in core_ids(f.cores)},
        "must schedule dsc 0 on every core",
    ),
    ("dscs_[0].numCoresUsed_", lambda f: f.op["numCoresUsed_"] == f.cores, "must equal the outer numCoresUsed_"),
    ("numCoreletsUsed_", lambda f: f.op["numCoreletsUsed_"] == 1, "must be 1"),
    ("coreIdsUsed_", lambda f: f.op["coreIdsUsed_"] == list(range(f.cores)), "must count the cores from 0"),
    (
        "foldedDims_",
        lambda f: (
            f.folded == f.dims[len(f.dims) - len(f.folded) :]
            and bool(f.folded) == (f.row.kind in ("reduction", "argreduce", *BY_NATURE))
            and len(f.folded) == BY_NATURE.get(f.row.kind, len(f.folded))
        ),
        "must be the last dimensions, as many as the op folds",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: sum(dim.cores > 1 for dim in f.shape if dim.name in f.folded) <= 1,
        "may divide at most one folded dimension",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: not f.row.is_attention or all(dim.cores == 1 for dim in f.shape[-3:]),
        "must not divide the output, key and depth dimensions of attention",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: not f.row.is_paged or (len(f.shape) == 8 and all(f.shape[i].cores == 1 for i in (1, 2, 3, 4, 5, 7))),
        "must divide heads and keys alone in paged attention",
    ),
    (
        "dataStageParam_",
        lambda f: f.op["dataStageParam_"] == {"0": per_core(f.shape)},
        "must be the points per core that follow from N_ and numWkSlicesPerDim_",
    ),
    (
        "labeledDs_",
        lambda f: len(f.labels) == len(f.nodes) > 0 and len(f.labels) <= MOST_TENSORS,
        f"must have one entry per node of scheduleTree_, the written tensor last, {MOST_TENSORS} at most",
    ),
    (
        "primaryDsInfo_",
        lambda f: f.op["primaryDsInfo_"].keys() == {label["dsType_"] for label in f.labels},
        "must have one entry per dsType_",
    ),
    (
        "constantInfo_",
        lambda f: (
            len(f.constants) <= MOST_TENSORS
            and list(f.op["constantInfo_"]) == [str(i) for i in range(len(f.constants))]
            and all(_constant(constant) for constant in f.constants)
            and len({*f.references, *(constant["name_"] for constant in f.constants)})
            == len(f.references) + len(f.constants)
        ),
        "must number constants from 0; each has a unique name, and bits of IEEE_FP32 or IEEE_INT64 or a runtime scalar",
    ),
    (
        "coordinateMasking_",
        lambda f: (
            f.op["coordinateMasking_"]
            == masked_tails(f.row.kind, f.sticks, f.folded, dict(zip(f.dims, f.sizes, strict=True)))
        ),
        "must give [[size, padding]] of the folded dimensions whose last stick is not full",
    ),
    (
        "maskingConstId_",
        lambda f: is_count(f.op["maskingConstId_"], -1, len(f.constants) - 1),
        "must be -1 or the number of a constant",
    ),
    (
        "indirectAccessIndexLabeledDs",
        lambda f: (
            f.op["indirectAccessIndexLabeledDs"] == [f.references[i] for i in f.indices]
            and bool(f.indices) == f.row.has_indices
        ),
        "must name the index tensors that a gather, scatter or paged attention uses",
    ),
    ("computeOp_", lambda f: len(f.op["computeOp_"]) == 1, "must hold one operation"),
    ("computeOp_[0].opFuncName", lambda f: f.compute["opFuncName"] == f.name, "must be the op of the file"),
    ("computeOp_[0].exUnit", lambda f: f.compute["exUnit"] == f.row.unit, "must be the unit of the op table"),
    (
        "computeOp_[0].attributes_",
        lambda f: f.compute["attributes_"] == {"dataFormat_": f.labels[-1]["dataFormat_"], "fidelity_": "regular"},
        "must have the format of the result, and fidelity regular",
    ),
    ("computeOp_[0].location", lambda f: f.compute["location"] == "Inner", "must be Inner"),
    (
        "computeOp_[0].inputLabeledDs",
        lambda f: (
            [name for name in f.compute["inputLabeledDs"] if name in f.references] == f.references[:-1]
            and set(f.compute["inputLabeledDs"]) <= {*f.references, *(constant["name_"] for constant in f.constants)}
            and len(f.compute["inputLabeledDs"]) == f.row.arity + len(f.indices)
        ),
        "must list the op's inputs: tensors in their order, constants by name",
    ),
    (
        "computeOp_[0].outputLabeledDs",
        lambda f: f.compute["outputLabeledDs"] == f.references[-1:],
        "must be the last tensor",
    ),
    (
        "computeOp_[0].parameters_",
        lambda f: len(f.compute["parameters_"]) == _parameter_count(f) and all(map(_number, f.compute["parameters_"])),
        "must have as many numbers as the op takes",
    ),
    ("computeOp_[0].checked_", lambda f: f.compute["checked_"] in (0, 1), "must be 0 or 1"),
]

TENSOR_RULES: list[TensorRule] = [
    ("labeledDs_[{i}].ldsIdx_", lambda t: t.label["ldsIdx_"] == t.index, "must be its position"),
    ("labeledDs_[{i}].dsName_", lambda t: t.label["dsName_"] == f"Tensor{t.index}", "must be Tensor<position>"),
    (
        "labeledDs_[{i}].dsType_",
        lambda t: t.has_role_in_order(),
        "must be INPUT, KERNEL, INPUT2 ..., KERNEL_IDX ..., OUTPUT in order",
    ),
    ("labeledDs_[{i}].scale_", lambda t: t.label["scale_"] == [1] * len(t.file.dims), "must be 1 per dimension"),
    (
        "labeledDs_[{i}].wordLength",
        lambda t: t.label["wordLength"] == STICK_BYTES // t.elements,
        "must be the bytes of an element of dataFormat_",
    ),
    ("scheduleTree_[{i}].component_", lambda t: t.node["component_"] in ("hbm", "lx"), "must be hbm or lx"),
    (
        "labeledDs_[{i}].memOrg_",
        lambda t: (
            t.label["memOrg_"]
            == {memory: {"isPresent": int(memory == t.node["component_"])} for memory in ("hbm", "lx")}
        ),
        "must be present in the memory that component_ names",
    ),
    (
        "labeledDs_[{i}].argument_",
        lambda t: t.has_one_place(),
        "exactly one of argument_, poolOffset_ and lx must give the place",
    ),
    (
        "labeledDs_[{i}].sizeBytes_",
        lambda t: is_count(t.label["sizeBytes_"], 1) and t.label["sizeBytes_"] % STICK_BYTES == 0,
        "must be a multiple of the stick size",
    ),
    ("scheduleTree_[{i}].nodeType_", lambda t: t.node["nodeType_"] == "allocate", "must be allocate"),
    ("scheduleTree_[{i}].ldsIdx_", lambda t: t.node["ldsIdx_"] == t.index, "must be its position"),
    (
        "scheduleTree_[{i}].name_",
        lambda t: t.node["name_"] == f"allocate-Tensor{t.index}_{t.node['component_']}",
        "must be allocate-Tensor<position>_<component>",
    ),
    ("scheduleTree_[{i}].prev_", lambda t: t.node["prev_"] == "", "must be empty"),
    (
        "scheduleTree_[{i}].byteStrides_",
        lambda t: (
            t.strides.keys() == set(t.file.dims)
            and all(is_distance(step) and step % t.label["wordLength"] == 0 for step in t.strides.values())
        ),
        "must be a multiple of the element size for every dimension",
    ),
    (
        "scheduleTree_[{i}].byteStrides_",
        lambda t: not t.is_output or not any(t.strides[dim] for dim in t.file.folded),
        "must be 0 along folded dimensions of the result",
    ),
    (
        "scheduleTree_[{i}].stickDim_",
        lambda t: t.stick == "" or (t.stick in t.file.dims and t.strides[t.stick] % STICK_BYTES == 0),
        "must be a dimension whose stride is a multiple of the stick size, or empty",
    ),
    (
        "scheduleTree_[{i}].layoutDimOrder_",
        lambda t: t.node["layoutDimOrder_"] == t.layout(),
        "must order the dimensions by falling byteStrides_",
    ),
    (
        "scheduleTree_[{i}].maxDimSizes_",
        lambda t: t.node["maxDimSizes_"] == [-1] * len(t.layout()),
        "must be -1 per dimension: N_ has the sizes",
    ),
    (
        "primaryDsInfo_ of labeledDs_[{i}]",
        lambda t: (
            t.file.op["primaryDsInfo_"][t.label["dsType_"]]
            == {
                "layoutDimOrder_": t.node["layoutDimOrder_"],
                "stickDimOrder_": [t.stick] if t.stick else [],
                "stickSize_": [t.elements],
            }
        ),
        "must agree with the allocate node and the format",
    ),
    (
        "numWkSlicesPerDim_",
        lambda t: t.separates_cores(),
        "two cores would write into one stick",
    ),
    (
        "scheduleTree_[{i}].startAddressCoreCorelet_",
        lambda t: (
            is_count(t.first_address)
            and t.first_address % (STICK_BYTES if t.stick else t.label["wordLength"]) == 0
            and t.node["startAddressCoreCorelet_"]
            == start_addresses(t.first_address, t.strides, t.stick, t.elements, t.file.shape, t.is_core_local)
        ),
        "must be the address of core 0 plus byteStrides_ times the start of each core's slice",
    ),
    (
        "scheduleTree_[{i}].coreStrides_",
        lambda t: t.has_valid_core_strides(),
        "must be empty, or lead an input of a copy without conversion to LX of cores of the card, 0 along sticks",
    ),
    (
        "scheduleTree_[{i}].startAddressCoreCorelet_",
        lambda t: t.is_within_size(),
        "an access is outside the tensor's sizeBytes_",
    ),
    (
        "scheduleTree_[{i}].component_",
        lambda t: t.may_be_in_lx(),
        "a tensor in lx must fit there, and its op must not divide a folded dimension over cores",
    ),
    (
        "scheduleTree_[{i}].byteStrides_",
        lambda t: t.is_within_span(),
        "one core uses more bytes of the tensor than its span",
    ),
    (
        "scheduleTree_[{i}].isStartAddrSymbolic_",
        lambda t: t.node["isStartAddrSymbolic_"] == int(t.node["component_"] == "hbm"),
        "must be 1 in device memory, 0 in lx",
    ),
    (
        "scheduleTree_[{i}].backGapCore_",
        lambda t: t.node["backGapCore_"] == t.last_stick_padding(),
        "must be the last stick's padding",
    ),
    (
        "scheduleTree_[{i}].coordinates_",
        lambda t: (
            t.node["coordinates_"]
            == {
                "coordInfo": {dim.name: walk_of_cores(dim) for dim in t.file.shape if t.strides[dim.name]},
                "coreIdToWkSlice_": {},
            }
        ),
        "must be the folds that follow from N_ and numWkSlicesPerDim_",
    ),
    (
        "scheduleTree_[{i}].loopStrides_",
        lambda t: (
            len(t.node["loopStrides_"]) <= MOST_DIMENSIONS
            and all(is_distance(step) and step % t.label["wordLength"] == 0 for step in t.node["loopStrides_"].values())
        ),
        "must be multiples of the element size",
    ),
    (
        "scheduleTree_[{i}].indirect_",
        lambda t: (
            t.may_have_indices()
            and all(
                is_count(index["ldsIdx_"], 0, len(t.file.labels) - 2)
                and is_count(index["extent_"], 1)
                and is_distance(index["stride_"])
                and index["stick_"] in (0, 1)
                for index in t.node["indirect_"]
            )
        ),
        "only the first input of a gather, the output of a scatter, keys and values have indices, each in [0, extent_)",
    ),
    (
        "scheduleTree_[{i}].indirectAllocType_",
        lambda t: t.node["indirectAllocType_"] == (t.file.row.kind if t.node["indirect_"] else "none"),
        "must be the kind of the op if the tensor has indirect_, otherwise none",
    ),
    (
        "scheduleTree_[{i}].relatedIndirectAccessAlloc_",
        lambda t: (
            t.node["relatedIndirectAccessAlloc_"]
            == [f"allocate-Tensor{index['ldsIdx_']}_hbm" for index in t.node["indirect_"]]
        ),
        "must name the allocations of its indices",
    ),
]


def _stored(label: dict[str, Any]) -> bool:
    return label["dataFormat_"] in FORMATS and elements_of(label["dataFormat_"]) > 0


def _constant(constant: dict[str, Any]) -> bool:
    (bits,) = constant["data_"]["data_"]["[0, 0, 0]"]
    width = {"IEEE_FP32": 32, "IEEE_INT64": 64}[constant["dataFormat_"]]
    return (
        (is_runtime_scalar(bits) or is_count(bits, 0, 2**width - 1))
        and isinstance(constant["name_"], str)
        and constant["data_"] == constant_data(bits)
    )


def _number(value: Any) -> bool:
    return (
        is_count(value, -(2**64), 2**64)
        or type(value) is float
        or value in ("inf", "-inf", "nan")
        or is_runtime_scalar(value)
    )


def _parameter_count(file: File) -> int:
    """How many parameters the op has in the file: its own, after the start value of a fold or scan."""
    if file.row.is_paged and len(file.sizes) != 8:
        return -1
    return file.row.parameter_count(file.sizes) + (file.row.kind in ("reduction", "scan"))
