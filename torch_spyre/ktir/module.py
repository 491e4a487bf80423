"""KTIR programs: load, run on arrays, time. A program runs as a tile program of the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import _C
from ..backend.ktir.lower import lower
from ..backend.ktir.stores import stored_arguments
from ..ir.ktir.model import Func, Value
from ..ir.ktir.model import Module as Program
from ..ir.ktir.parser import parse
from ..ir.ktir.source import KtirError, read
from ..ir.ktir.types import MemRef, RuntimeArgument, Scalar, Type
from ..ir.ktir.verify import verify

Array = np.ndarray[Any, Any]
_APART = 40  # bits between the addresses of arrays that are arguments


def load(path_or_text: str | Path) -> Module:
    """A module from a file, or from text. Raises KtirError with line and column."""
    if isinstance(path_or_text, Path) or (
        len(path_or_text) < 4096 and "\n" not in path_or_text and "{" not in path_or_text
    ):
        text, name = read(Path(path_or_text)), str(path_or_text)
    else:
        text, name = str(path_or_text), ""
    program = parse(text, name)
    verify(program)
    return Module(program)


@dataclass
class Function:
    """One function, compiled when it is first used."""

    program: Program
    func: Func

    @cached_property
    def compiled(self) -> _C.TileProgram:
        return _C.TileProgram(lower(self.program, self.func))

    @cached_property
    def arguments(self) -> list[Value]:
        return self.func.region.arguments

    @cached_property
    def stored(self) -> set[str] | None:
        """The arguments through which it stores; None: through addresses that are not arguments, too."""
        return stored_arguments(self.func)


class Module:
    """Functions that share memory. Arrays are NumPy's or torch's, and come back as they were given."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions = {name: Function(program, func) for name, func in program.functions.items()}

    def run(self, function: str, *, memory: Memory | Mapping[int, Any] | None = None, **arrays: Any) -> dict[Any, Any]:
        """Runs a function; gives every array as it is afterwards, by name, or by address of ``memory``.

        What is given stays as it is, unless ``memory`` is a Memory, which is worked on in place.
        """
        found = self._function(function)
        shared = memory if isinstance(memory, Memory) else Memory(memory or {}, copied=found.stored != set())
        numbers, named = _bind(found, arrays)
        found.compiled.run(numbers, shared.held, [each.region for each in named.values()])
        results: dict[Any, Any] = {} if isinstance(memory, Memory) else shared.results()
        return results | {name: each.result() for name, each in named.items()}

    def time(self, function: str, *, memory: Memory | Mapping[int, Any] | None = None, **arrays: Any) -> float:
        """Modelled microseconds on the card, from the same program and without values."""
        return float(self.measure(function, memory=memory, **arrays)["picoseconds"]) / 1e6

    def measure(
        self, function: str, *, memory: Memory | Mapping[int, Any] | None = None, **arrays: Any
    ) -> dict[str, Any]:
        """Where the modelled time goes: units of the longest core, bytes of each array."""
        found = self._function(function)
        shared = memory if isinstance(memory, Memory) else Memory(memory or {}, copied=False)
        numbers, named = _bind(found, arrays)
        return dict(found.compiled.time(numbers, shared.held, [each.region for each in named.values()]))

    def _function(self, name: str) -> Function:
        if name not in self.functions:
            raise KtirError(f"there is no function @{name}; there are {', '.join(sorted(self.functions)[:20])}")
        return self.functions[name]


@dataclass
class _Given:
    """An array of the caller, and the bytes that the card works on."""

    original: Any
    address: int
    writable: bool
    name: str
    copied: bool

    @cached_property
    def bytes(self) -> Array:
        return _bytes_of(self.original, self.copied)

    @cached_property
    def region(self) -> tuple[int, int, Array, bool, str]:
        return (self.address, _element_bytes(self.original), self.bytes, self.writable, self.name)

    def result(self) -> Any:
        if not self.copied and not isinstance(self.original, torch.Tensor):
            return self.original
        if isinstance(self.original, torch.Tensor):
            if not self.copied:
                return self.original
            host = torch.from_numpy(self.bytes.copy() if not self.bytes.flags.writeable else self.bytes)
            return host.view(self.original.dtype).reshape(self.original.shape).to(self.original.device)
        return self.bytes.view(self.original.dtype).reshape(self.original.shape)


def _element_bytes(array: Any) -> int:
    return int(array.element_size() if isinstance(array, torch.Tensor) else array.dtype.itemsize)


def _bytes_of(array: Any, copied: bool) -> Array:
    if isinstance(array, torch.Tensor):
        host = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return host.copy() if copied else host
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.copy() if copied else flat


class Memory:
    """Memory that functions share, one after the other: arrays at addresses that count elements, and scratchpads."""

    def __init__(self, arrays: Mapping[int, Any], copied: bool = True) -> None:
        self._given = {
            address: _Given(array, address, True, f"the memory at {address}", copied)
            for address, array in arrays.items()
        }
        self.held = _C.TileMemory([each.region for each in self._given.values()])

    def results(self) -> dict[int, Any]:
        """The arrays as they are now."""
        return {address: each.result() for address, each in self._given.items()}

    def __getitem__(self, address: int) -> Any:
        return self._given[address].result()


def _bind(function: Function, arrays: Mapping[str, Any]) -> tuple[list[int | float], dict[str, _Given]]:
    """The arguments' numbers; arrays get addresses far from each other."""
    names = [value.name for value in function.arguments]
    if unknown := sorted(set(arrays) - set(names)):
        raise KtirError(f"@{function.func.name} has no argument {unknown[0]}; it has {', '.join(names) or 'none'}")
    numbers: list[int | float] = []
    named: dict[str, _Given] = {}
    for i, value in enumerate(function.arguments):
        if value.name not in arrays:
            raise KtirError(f"@{function.func.name} needs {value.name}: {value.type}")
        given = arrays[value.name]
        if isinstance(given, np.ndarray | torch.Tensor) and given.ndim:
            stored = function.stored is None or value.name in function.stored
            address = (i + 1) << _APART
            named[value.name] = _Given(given, address, stored, value.name, copied=stored)
            numbers.append(address)
        else:
            numbers.append(_number(function, value.name, value.type, given))
    return numbers, named


def _number(function: Function, name: str, of: Type, given: Any) -> int | float:
    value = given.item() if isinstance(given, np.ndarray | torch.Tensor | np.generic) else given
    if isinstance(of, Scalar) and (of.is_float or of.name == "i1"):
        return float(value)
    if isinstance(of, Scalar | RuntimeArgument | MemRef) and isinstance(value, int):
        return int(value)
    raise KtirError(f"@{function.func.name}: {name} is {of}, and {given!r} is given")
