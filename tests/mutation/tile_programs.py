"""Damaged programs of KTIR: every refusal of the text, and of a run, has a position."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from torch_spyre import ktir
from torch_spyre.ir.ktir.parser import parse
from torch_spyre.ir.ktir.printer import show
from torch_spyre.ir.ktir.source import KtirError

PROGRAMS = Path(__file__).parents[1] / "ktir" / "programs"
PLACE = re.compile(r"^\d+:\d+: ")
MOST = 1 << 22  # elements of an argument

# The arguments of each program: a shape and a type, or a number.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "vector_add": {"x": [[4096], "float16"], "y": [[4096], "float16"], "z": [[4096], "float16"]},
    "vector_add_dynamic": {"n": 999, "x": [[999], "float16"], "y": [[999], "float16"], "z": [[999], "float16"]},
    "matmul_reduce": {"a": [[64, 1024], "float16"], "b": [[1024, 128], "float16"], "c": [[64, 128], "float16"]},
    "rmsnorm": {"x": [[64, 256], "float16"], "weight": [[256], "float16"], "y": [[64, 256], "float16"]},
    "attention": {name: [[8, 128, 64], "float16"] for name in "qkvo"},
    "gather": {"table": [[512, 64], "float16"], "index": [[128], "int32"], "rows": [[128, 64], "float16"]},
    "scatter": {"table": [[512, 64], "float16"], "index": [[128], "int32"], "rows": [[128, 64], "float16"]},
    "distributed_copy": {"x": [[256, 64], "float16"], "y": [[256, 64], "float16"]},
    "ring": {"x": [[4, 64], "float32"], "y": [[4, 64], "float32"]},
    "swiglu": {"x": [[16, 256], "float16"], "w1": [[256, 512], "float16"], "w3": [[256, 512], "float16"]}
    | {"y": [[16, 512], "float16"]},
}


class NoInput(Exception):
    """What is left of the case is nothing to run."""


def seeds() -> list[dict[str, Any]]:
    found = []
    for name, arguments in ARGUMENTS.items():
        text = (PROGRAMS / f"{name}.mlir").read_text()
        for written in (text, show(parse(text), generic=True)):
            found.append({"lines": written.split("\n"), "arguments": arguments})
    return found


def run(given: Any) -> str:
    """Raises KtirError for text that is refused, ValueError for a run that is, both with a position; else the bits."""
    if not isinstance(given, dict) or not isinstance(given.get("lines"), list):
        raise NoInput("no text")
    lines = given["lines"]
    if not all(isinstance(line, str) for line in lines):
        raise NoInput("no text")
    module = ktir.load("\n".join([*lines, ""]))
    printed = show(module.program)
    assert show(parse(printed)) == printed, "what is printed is read as something else"
    found = hashlib.sha256()
    for name, function in module.functions.items():
        arrays = _arrays(function.arguments, given.get("arguments"))
        _ = function.compiled
        for result in module.run(name, **arrays).values():
            found.update(np.ascontiguousarray(result).tobytes())
        module.measure(name, **arrays)
    return found.hexdigest()


def _arrays(arguments: list[Any], given: Any) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for value in arguments:
        wanted = given.get(value.name) if isinstance(given, dict) else None
        match wanted:
            case [list() as shape, ("float16" | "float32" | "int32") as of] if all(type(n) is int for n in shape):
                if not 0 < len(shape) <= 8 or any(not 0 <= n <= MOST for n in shape) or math.prod(shape) > MOST:
                    raise NoInput("no shape")
                found[value.name] = generator.integers(0, 512, shape).astype(of)
            case int() | float():
                found[value.name] = wanted
            case _:
                raise NoInput(f"no {value.name}")
    return found


def has_place(error: Exception) -> bool:
    """Errors about arguments are about no place of the text."""
    return bool(PLACE.match(str(error))) or (isinstance(error, KtirError) and str(error).startswith("@"))
