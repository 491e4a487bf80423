"""From an OpSpec to its SuperDSC. Cannot fail on a spec that the rules let pass."""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache
from typing import Any

from ..card.description import STICK_BYTES
from ..ops.table import OPS, OpRow
from .coordinates import ByteAccess, byte_access, device_bytes
from .core_split import (
    Dim,
    constant_data,
    core_ids,
    core_slices,
    divided,
    is_runtime_scalar,
    json_number,
    masked_tails,
    per_core,
    start_addresses,
    walk_of_cores,
)
from .op_spec import OpSpec
from .op_spec_rules import (
    computes_integers,
    constants_of,
    core_strides,
    folded_symbols,
    index_bounds,
    integer_constants,
    loop_space,
)

# Names of dimensions, and how products call their last ones.
LABELS = ("mb", "x", "y", "out", "in")
LAST_LABELS = {
    "matmul": ("out", "in"),
    "attention": ("row", "out", "key", "in"),
    "paged_attention": ("head", "group", "row", "out", "request", "page", "key", "in"),
}
# Beyond every integer of the card, and exact as a double: what stands for infinity where integers are folded.
INTEGER_LIMIT = 2.0**62


def superdsc(spec: OpSpec, index: int) -> dict[str, Any]:
    """The SuperDSC of one op, ``{"<index>_<op>": {...}}``."""
    row, space = OPS[spec.op], loop_space(spec)
    labels = dict(zip(space, _labels(len(space), row.kind), strict=True))
    slices = tuple(cores for _, cores in space.values())
    used = math.prod(slices)
    dims = list(labels.values())
    folded = [labels[name] for name in folded_symbols(spec)]
    tensors = [_Tensor(spec, position, labels, space) for position in range(len(spec.args))]
    shape = [divided(labels[name], *given, _unit(labels[name], tensors)) for name, given in space.items()]
    inputs, constants = _inputs(spec, tensors)
    parameters = _parameters(spec, row)
    sticks = [(tensor.stick, tensor.elements) for tensor in tensors[:-1]]
    masks = masked_tails(row.kind, sticks, folded, {dim.name: dim.size for dim in shape})
    mask = -1
    if masks and row.start is not None:
        mask = len(constants)
        constants.append(_constant(mask, "maskvalue", parameters[0] if parameters else 0.0, computes_integers(spec)))
    ids = core_ids(used)
    op = {
        "numCoresUsed_": used,
        "numCoreletsUsed_": 1,
        "coreIdsUsed_": list(range(used)),
        "dimOrder_": dims,
        "foldedDims_": folded,
        "N_": {"name_": "n"} | {f"{dim.name}_": dim.size for dim in shape},
        "dataStageParam_": {"0": per_core(shape)},
        "primaryDsInfo_": {tensor.role: tensor.primary() for tensor in tensors},
        "scheduleTree_": [tensor.allocate(shape) for tensor in tensors],
        "labeledDs_": [tensor.labeled() for tensor in tensors],
        "constantInfo_": {str(i): constant for i, constant in enumerate(constants)},
        "coordinateMasking_": masks,
        "maskingConstId_": mask,
        "indirectAccessIndexLabeledDs": [tensors[i].reference for i in sorted(index_bounds(spec))],
        "computeOp_": [
            {
                "exUnit": row.unit,
                "opFuncName": spec.op,
                "attributes_": {"dataFormat_": spec.args[-1].device_dtype.name, "fidelity_": "regular"},
                "location": "Inner",
                "inputLabeledDs": inputs,
                "outputLabeledDs": [tensors[-1].reference],
                "parameters_": [json_number(value) for value in parameters],
                "checked_": int(spec.op_info.get("checked", False)),
            }
        ],
    }
    return {
        f"{index}_{spec.op}": {
            "source_": spec.op_info.get("source", ""),
            "sdscFoldProps_": [{"factor_": 1, "label_": "time"}],
            "sdscFolds_": {
                "dim_prop_func": [{"Affine": {"alpha_": 1, "beta_": 0}}],
                "dim_prop_attr": [{"factor_": 1, "label_": "time"}],
                "data_": {"[0]": "0"},
            },
            "coreFoldProp_": {"factor_": used, "label_": "core"},
            "coreletFoldProp_": {"factor_": 1, "label_": "corelet"},
            "numCoresUsed_": used,
            "coreIdToDsc_": dict.fromkeys(ids, 0),
            "numWkSlicesPerDim_": dict(zip(dims, slices, strict=True)),
            "coreIdToWkSlice_": {
                core: dict(zip(dims, at, strict=True)) for core, at in zip(ids, core_slices(slices), strict=True)
            },
            "coreIdToDscSchedule": {core: [[-1, 0, 0, 0]] for core in ids},
            "dscs_": [{spec.op: op}],
        }
    }


def _unit(label: str, tensors: list[_Tensor]) -> int:
    """Whole sticks of everything that lies along a dimension; stick sizes are powers of two."""
    return max((tensor.elements for tensor in tensors if tensor.stick == label), default=1)


@cache
def _labels(rank: int, kind: str) -> list[str]:
    last = LAST_LABELS.get(kind)
    if last:
        return [*LABELS[: min(rank - len(last), 3)], *(f"d{i}" for i in range(3, rank - len(last))), *last]
    return [*LABELS[:rank], *(f"d{i}" for i in range(len(LABELS), rank))]


def _parameters(spec: OpSpec, row: OpRow) -> list[float | str]:
    given = [value if is_runtime_scalar(value) else float(value) for value in spec.op_info.get("parameters", ())]
    if row.kind not in ("reduction", "scan") or row.start is None:
        return given
    start = row.start
    if math.isinf(start) and computes_integers(spec):
        start = math.copysign(INTEGER_LIMIT, start)
    return [start, *given]


