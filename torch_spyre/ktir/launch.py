"""Folders with launch_spec.json: programs, their arguments by position, and what is only known at launch.

{"name": "add", "programs": [{"file": "add.mlir", "function": "add"}],
 "arguments": [{"name": "x", "arg_index": 0, "role": "input", "shape": ["s0", 64], "dtype": "f16",
                    "layout": [64, 1]}, ...],
 "symbols": [{"name": "s0", "kind": "size", "arg_index": 3, "min": 1, "max": 4096}], "pool_size": 0}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.ktir.source import LaunchError
from . import given
from .module import Memory, Module, load

ROLES = ("input", "output", "inout", "weight", "pool")
_MOST_SPEC = 1 << 22


@dataclass
class Spec:
    folder: Path
    programs: list[tuple[Module, str]]
    arguments: list[dict[str, Any]]
    symbols: list[dict[str, Any]]
    pool_size: int


def read(folder: Path) -> Spec:
    path = folder / "launch_spec.json"
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.read(_MOST_SPEC))
    except (OSError, ValueError, RecursionError) as error:
        raise LaunchError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise LaunchError(f"{path}: is not an object")
    arguments = _objects(path, found, "arguments")
    for i, each in enumerate(arguments):
        _field(path, each, "name", str)
        each.setdefault("arg_index", i)
        _field(path, each, "arg_index", int)
        if each.get("role") not in ROLES:
            raise LaunchError(
                f"{path}: argument {each['name']}: the role {each.get('role')!r} is none of {', '.join(ROLES)}"
            )
        if each["role"] != "pool":
            shape = _field(path, each, "shape", list)
            if not all(isinstance(n, int | str) and not isinstance(n, bool) for n in shape):
                raise LaunchError(f"{path}: argument {each['name']}: a size is a number or a symbol")
            given.type_named(_field(path, each, "dtype", str))
    symbols = _objects(path, found, "symbols")
    for each in symbols:
        _field(path, each, "name", str)
    pool_size = found.get("pool_size", 0)
    if not isinstance(pool_size, int) or not 0 <= pool_size <= 1 << 36:
        raise LaunchError(f"{path}: pool_size is a number of bytes")
    return Spec(folder, _programs(folder, path, found), arguments, symbols, pool_size)


def _objects(path: Path, found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    given_ = found.get(key, [])
    if not isinstance(given_, list) or not all(isinstance(each, dict) for each in given_):
        raise LaunchError(f"{path}: {key} is not a list of objects")
    return given_


def _field(path: Path, each: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(each.get(key), kind) or isinstance(each.get(key), bool):
        raise LaunchError(f"{path}: {each.get('name', 'an entry')} has no {key}")
    return each[key]


def _programs(folder: Path, path: Path, found: dict[str, Any]) -> list[tuple[Module, str]]:
    """As the file says, or every .mlir file in the order of names."""
    given_ = found.get("programs") or [{"file": each.name} for each in sorted(folder.glob("*.mlir"))]
    programs = []
    for each in given_ if isinstance(given_, list) else []:
        entry = {"file": each} if isinstance(each, str) else each
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
            raise LaunchError(f"{path}: a program is a file, or an object with one")
        file = (folder / entry["file"]).resolve()
        if folder.resolve() not in file.parents:
            raise LaunchError(f"{path}: {entry['file']} is outside of the folder")
        module = load(file)
        names = [entry["function"]] if "function" in entry else list(module.functions)
        for name in names:
            if name not in module.functions:
                raise LaunchError(f"{path}: {entry['file']} has no function @{name}")
            programs.append((module, name))
    if not programs:
        raise LaunchError(f"{path}: there is no program")
    return programs


def run(spec: Spec, bound: dict[str, int], inputs: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Outputs by name, and modelled microseconds. Every program has the same arguments, by position."""
    values = _symbols(spec, bound)
    names = {each["name"] for each in spec.arguments}
    if unknown := sorted(set(inputs) - names):
        raise LaunchError(f"there is no argument {unknown[0]}; there are {', '.join(sorted(names))}")
    arrays: dict[int, Any] = {}
    for each in spec.arguments:
        arrays[each["arg_index"]] = _array(spec, each, values, inputs)
    for each in spec.symbols:
        if isinstance(each.get("arg_index"), int):
            arrays[each["arg_index"]] = values[each["name"]]
    microseconds = 0.0
    for module, name in spec.programs:
        function = module.functions[name]
        if len(function.arguments) != len(arrays) and function.arguments:
            raise LaunchError(f"@{name} has {len(function.arguments)} arguments, launch_spec.json {len(arrays)}")
        if function.arguments:
            given_ = {v.name: arrays[i] for i, v in enumerate(function.arguments) if i in arrays}
            microseconds += module.time(name, **given_)
            results = module.run(name, **given_)
            arrays |= {i: results.get(v.name, arrays.get(i)) for i, v in enumerate(function.arguments)}
        else:  # constant addresses, in elements, one array behind the other
            memory = Memory(_placed(spec, arrays), copied=False)
            microseconds += module.time(name, memory=memory)
            module.run(name, memory=memory)
    wanted = ("output", "inout")
    return {each["name"]: arrays[each["arg_index"]] for each in spec.arguments if each["role"] in wanted}, microseconds


def _placed(spec: Spec, arrays: dict[int, Any]) -> dict[int, Any]:
    placed, at = {}, 0
    for each in sorted(spec.arguments, key=lambda each: each["arg_index"]):
        address = each.get("address", at)
        array = arrays[each["arg_index"]]
        placed[int(address)] = array
        at = int(address) + int(np.prod(array.shape))
    return placed


def _symbols(spec: Spec, bound: dict[str, int]) -> dict[str, int]:
    known = {each["name"]: each for each in spec.symbols}
    if unknown := sorted(set(bound) - set(known)):
        raise LaunchError(f"there is no symbol {unknown[0]}; there are {', '.join(known) or 'none'}")
    values: dict[str, int] = {}
    for name, each in known.items():
        value = bound.get(name, each.get("default", each.get("min")))
        if not isinstance(value, int):
            raise LaunchError(f"symbol {name} has no value: --bind {name}=...")
        if not each.get("min", 0) <= value <= each.get("max", 1 << 40):
            raise LaunchError(f"symbol {name} = {value} is not in [{each.get('min', 0)}, {each.get('max', 1 << 40)}]")
        values[name] = value
    return values


def _array(spec: Spec, each: dict[str, Any], values: dict[str, int], inputs: dict[str, Any]) -> Any:
    if each["role"] == "pool":
        return np.zeros(max(spec.pool_size, 1), np.uint8)
    shape = []
    for n in each["shape"]:
        if isinstance(n, str) and n not in values:
            raise LaunchError(f"argument {each['name']}: there is no symbol {n}")
        shape.append(values[n] if isinstance(n, str) else n)
    of = given.type_named(each["dtype"])
    if each["name"] in inputs:
        array = inputs[each["name"]]
        if list(getattr(array, "shape", [])) != shape:
            raise LaunchError(f"{each['name']} has the shape {list(getattr(array, 'shape', []))}, wanted is {shape}")
        if str(array.dtype).removeprefix("torch.") != str(given.array([0], of, None).dtype).removeprefix("torch."):
            raise LaunchError(f"{each['name']} has the type {array.dtype}, wanted is {each['dtype']}")
        return array
    if each["role"] == "output":
        return given.array(shape, of, None)
    raise LaunchError(f"the {each['role']} {each['name']} is not given: -i {each['name']}=FILE")
