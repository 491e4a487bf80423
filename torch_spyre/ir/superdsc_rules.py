"""What must hold of a SuperDSC: a table of (field, predicate, message)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeVar

from .._C import DataFormats
from ..card import description
from ..card.description import STICK_BYTES
from ..ops.table import OPS, OpRow
from .core_split import (
    BY_NATURE,
    Dim,
    constant_data,
    core_ids,
    core_slices,
    divided,
    is_runtime_scalar,
    masked_tails,
    per_core,
    start_addresses,
    walk_of_cores,
)

# What a file may ask for at most; docs/superdsc.md says why. The card's own limits come on top.
MOST_DIMENSIONS = 64
MOST_TENSORS = 64
MOST_ARGUMENTS = 1 << 16
MOST_BYTES = 1 << 40
Subject = TypeVar("Subject")


class InvalidSuperDSC(ValueError):
    """A SuperDSC that breaks a rule. The message names file and field."""


def verify(dsc: dict[str, Any], cores: int | None = None) -> None:
    """Raises InvalidSuperDSC at the first rule that does not hold. ``cores``: of the card."""
    name = next(iter(dsc), "")
    view = _File(dsc, cores or int(description.constants()["cores"]))
    try:
        for path, fields, wanted in _objects(view):
            _same_fields(name, path, fields, wanted)
    except _WRONG_KIND as error:
        if isinstance(error, InvalidSuperDSC):
            raise
        raise InvalidSuperDSC(f"{name[:99]}: the file lacks its frame: {_seen(error)}") from error
    for i, label in enumerate(view.labels):  # first: stick sizes, which the rules below use, follow from it
        _apply(name, "labeledDs_[{i}].dataFormat_", _stored, label, "must be a number format that the card stores", i)
    for path, holds, message in RULES:
        _apply(name, path, holds, view, message)
    for i in range(len(view.labels)):
        tensor = _Tensor(view, i)
        for path, tensor_holds, message in TENSOR_RULES:
            _apply(name, path, tensor_holds, tensor, message, i)


def _apply(name: str, path: str, holds: Callable[[Subject], bool], part: Subject, message: str, i: int = 0) -> None:
    try:
        if holds(part):
            return
    except _WRONG_KIND as error:
        raise InvalidSuperDSC(f"{name[:99]}: {path.format(i=i)}: {message} ({_seen(error)})") from error
    raise InvalidSuperDSC(f"{name[:99]}: {path.format(i=i)}: {message}")


# What a rule raises on a value of another kind than it expects.
_WRONG_KIND = (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError)


def _seen(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:200]


def _same_fields(name: str, path: str, given: dict[str, Any], wanted: frozenset[str]) -> None:
    if given.keys() == wanted:
        return
    prefix = f"{path}." if path else ""
    for field in sorted(wanted - given.keys()):
        raise InvalidSuperDSC(f"{name[:99]}: {prefix}{field}: is missing")
    for field in sorted(given.keys() - wanted):
        raise InvalidSuperDSC(f"{name[:99]}: {prefix}{field[:99]}: is no field of a SuperDSC")


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


def _objects(view: _File) -> Iterator[tuple[str, dict[str, Any], frozenset[str]]]:
    yield "", view.top, TOP
    yield view.path, view.op, OP
    for i, label in enumerate(view.labels):
        yield f"labeledDs_[{i}]", label, LABELED
    for i, node in enumerate(view.nodes):
        yield f"scheduleTree_[{i}]", node, NODE
        for each in node["indirect_"]:
            yield f"scheduleTree_[{i}].indirect_", each, INDIRECT
    yield "computeOp_[0]", view.op["computeOp_"][0], COMPUTE
    for i, constant in view.op["constantInfo_"].items():
        yield f"constantInfo_.{i}", constant, CONSTANT


FORMATS: dict[str, DataFormats] = dict(DataFormats.__members__)


@cache
def elements_of(data_format: str) -> int:
    return FORMATS[data_format].elems_per_stick()


@lru_cache(maxsize=1 << 10)
def _row_major(dims: tuple[str, ...], slices: tuple[int, ...]) -> dict[str, dict[str, int]]:
    at = core_slices(slices)
    return {core: dict(zip(dims, each, strict=True)) for core, each in zip(core_ids(len(at)), at, strict=True)}


def _count(value: Any, least: int = 0, most: int = MOST_BYTES) -> bool:
    return type(value) is int and least <= value <= most


def _way(value: Any) -> bool:
    """Bytes from one place to another, either way."""
    return _count(value, -MOST_BYTES)


class _once:
    """A cached property without a lock, which costs more than what is computed here."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type) -> Any:
        value = part.__dict__[self.name] = self.compute(part)
        return value


