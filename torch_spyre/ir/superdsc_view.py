"""A SuperDSC as its rules see it: the parts of a file by name, and what several rules ask about a tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from .._C import DataFormats
from ..card import description
from ..card.description import STICK_BYTES
from ..ops.table import OPS, OpRow
from .core_split import Dim, core_ids, core_slices, divided

# Limits of what a file may ask for; docs/superdsc.md says why. The card has limits of its own besides.
MOST_DIMENSIONS = 64
MOST_TENSORS = 64
MOST_ARGUMENTS = 1 << 16
MOST_BYTES = 1 << 40

FORMATS: dict[str, DataFormats] = dict(DataFormats.__members__)


@cache
def elements_of(data_format: DataFormats | str) -> int:
    """The elements of a stick in this format."""
    return (FORMATS[data_format] if isinstance(data_format, str) else data_format).elems_per_stick()


@lru_cache(maxsize=1 << 10)
def row_major(dims: tuple[str, ...], slices: tuple[int, ...]) -> dict[str, dict[str, int]]:
    """``coreIdToWkSlice_``: the slice of each dimension that each core takes."""
    taken = core_slices(slices)
    return {core: dict(zip(dims, each, strict=True)) for core, each in zip(core_ids(len(taken)), taken, strict=True)}


def is_count(value: Any, least: int = 0, most: int = MOST_BYTES) -> bool:
    return type(value) is int and least <= value <= most


def is_distance(value: Any) -> bool:
    """Whether a value is a distance in bytes, which may be negative."""
    return is_count(value, -MOST_BYTES)


class lazy:
    """A cached property without a lock: locking would cost more than what is computed here."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type) -> Any:
        value = part.__dict__[self.name] = self.compute(part)
        return value


class File:
    """The parts of a file. A part that is missing or has the wrong type raises when a rule reads it."""

    def __init__(self, dsc: dict[str, Any], card_cores: int) -> None:
        self.dsc, self.card_cores = dsc, card_cores

    @lazy
    def top(self) -> dict[str, Any]:
        ((_, top),) = self.dsc.items()
        return top

    @lazy
    def name(self) -> str:
        ((name, _),) = self.top["dscs_"][0].items()
        return name

    @lazy
    def op(self) -> dict[str, Any]:
        ((_, op),) = self.top["dscs_"][0].items()
        return op

    @lazy
    def row(self) -> OpRow:
        return OPS[self.name]

    @lazy
    def labels(self) -> list[dict[str, Any]]:
        return self.op["labeledDs_"]

    @lazy
    def nodes(self) -> list[dict[str, Any]]:
        return self.op["scheduleTree_"]

    @lazy
    def compute(self) -> dict[str, Any]:
        return self.op["computeOp_"][0]

    @lazy
    def cores(self) -> int:
        return self.top["numCoresUsed_"]

    @lazy
    def dims(self) -> list[str]:
        return self.op["dimOrder_"]

    @lazy
    def sizes(self) -> list[int]:
        return [self.op["N_"][f"{dim}_"] for dim in self.dims]

    @lazy
    def slices(self) -> tuple[int, ...]:
        return tuple(self.top["numWkSlicesPerDim_"][dim] for dim in self.dims)

    @lazy
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

    @lazy
    def folded(self) -> list[str]:
        return self.op["foldedDims_"]

    @lazy
    def sticks(self) -> list[tuple[str, int]]:
        inputs = zip(self.labels[:-1], self.nodes[:-1], strict=True)
        return [(node["stickDim_"], elements_of(label["dataFormat_"])) for label, node in inputs]

    @lazy
    def references(self) -> list[str]:
        return [f"Tensor{i}-idx{i}" for i in range(len(self.labels))]

    @lazy
    def indices(self) -> list[int]:
        return sorted({index["ldsIdx_"] for node in self.nodes for index in node["indirect_"]})

    @lazy
    def constants(self) -> list[dict[str, Any]]:
        return list(self.op["constantInfo_"].values())


