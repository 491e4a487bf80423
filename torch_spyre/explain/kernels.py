"""A launched kernel as data: its steps with their times, its buffers, and the IRs on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod
from typing import Any

from ..execution.launches import Launch
from ..ir import superdsc
from ..ir.op_spec import parse_op_spec
from ..ir.provenance import parse_name
from ..timing.attribution import Row, steps_of
from . import run_data


class Texts:
    """Texts that are kept once, by their number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> run_data.Text:
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


def describe(launch: Launch, texts: Texts, with_superdsc: bool) -> run_data.Kernel:
    """Everything about the kernel of a launch. SuperDSC texts are made anew, which takes a while."""
    code, found = launch.code, parse_name(launch.plan.name)
    steps = _steps(launch, texts)
    return {
        "name": launch.plan.name,
        "key": found[0] if found else "",
        "us": sum(step["us"] for step in steps),
        "bound_us": code["bound_us"],
        "planner": code["planner"],
        "loop_ops": [texts.number(line) for line in _loop_ops(launch)],
        "specs": list(_specs(launch, texts, with_superdsc)),
        "steps": steps,
        "buffers": [_buffer(each, steps) for each in code["plan"]["buffers"]],
        "occurrences": len(launch.occurrences),
    }


def _steps(launch: Launch, texts: Texts) -> list[run_data.Step]:
    plan = launch.code["plan"]
    reads, writes = plan["reads"], plan["writes"]
    found: list[run_data.Step] = []
    for step, time, iteration in zip(steps_of(launch), launch.plan.step_times(), plan["iterations"], strict=True):
        row = Row(step.op, step.extents, step.slices, step.source)
        row.add(step)
        found.append(
            {
                "op": step.op,
                "aten": time["aten"],
                "source": texts.number(step.source),
                "spec": time["spec"],
                "extents": list(step.extents),
                "slices": list(step.slices),
                "us": step.us,
                "begin_us": step.start_us,
                "compute_us": step.compute_us,
                "memory_us": step.memory_us,
                "ring_us": step.ring_us,
                "bytes_read": time["bytes_read"],
                "bytes_written": time["bytes_written"],
                "bytes_ring": time["bytes_ring"],
                "least_us": step.least_us,
                "bound_by": row.bound_by,
                "reads": reads[time["spec"]],
                "writes": [writes[time["spec"]]],
            }
        )
        if iteration:
            found[-1]["iteration"] = iteration
    return found


def _loop_ops(launch: Launch) -> list[str]:
    """The loop ops of the kernel's text, a line each."""
    return [
        f"{op['out']['buffer']} = {op['name']}"
        f"({', '.join(str(each.get('buffer', each.get('value'))) for each in op['ins'])})"
        f" over {op['sizes']}" + (f", folding the last {op['reduced']}" if op["reduced"] else "")
        for op in json.loads(launch.text)["ops"]
    ]


def _specs(launch: Launch, texts: Texts, with_superdsc: bool) -> Iterable[run_data.Spec]:
    for position, text in enumerate(launch.code["provenance"]["specs"]):
        loop_op = json.loads(text.rsplit("  with ", 1)[1])["loop_op"]
        nodes = list(launch.occurrences[0][loop_op]) if launch.occurrences and loop_op >= 0 else []
        made = superdsc.dumps(superdsc.emit(parse_op_spec(text), position)) if with_superdsc else ""
        yield {"text": texts.number(text), "superdsc": texts.number(made), "loop_op": loop_op, "nodes": nodes}


def _buffer(given: dict[str, Any], steps: list[run_data.Step]) -> run_data.Buffer:
    """Lives are those of steps: tile loops repeat the ops of the plan."""
    layout = given["layout"]
    alive = [i for i, step in enumerate(steps) if given["first"] <= step["spec"] <= given["last"]]
    element = given["bytes"] / max(prod(layout["device_size"]), 1)
    found: run_data.Buffer = {
        "name": given["name"],
        "kind": given["kind"],
        "dtype": given["dtype"],
        "size": given["size"],
        "stride": given["stride"],
        "layout": layout,
        "bytes": given["bytes"],
        "padding": max(given["bytes"] - int(prod(given["size"]) * element), 0),
        "place": given["place"],
        "address": given["address"],
        "core_bytes": given["core_bytes"],
        "first": min(alive, default=0),
        "last": max(alive, default=0),
    }
    if "why_not" in given:
        found["why_not"] = given["why_not"]
    return found