class _File:
    """The parts of a file as the rules name them; a part that is missing shows when a rule asks for it."""

    def __init__(self, dsc: dict[str, Any], limit: int) -> None:
        self.dsc, self.limit = dsc, limit

    @_once
    def top(self) -> dict[str, Any]:
        ((_, top),) = self.dsc.items()
        return top

    @_once
    def name(self) -> str:
        ((name, _),) = self.top["dscs_"][0].items()
        return name

    @_once
    def path(self) -> str:
        return f"dscs_[0].{self.name}"

    @_once
    def op(self) -> dict[str, Any]:
        ((_, op),) = self.top["dscs_"][0].items()
        return op

    @_once
    def row(self) -> OpRow:
        return OPS[self.name]

    @_once
    def labels(self) -> list[dict[str, Any]]:
        return self.op["labeledDs_"]

    @_once
    def nodes(self) -> list[dict[str, Any]]:
        return self.op["scheduleTree_"]

    @_once
    def compute(self) -> dict[str, Any]:
        return self.op["computeOp_"][0]

    @_once
    def cores(self) -> int:
        return self.top["numCoresUsed_"]

    @_once
    def dims(self) -> list[str]:
        return self.op["dimOrder_"]

    @_once
    def sizes(self) -> list[int]:
        return [self.op["N_"][f"{dim}_"] for dim in self.dims]

    @_once
    def slices(self) -> tuple[int, ...]:
        return tuple(self.top["numWkSlicesPerDim_"][dim] for dim in self.dims)

    @_once
    def shape(self) -> list[Dim]:
        units = dict.fromkeys(self.dims, 1)
        for label, node in zip(self.labels, self.nodes, strict=True):
            stick = node["stickDim_"]
            if stick in units:
                units[stick] = max(units[stick], elements_of(label["dataFormat_"]))
        return [
            divided(dim, size, cores, units[dim])
            for dim, size, cores in zip(self.dims, self.sizes, self.slices, strict=True)
        ]

    @_once
    def folded(self) -> list[str]:
        return self.op["foldedDims_"]

    @_once
    def sticks(self) -> list[tuple[str, int]]:
        inputs = zip(self.labels[:-1], self.nodes[:-1], strict=True)
        return [(node["stickDim_"], elements_of(label["dataFormat_"])) for label, node in inputs]

    @_once
    def references(self) -> list[str]:
        return [f"Tensor{i}-idx{i}" for i in range(len(self.labels))]

    @_once
    def indices(self) -> list[int]:
        return sorted(at["ldsIdx_"] for node in self.nodes for at in node["indirect_"])

    @_once
    def constants(self) -> list[dict[str, Any]]:
        return list(self.op["constantInfo_"].values())


