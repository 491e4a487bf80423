"""Errors about ops that may not fall back to the CPU name the lines of the program that these ops come from.

Generated code runs long after those lines, and programs with the same graph share it through the cache: so the lines
are kept apart from the code, in a wrapper around its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .lower import source_of


def lines_of(graph: fx.Graph) -> dict[str, str]:
    """For each op of a graph, the lines of the program that it comes from."""
    lines: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and source_of(node):
            lines.setdefault(node.target._schema.name, {})[source_of(node)] = None
    return {name: "; ".join(found) for name, found in lines.items()}


def name_lines(code: Any, lines: dict[str, str]) -> None:
    """Adds the lines of the program to errors of refused ops in compiled code."""
    call = getattr(code, "current_callable", None)
    if call is None:
        return

    def run(inputs: Sequence[Any]) -> Any:
        try:
            return call(inputs)
        except NotImplementedError as refusal:
            name = str(refusal).split(maxsplit=1)[0].split(".")[0]  # Inductor may have chosen another overload
            if name not in lines:
                raise
            raise NotImplementedError(f"{refusal} It comes from {lines[name]}.") from refusal

    code.current_callable = run