class Tensor:
    """One tensor of a file, and the conditions on it that need more than a line."""

    def __init__(self, file: File, index: int) -> None:
        self.file, self.index = file, index
        self.label, self.node = file.labels[index], file.nodes[index]
        self.is_output = index == len(file.labels) - 1

    @lazy
    def elements(self) -> int:
        return elements_of(self.label["dataFormat_"])

    @lazy
    def strides(self) -> dict[str, int]:
        return self.node["byteStrides_"]

    @lazy
    def stick(self) -> str:
        return self.node["stickDim_"]

    @lazy
    def in_lx(self) -> bool:
        return self.node["component_"] == "lx"

    @lazy
    def is_core_local(self) -> bool:
        """Whether every core has its part of the tensor in its own LX."""
        return self.in_lx and not self.node["coreStrides_"]

    @lazy
    def first_address(self) -> int:
        return self.node["startAddressCoreCorelet_"]["data_"]["[0, 0, 0]"]

    def layout(self) -> list[str]:
        return sorted((dim for dim in self.file.dims if self.strides[dim]), key=lambda dim: -abs(self.strides[dim]))

    def has_role_in_order(self) -> bool:
        """Whether dsType_ is INPUT, KERNEL, INPUT2 ... for inputs, KERNEL_IDX ... for indices, OUTPUT for the last."""
        role, indices = self.label["dsType_"], self.file.indices
        if self.is_output or self.index in indices:
            nth = 0 if self.is_output else indices.index(self.index)
            return role == ("OUTPUT" if self.is_output else f"KERNEL_IDX{nth or ''}")
        nth = sum(i not in indices for i in range(self.index))
        return role == (("INPUT", "KERNEL")[nth] if nth < 2 else f"INPUT{nth}")

    def has_one_place(self) -> bool:
        if not is_count(self.label["argument_"], -1, MOST_ARGUMENTS - 1) or not is_count(self.label["poolOffset_"], -1):
            return False
        places = (self.label["argument_"] >= 0) + (self.label["poolOffset_"] >= 0) + (self.node["component_"] == "lx")
        return places == 1 and self.label["poolOffset_"] % STICK_BYTES in (0, STICK_BYTES - 1)

    def byte_range(self, points: list[int]) -> tuple[int, int]:
        """The first byte and the byte after the last of an access to so many points per dimension, with any indices."""
        low = high = self.first_address
        for dim, count in zip(self.file.dims, points, strict=True):
            distance = ((count - 1) // self.elements if dim == self.stick else count - 1) * self.strides[dim]
            low, high = low + min(distance, 0), high + max(distance, 0)
        for index in self.node["indirect_"]:
            steps = (index["extent_"] - 1) // self.elements if index["stick_"] else index["extent_"] - 1
            low, high = low + min(steps * index["stride_"], 0), high + max(steps * index["stride_"], 0)
        return low, high + (STICK_BYTES if self.stick else self.label["wordLength"])

    def is_within_size(self) -> bool:
        """Whether all accesses are within sizeBytes_: of the tensor, or in LX of a core's own part of it."""
        low, high = self.byte_range([dim.points for dim in self.file.shape] if self.is_core_local else self.file.sizes)
        start = self.first_address if self.in_lx else 0
        return low >= start and high <= start + self.label["sizeBytes_"]

    def may_be_in_lx(self) -> bool:
        """Whether a tensor in LX fits there, and no folded dimension of its op is divided over cores."""
        shared = any(dim.cores > 1 for dim in self.file.shape if dim.name in self.file.folded)
        end = self.first_address + self.label["sizeBytes_"]
        return not self.in_lx or (end <= description.constants()["lx_bytes"] and not shared)

    def has_valid_core_strides(self) -> bool:
        """Whether coreStrides_ is empty, or leads a copy without conversion to sticks in LX of the card's cores."""
        steps = self.node["coreStrides_"]
        if not steps:
            return True
        distances = [steps[dim] * (size - 1) for dim, size in zip(self.file.dims, self.file.sizes, strict=True)]
        return (
            steps.keys() == set(self.file.dims)
            and all(is_distance(step) for step in steps.values())
            and self.in_lx
            and self.file.name == "copy"
            and not self.is_output
            and self.label["dataFormat_"] == self.file.labels[-1]["dataFormat_"]
            and not steps.get(self.stick, 0)
            and sum(min(distance, 0) for distance in distances) == 0
            and sum(max(distance, 0) for distance in distances) < self.file.card_cores
        )

    def is_within_span(self) -> bool:
        low, high = self.byte_range([dim.points for dim in self.file.shape])
        return high - low <= description.constants()["span_bytes"] or bool(self.node["indirect_"])

    def separates_cores(self) -> bool:
        """Whether no two cores write into one stick."""
        for name, _, cores, points in self.file.shape:
            if cores > 1 and self.is_output and not self.in_lx and name not in self.file.folded and name != self.stick:
                distance = points * self.strides[name]
                if distance == 0 or distance % STICK_BYTES:
                    return False
        return True

    def last_stick_padding(self) -> dict[str, int]:
        sizes = dict(zip(self.file.dims, self.file.sizes, strict=True))
        return {self.stick: -sizes[self.stick] % self.elements} if self.stick else {}

    def may_have_indices(self) -> bool:
        """Whether the tensor has no indices, or is one that the op's indices lead into."""
        return not self.node["indirect_"] or self.file.row.is_table(self.index, len(self.file.labels) - 1)