class _Tensor:
    """One tensor of a file, with the expectations that several rules share."""

    def __init__(self, view: _File, index: int) -> None:
        self.view, self.index = view, index
        self.label, self.node = view.labels[index], view.nodes[index]
        self.output = index == len(view.labels) - 1

    @_once
    def elements(self) -> int:
        return elements_of(self.label["dataFormat_"])

    @_once
    def strides(self) -> dict[str, int]:
        return self.node["byteStrides_"]

    @_once
    def stick(self) -> str:
        return self.node["stickDim_"]

    @_once
    def local(self) -> bool:
        return self.node["component_"] == "lx"

    @_once
    def own(self) -> bool:
        """Every core's own part, in its own LX."""
        return self.local and not self.node["coreStrides_"]

    @_once
    def first(self) -> int:
        return self.node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"]

    def layout(self) -> list[str]:
        return sorted((dim for dim in self.view.dims if self.strides[dim]), key=lambda dim: -abs(self.strides[dim]))

    def role(self) -> bool:
        role, indices = self.label["dsType_"], self.view.indices
        if self.output or self.index in indices:
            nth = 0 if self.output else indices.index(self.index)
            return role == ("OUTPUT" if self.output else f"KERNEL_IDX{nth or ''}")
        nth = sum(i not in indices for i in range(self.index))
        return role == (("INPUT", "KERNEL")[nth] if nth < 2 else f"INPUT{nth}")

    def one_place(self) -> bool:
        if not _count(self.label["argument_"], -1, MOST_ARGUMENTS - 1) or not _count(self.label["poolOffset_"], -1):
            return False
        places = (self.label["argument_"] >= 0) + (self.label["poolOffset_"] >= 0) + (self.node["component_"] == "lx")
        return places == 1 and self.label["poolOffset_"] % STICK_BYTES in (0, STICK_BYTES - 1)

    def reach(self, points: list[int]) -> tuple[int, int]:
        """First and one-past-last byte over so many points of each dimension, indices included."""
        low = high = self.first
        for dim, count in zip(self.view.dims, points, strict=True):
            way = ((count - 1) // self.elements if dim == self.stick else count - 1) * self.strides[dim]
            low, high = low + min(way, 0), high + max(way, 0)
        for at in self.node["indirect_"]:
            steps = (at["extent_"] - 1) // self.elements if at["stick_"] else at["extent_"] - 1
            low, high = low + min(steps * at["stride_"], 0), high + max(steps * at["stride_"], 0)
        return low, high + (STICK_BYTES if self.stick else self.label["wordLength"])

    def inside(self) -> bool:
        """Of the tensor, or of a core's own part of it: sizeBytes_ counts that in LX."""
        low, high = self.reach([dim.points for dim in self.view.shape] if self.own else self.view.sizes)
        begin = self.first if self.local else 0
        return low >= begin and high <= begin + self.label["sizeBytes_"]

    def held(self) -> bool:
        """In LX: within it, and of no op whose cores fold something together."""
        shared = any(dim.cores > 1 for dim in self.view.shape if dim.name in self.view.folded)
        end = self.first + self.label["sizeBytes_"]
        return not self.local or (end <= description.constants()["lx_bytes"] and not shared)

    def fetched(self) -> bool:
        """From cores that there are, by a copy that keeps the format; sticks lie in one core each."""
        steps = self.node["coreStrides_"]
        if not steps:
            return True
        ways = [steps[dim] * (size - 1) for dim, size in zip(self.view.dims, self.view.sizes, strict=True)]
        return (
            steps.keys() == set(self.view.dims)
            and all(_way(step) for step in steps.values())
            and self.local
            and self.view.name == "copy"
            and not self.output
            and self.label["dataFormat_"] == self.view.labels[-1]["dataFormat_"]
            and not steps.get(self.stick, 0)
            and sum(min(way, 0) for way in ways) == 0
            and sum(max(way, 0) for way in ways) < self.view.limit
        )

    def spanned(self) -> bool:
        low, high = self.reach([dim.points for dim in self.view.shape])
        return high - low <= description.constants()["span_bytes"] or bool(self.node["indirect_"])

    def apart(self) -> bool:
        """No two cores write into one stick."""
        for name, _, cores, points in self.view.shape:
            if cores > 1 and self.output and not self.local and name not in self.view.folded and name != self.stick:
                distance = points * self.strides[name]
                if distance == 0 or distance % STICK_BYTES:
                    return False
        return True

    def gap(self) -> dict[str, int]:
        sizes = dict(zip(self.view.dims, self.view.sizes, strict=True))
        return {self.stick: -sizes[self.stick] % self.elements} if self.stick else {}

    def indirection(self) -> bool:
        at, table = self.node["indirect_"], {"gather": 0, "scatter": len(self.view.labels) - 1}
        return not at or self.index == table.get(self.view.row.kind)


Rule = tuple[str, Callable[[_File], bool], str]
TensorRule = tuple[str, Callable[[_Tensor], bool], str]

RULES: list[Rule] = [
    ("dscs_", lambda f: len(f.top["dscs_"]) == 1 and f.name in OPS, "must hold one op of the op table"),
    ("<top key>", lambda f: bool(re.fullmatch(rf"\d+_{f.name}", next(iter(f.dsc)))), "must be <number>_<op>"),
    (
        "source_",
        lambda f: isinstance(f.top["source_"], str) and len(f.top["source_"]) < 1 << 16,
        "must be a text of less than 2^16 characters",
    ),
    ("numCoresUsed_", lambda f: _count(f.cores, 1) and f.cores <= f.limit, "must be 1 to the number of cores"),
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
            and all(_count(size, 1) for size in f.sizes)
        ),
        "must give every dimension of dimOrder_ a size of at least 1",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: (
            f.top["numWkSlicesPerDim_"].keys() == set(f.dims)
            and all(_count(cores, 1) and cores <= size for size, cores in zip(f.sizes, f.slices, strict=True))
            and prod(f.slices) == f.cores
        ),
        "must divide every dimension, numCoresUsed_ slices in all",
    ),
    (
        "coreIdToDsc_",
        lambda f: f.top["coreIdToDsc_"] == dict.fromkeys(core_ids(f.cores), 0),
        "must map every core to 0",
    ),
    (
        "coreIdToWkSlice_",
        lambda f: f.top["coreIdToWkSlice_"] == _row_major(tuple(f.dims), f.slices),
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
        "must be the last dimensions, where the op folds any",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: sum(dim.cores > 1 for dim in f.shape if dim.name in f.folded) <= 1,
        "may divide one folded dimension",
    ),
    (
        "numWkSlicesPerDim_",
        lambda f: not f.row.is_attention or all(dim.cores == 1 for dim in f.shape[-3:]),
        "must leave results and keys of a row to one core",
    ),
    (
        "dataStageParam_",
        lambda f: f.op["dataStageParam_"] == {"0": per_core(f.shape)},
        "must be what N_ and numWkSlicesPerDim_ make of a core's part",
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
        "must number constants with names of their own and bits in IEEE_FP32 or IEEE_INT64, or a number of the launch",
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
        lambda f: _count(f.op["maskingConstId_"], -1, len(f.constants) - 1),
        "must be -1 or the number of a constant",
    ),
    (
        "indirectAccessIndexLabeledDs",
        lambda f: (
            f.op["indirectAccessIndexLabeledDs"] == [f.references[i] for i in f.indices]
            and bool(f.indices) == (f.row.is_gather or f.row.is_scatter)
        ),
        "must name the index tensors that a gather or scatter uses",
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
        lambda f: len(f.compute["parameters_"]) == _parameters(f) and all(map(_number, f.compute["parameters_"])),
        "must be as many numbers as the op takes",
    ),
    ("computeOp_[0].checked_", lambda f: f.compute["checked_"] in (0, 1), "must be 0 or 1"),
]