def _constant(index: int, name: str, value: float | str, integer: bool) -> dict[str, Any]:
    """The number as the op computes with it: fp32 or int64, rounded to no format of memory."""
    return {
        "dataFormat_": "IEEE_INT64" if integer else "IEEE_FP32",
        "name_": f"{name}{index}",
        "data_": constant_data(value if isinstance(value, str) else _bits(value, integer)),
    }


def _bits(value: float, integer: bool) -> int:
    kept = ctypes.c_int64(int(value)) if integer else ctypes.c_float(value)  # beyond fp32 it is infinite
    return int.from_bytes(bytes(kept), sys.byteorder)


def _inputs(spec: OpSpec, tensors: list[_Tensor]) -> tuple[list[str], list[dict[str, Any]]]:
    """What the op reads, in order, and the numbers among it."""
    values, integers = constants_of(spec), integer_constants(spec)
    given = iter(tensors[:-1])
    names: list[str] = []
    constants: list[dict[str, Any]] = []
    for position in range(len(tensors) - 1 + len(values)):
        if position in values:
            constants.append(_constant(len(constants), "constant", values[position], position in integers))
            names.append(constants[-1]["name_"])
        else:
            names.append(next(given).reference)
    return names, constants


class _Tensor:
    """One argument on its way into the file, by labels instead of symbols."""

    def __init__(
        self,
        spec: OpSpec,
        position: int,
        labels: dict[str, str],
        space: dict[str, tuple[int, int]],
    ) -> None:
        self.arg = arg = spec.args[position]
        self.position, self.labels, self.space = position, labels, space
        self.elements = arg.device_dtype.elems_per_stick()
        self.walk: ByteAccess = byte_access(arg.device_coordinates, arg.device_size, self.elements, self.space)
        self.stick = labels.get(self.walk.stick, "")
        self.bounds = index_bounds(spec)
        self.role = self._role()
        self.name = f"Tensor{position}"
        self.reference = f"{self.name}-idx{position}"
        self.indirection = OPS[spec.op].kind if any(name.startswith("@") for name in self.walk.strides) else "none"

    def _role(self) -> str:
        if not self.arg.is_input:
            return "OUTPUT"
        if self.position in self.bounds:
            nth = sorted(self.bounds).index(self.position)
            return f"KERNEL_IDX{nth or ''}"
        nth = sum(position not in self.bounds for position in range(self.position))
        return ("INPUT", "KERNEL")[nth] if nth < 2 else f"INPUT{nth}"

    def layout(self) -> list[str]:
        """The dimensions the tensor has, by falling stride; its stick dimension counts by sticks."""
        strides = self.walk.strides
        moving = [name for name in self.labels if strides.get(name)]
        return [self.labels[name] for name in sorted(moving, key=lambda name: -abs(strides[name]))]

    def primary(self) -> dict[str, Any]:
        return {
            "layoutDimOrder_": self.layout(),
            "stickDimOrder_": [self.stick] if self.stick else [],
            "stickSize_": [self.elements],
        }

    def labeled(self) -> dict[str, Any]:
        component = self.component()
        return {
            "ldsIdx_": self.position,
            "dsName_": self.name,
            "dsType_": self.role,
            "scale_": [1] * len(self.labels),
            "wordLength": STICK_BYTES // self.elements,
            "dataFormat_": self.arg.device_dtype.name,
            "memOrg_": {memory: {"isPresent": int(memory == component)} for memory in ("hbm", "lx")},
            "argument_": self.arg.arg_index,
            "poolOffset_": self.arg.allocation.get("pool", -1),
            "sizeBytes_": device_bytes(self.arg.device_size),
        }

    def component(self) -> str:
        return "lx" if "lx" in self.arg.allocation else "hbm"

    def allocate(self, shape: list[Dim]) -> dict[str, Any]:
        strides, layout = self.walk.strides, self.layout()
        cores, across = core_strides(self.arg), self.arg.core is not None
        moves = {label: strides.get(name, 0) for name, label in self.labels.items()}
        first = self.walk.offset + self.arg.allocation.get("lx", 0)
        padding = -self.space[self.walk.stick][0] % self.elements if self.stick else 0
        return {
            "nodeType_": "allocate",
            "name_": f"allocate-{self.name}_{self.component()}",
            "prev_": "",
            "ldsIdx_": self.position,
            "component_": self.component(),
            "layoutDimOrder_": layout,
            "maxDimSizes_": [-1] * len(layout),
            "startAddressCoreCorelet_": start_addresses(
                first, moves, self.stick, self.elements, shape, local=self.component() == "lx" and not across
            ),
            "isStartAddrSymbolic_": int("lx" not in self.arg.allocation),
            "backGapCore_": {self.stick: padding} if self.stick else {},
            "coordinates_": {
                "coordInfo": {dim.name: walk_of_cores(dim) for dim in shape if moves[dim.name]},
                "coreIdToWkSlice_": {},
            },
            "byteStrides_": moves,
            "stickDim_": self.stick,
            "coreStrides_": {label: cores.get(name, 0) for name, label in self.labels.items()} if across else {},
            "loopStrides_": {
                name: stride for name, stride in strides.items() if name not in self.labels and name[0] != "@"
            },
            "indirectAllocType_": self.indirection,
            "relatedIndirectAccessAlloc_": [f"allocate-Tensor{i}_hbm" for i in sorted(self.bounds)]
            if self.indirection != "none"
            else [],
            "indirect_": [
                {
                    "ldsIdx_": position,
                    "extent_": extent,
                    "stride_": strides[f"@{position}"],
                    "stick_": int(self.walk.stick == f"@{position}"),
                }
                for position, extent in sorted(self.bounds.items())
                if f"@{position}" in strides
            ],
        }