TENSOR_RULES: list[TensorRule] = [
    ("labeledDs_[{i}].ldsIdx_", lambda t: t.label["ldsIdx_"] == t.index, "must be its position"),
    ("labeledDs_[{i}].dsName_", lambda t: t.label["dsName_"] == f"Tensor{t.index}", "must be Tensor<position>"),
    (
        "labeledDs_[{i}].dsType_",
        lambda t: t.role(),
        "must be INPUT, KERNEL, INPUT2 ..., KERNEL_IDX ..., OUTPUT in order",
    ),
    ("labeledDs_[{i}].scale_", lambda t: t.label["scale_"] == [1] * len(t.view.dims), "must be 1 per dimension"),
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
        "must be present where component_ says",
    ),
    ("labeledDs_[{i}].argument_", lambda t: t.one_place(), "argument_, poolOffset_ and lx: exactly one must say where"),
    (
        "labeledDs_[{i}].sizeBytes_",
        lambda t: _count(t.label["sizeBytes_"], 1) and t.label["sizeBytes_"] % STICK_BYTES == 0,
        "must be whole sticks",
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
            t.strides.keys() == set(t.view.dims)
            and all(_way(step) and step % t.label["wordLength"] == 0 for step in t.strides.values())
        ),
        "must give whole elements, in bytes, for every dimension",
    ),
    (
        "scheduleTree_[{i}].byteStrides_",
        lambda t: not t.output or not any(t.strides[dim] for dim in t.view.folded),
        "must be 0 along folded dimensions of the result",
    ),
    (
        "scheduleTree_[{i}].stickDim_",
        lambda t: t.stick == "" or (t.stick in t.view.dims and t.strides[t.stick] % STICK_BYTES == 0),
        "must be a dimension whose stride is whole sticks, or empty",
    ),
    (
        "scheduleTree_[{i}].layoutDimOrder_",
        lambda t: t.node["layoutDimOrder_"] == t.layout(),
        "must order by byteStrides_",
    ),
    (
        "scheduleTree_[{i}].maxDimSizes_",
        lambda t: t.node["maxDimSizes_"] == [-1] * len(t.layout()),
        "must be -1 per dimension: N_ says the sizes",
    ),
    (
        "primaryDsInfo_ of labeledDs_[{i}]",
        lambda t: (
            t.view.op["primaryDsInfo_"][t.label["dsType_"]]
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
        lambda t: t.apart(),
        "two cores would write into one stick",
    ),
    (
        "scheduleTree_[{i}].startAddressCoreCorelet_",
        lambda t: (
            _count(t.first)
            and t.first % (STICK_BYTES if t.stick else t.label["wordLength"]) == 0
            and t.node["startAddressCoreCorelet_"]
            == start_addresses(t.first, t.strides, t.stick, t.elements, t.view.shape, t.own)
        ),
        "must be the address of core 0, moved by byteStrides_ for each core's slice",
    ),
    (
        "scheduleTree_[{i}].coreStrides_",
        lambda t: t.fetched(),
        "must be empty, or lead a copy that keeps the format to the LX of cores that there are, not along sticks",
    ),
    ("scheduleTree_[{i}].startAddressCoreCorelet_", lambda t: t.inside(), "reaches outside the tensor's sizeBytes_"),
    (
        "scheduleTree_[{i}].component_",
        lambda t: t.held(),
        "lx must have room for it, and holds nothing of ops whose cores fold a dimension together",
    ),
    ("scheduleTree_[{i}].byteStrides_", lambda t: t.spanned(), "one core spans more of the tensor than it can reach"),
    (
        "scheduleTree_[{i}].isStartAddrSymbolic_",
        lambda t: t.node["isStartAddrSymbolic_"] == int(t.node["component_"] == "hbm"),
        "must be 1 in device memory, 0 in lx",
    ),
    (
        "scheduleTree_[{i}].backGapCore_",
        lambda t: t.node["backGapCore_"] == t.gap(),
        "must be the last stick's padding",
    ),
    (
        "scheduleTree_[{i}].coordinates_",
        lambda t: (
            t.node["coordinates_"]
            == {
                "coordInfo": {dim.name: walk_of_cores(dim) for dim in t.view.shape if t.strides[dim.name]},
                "coreIdToWkSlice_": {},
            }
        ),
        "must be the folds that N_ and numWkSlicesPerDim_ make",
    ),
    (
        "scheduleTree_[{i}].loopStrides_",
        lambda t: (
            len(t.node["loopStrides_"]) <= MOST_DIMENSIONS
            and all(_way(step) and step % t.label["wordLength"] == 0 for step in t.node["loopStrides_"].values())
        ),
        "must be whole elements, in bytes",
    ),
    (
        "scheduleTree_[{i}].indirect_",
        lambda t: (
            t.indirection()
            and all(
                _count(at["ldsIdx_"], 0, len(t.view.labels) - 2)
                and _count(at["extent_"], 1)
                and _way(at["stride_"])
                and at["stick_"] in (0, 1)
                for at in t.node["indirect_"]
            )
        ),
        "only a gather's first input and a scatter's table are moved by indices, each in [0, extent_)",
    ),
    (
        "scheduleTree_[{i}].indirectAllocType_",
        lambda t: t.node["indirectAllocType_"] == (t.view.row.kind if t.node["indirect_"] else "none"),
        "must be gather or scatter where indices move the tensor, none elsewhere",
    ),
    (
        "scheduleTree_[{i}].relatedIndirectAccessAlloc_",
        lambda t: (
            t.node["relatedIndirectAccessAlloc_"]
            == [f"allocate-Tensor{at['ldsIdx_']}_hbm" for at in t.node["indirect_"]]
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
        (is_runtime_scalar(bits) or _count(bits, 0, 2**width - 1))
        and isinstance(constant["name_"], str)
        and constant["data_"] == constant_data(bits)
    )


def _number(value: Any) -> bool:
    return (
        _count(value, -(2**64), 2**64)
        or type(value) is float
        or value in ("inf", "-inf", "nan")
        or is_runtime_scalar(value)
    )


def _parameters(view: _File) -> int:
    """How many numbers the op has in the file: its own, behind what a fold starts from."""
    own = len(view.dims) + 1 if view.row.parameters < 0 else view.row.parameters
    return own + (view.row.kind in ("reduction", "scan"))
