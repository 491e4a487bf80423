"""The data of a run that never was: a decoder model with kernels for a prompt and for a token, in its real layouts."""

from __future__ import annotations

import json
from math import ceil, prod
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.card import description
from torch_spyre.card.description import STICK_BYTES
from torch_spyre.explain.run_data import FORMAT, VERSION, RunData

CORES, LX_BUDGET = 32, 1_625_344
SOURCE = {
    10: "hidden = self.norm(x)",
    11: "q, k, v = self.q(hidden), self.k(hidden), self.v(hidden)",
    12: "q, k = rotate(q, k, cos, sin)",
    13: "o = attend(q, k, v)",
    14: "x = x + self.o(o)",
    15: "hidden = self.norm_2(x)",
    16: "x = x + self.down(silu(self.gate(hidden)) * self.up(hidden))",
}


def model_run(
    layers: int = 40,
    title: str = "synthetic-8b",
    tokens: tuple[int, ...] = (512, 1),
    speed: float = 1.0,
    launches: int = 4,
) -> RunData:
    """A run of one prompt and some tokens; ``speed`` divides the times of matrix products."""
    texts = _Texts()
    kernels = [_Kernel(texts, layers, rows, speed).data(f"spyre_kernel_v1_{rows}_tokens") for rows in tokens]
    found, eager, start = [], [], 5.0
    for number in [0, *[len(kernels) - 1] * (launches - 1)]:
        found.append({"kernel": number, "stream": 0, "start_us": start, "us": kernels[number]["us"]})
        start += kernels[number]["us"]
        eager.append({"op": int(number == 0), "stream": 0, "start_us": start + 0.5, "us": 3.0})
        start += 4.0
    launched = sum(launch["us"] for launch in found)
    steps = [step for launch in found for step in kernels[launch["kernel"]]["steps"]]
    run: Any = {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "card": {
            "cores": CORES,
            "stick_bytes": STICK_BYTES,
            "lx_bytes": 2 << 20,
            "lx_budget": LX_BUDGET,
            "constants": dict(description.constants()),
        },
        "totals": {
            "us": start,
            "launched_us": launched,
            "other_us": start - launched,
            "least_us": sum(step["least_us"] for step in steps),
            "compulsory_bytes": 17_000_000_000,
            "moved_bytes": sum(step["bytes_read"] + step["bytes_written"] for step in steps),
        },
        "texts": texts.all,
        "files": {"/models/decoder.py": {str(line): " " * 8 + text for line, text in SOURCE.items()}},
        "kernels": kernels,
        "launches": found,
        "eager": [
            {"aten": "aten.argmax.default", "source": texts.line(16), "count": 3, "us": 9.0, "fallback": ""},
            {
                "aten": "aten.multinomial.default",
                "source": texts.line(16),
                "count": 1,
                "us": 3.0,
                "fallback": "no kernel",
            },
        ],
        "eager_calls": eager,
        "findings": [
            {
                "kind": "restickify",
                "text": "A restickify was inserted before attention.",
                "source": texts.line(13),
                "us": 80.0,
                "advice": "Give k transposed.",
                "saving_us": 60.5,
            },
            {
                "kind": "padding",
                "text": "The vocabulary is padded to whole sticks.",
                "source": texts.line(16),
                "us": 3.0,
            },
        ],
    }
    return run


class _Texts:
    def __init__(self) -> None:
        self.all: list[str] = [""]
        self.known = {"": 0}

    def __call__(self, text: str) -> int:
        if text not in self.known:
            self.known[text] = len(self.all)
            self.all.append(text)
        return self.known[text]

    def line(self, number: int) -> int:
        return self(f'File "/models/decoder.py", line {number}, in forward')


class _Kernel:
    """Steps and buffers in order; addresses by first fit."""

    def __init__(self, texts: _Texts, layers: int, rows: int, speed: float) -> None:
        self.texts, self.rows, self.speed = texts, rows, speed
        self.buffers: list[Any] = []
        self.steps: list[Any] = []
        self.specs: list[Any] = []
        self.loop_ops: list[int] = []
        x = self.buffer("x", [rows, 4096], "input")
        for layer in range(layers):
            x = self.layer(layer, x)
        self.matmul("logits", x, self.buffer("lm_head", [4096, 49155], "input"), [rows, 49155], 16, "output")

    def layer(self, layer: int, x: int) -> int:
        rows, weight = self.rows, lambda name, size: self.buffer(f"layers.{layer}.{name}", size, "input")
        h = self.norm(f"norm_{layer}", x, 10)
        q, k, v = (
            self.matmul(f"{name}_{layer}", h, weight(name, [4096, wide]), [rows, wide], 11)
            for name, wide in [("q", 4096), ("k", 1024), ("v", 1024)]
        )
        for name, each in (("q", q), ("k", k)):
            for op in ("mul", "neg", "mul", "add"):
                each = self.point(f"{name}_rotated_{layer}", op, [each], self.buffers[each]["size"], 12)
            q, k = (each, k) if name == "q" else (q, each)
        k = self.point(f"k_turned_{layer}", "restickify", [k], [rows, 1024], 13)
        o = self.attention(f"attended_{layer}", q, k, v, 13)
        x = self.point(
            f"x_{layer}",
            "add",
            [x, self.matmul(f"o_{layer}", o, weight("o", [4096, 4096]), [rows, 4096], 14)],
            [rows, 4096],
            14,
        )
        h = self.norm(f"norm_2_{layer}", x, 15)
        gate, up = (
            self.matmul(f"{name}_{layer}", h, weight(name, [4096, 12800]), [rows, 12800], 16) for name in ("gate", "up")
        )
        both = self.point(
            f"gated_{layer}",
            "mul",
            [self.point(f"silu_{layer}", "silu", [gate], [rows, 12800], 16), up],
            [rows, 12800],
            16,
        )
        return self.point(
            f"y_{layer}",
            "add",
            [x, self.matmul(f"down_{layer}", both, weight("down", [12800, 4096]), [rows, 4096], 16)],
            [rows, 4096],
            16,
        )

    def norm(self, name: str, x: int, line: int) -> int:
        square = self.point(f"{name}_squared", "mul", [x, x], self.buffers[x]["size"], line)
        mean = self.point(f"{name}_mean", "reduce add", [square], [self.rows, 1], line, extents=[self.rows, 4096])
        root = self.point(f"{name}_root", "rsqrt", [mean], [self.rows, 1], line)
        return self.point(name, "mul", [x, root], self.buffers[x]["size"], line)

    def buffer(self, name: str, size: list[int], kind: str) -> int:
        layout = _C.SpyreTensorLayout(size, torch.float16)
        count = layout.device_bytes()
        stride = [prod(size[i + 1 :]) for i in range(len(size))]
        self.buffers.append(
            {
                "name": name,
                "kind": kind,
                "dtype": "torch.float16",
                "size": size,
                "stride": stride,
                "bytes": count,
                "padding": count - 2 * prod(size),
                "layout": {"format": "SEN169_FP16", "device_size": layout.device_size, "stride_map": layout.stride_map},
                "place": "argument",
                "address": len(self.buffers),
                "core_bytes": 0,
                "first": len(self.steps),
                "last": len(self.steps),
            }
        )
        return len(self.buffers) - 1

    def matmul(self, name: str, a: int, b: int, size: list[int], line: int, kind: str = "internal") -> int:
        return self.point(name, "matmul", [a, b], size, line, kind, extents=[*size, self.buffers[a]["size"][1]])

    def attention(self, name: str, q: int, k: int, v: int, line: int) -> int:
        return self.point(
            name,
            "attention",
            [q, k, v],
            [self.rows, 4096],
            line,
            extents=[32, self.rows, 128, max(self.rows, 512), 128],
        )

    def point(
        self,
        name: str,
        op: str,
        reads: list[int],
        size: list[int],
        line: int,
        kind: str = "internal",
        extents: list[int] | None = None,
    ) -> int:
        extents = extents or size
        out, number = self.buffer(name, size, kind), len(self.steps)
        slices = [1] * len(extents)
        at = 0 if extents[0] >= CORES else 1
        slices[at] = min(CORES, max(1, extents[at] // 64 if at else extents[at]))
        read, written = (
            sum(self.buffers[i]["bytes"] for i in reads if self.buffers[i]["place"] != "lx"),
            self.buffers[out]["bytes"],
        )
        product = op in ("matmul", "attention")
        points = prod(extents) / 64 if op == "attention" else prod(extents)
        compute = points / (1140e3 * CORES * self.speed if product else 8e6)
        memory, begin = (read + written) / 153500 / (self.speed if product else 1), 0.97
        self.steps.append(
            {
                "op": op,
                "aten": f"aten.{op.split()[0]}.default",
                "source": self.texts.line(line),
                "spec": len(self.specs),
                "extents": extents,
                "slices": slices,
                "us": begin + max(compute, memory),
                "begin_us": begin,
                "compute_us": compute,
                "memory_us": memory,
                "ring_us": 0.0,
                "bytes_read": read,
                "bytes_written": written,
                "bytes_ring": 0,
                "least_us": max(
                    compute if product else 0,
                    sum(self.buffers[i]["bytes"] for i in reads if self.buffers[i]["kind"] == "input") / 153500,
                ),
                "bound_by": "matrix unit"
                if compute > memory and product
                else "vector unit"
                if compute > memory
                else "memory"
                if memory > begin
                else "start",
                "reads": reads,
                "writes": [out],
            }
        )
        for each in reads:
            self.buffers[each]["last"] = number
        self.specs.append({"loop_op": len(self.loop_ops), "nodes": [f"{op.split()[0]}_{number}"]})
        self.loop_ops.append(
            self.texts(
                f"{name} = {op}[{', '.join(map(str, extents))}]({', '.join(self.buffers[i]['name'] for i in reads)})"
            )
        )
        return out

    def place(self) -> None:
        """Internal buffers go where there is room for all of their life: in LX, else in the pool."""
        placed: dict[str, list[Any]] = {"lx": [], "pool": []}
        for buffer in self.buffers:
            if buffer["kind"] != "internal":
                continue
            share = ceil(buffer["bytes"] / CORES / STICK_BYTES) * STICK_BYTES
            where, size, room = (
                ("lx", share, LX_BUDGET) if share <= LX_BUDGET // 4 else ("pool", buffer["bytes"], 1 << 60)
            )
            others = sorted(
                (other["address"], other["address"] + other[size_name(where)])
                for other in placed[where]
                if other["first"] <= buffer["last"] and buffer["first"] <= other["last"]
            )
            address = 0
            for begin, end in others:
                if begin - address >= size:
                    break
                address = max(address, end)
            if where == "lx" and address + size > room:
                where, address = "pool", sum(other["bytes"] for other in placed["pool"][-8:])
            buffer.update(place=where, address=address, core_bytes=size if where == "lx" else 0)
            if where == "pool":
                buffer.update(
                    why_not=f"It takes {size} bytes of each core, more than are free while it lives.",
                    saving_us=buffer["bytes"] / 153500,
                )
            placed[where].append(buffer)

    def op_spec(self, step: Any) -> str:
        """As the compiler prints it: every operand is a matrix in the default layout."""
        extents, slices = step["extents"], step["slices"]
        space = ", ".join(
            f"c{i}: {extent}/{cores}" for i, (extent, cores) in enumerate(zip(extents, slices, strict=True))
        )
        lines = [f"{step['op']} over {space}"]
        for role, position in [*(("in ", each) for each in step["reads"]), ("out", step["writes"][0])]:
            buffer = self.buffers[position]
            rows, columns = buffer["size"]
            row = next((f"c{i}" for i, extent in enumerate(extents) if extent == rows > 1), "0")
            stick = next((f"c{i}" for i, extent in enumerate(extents) if i and extent == columns), None)
            at = [f"floor({stick}/64)", row, f"Mod({stick}, 64)"] if stick else ["0", row, "0"]
            where = (
                f"arg{buffer['address']}" if buffer["place"] == "argument" else f"{buffer['place']}@{buffer['address']}"
            )
            size = ", ".join(map(str, buffer["layout"]["device_size"]))
            lines.append(f"  {role} {where} SEN169_FP16[{size}] at [{', '.join(at)}]")
        return "\n".join([*lines, f"  with {json.dumps({'aten': step['aten']})}"])

    def superdsc(self, number: int, step: Any) -> str:
        parts = [{"core": core, "begin": core * 128} for core in range(CORES)]
        return json.dumps({f"sdsc_{number}": {"op": step["op"], "sizes": step["extents"], "cores": parts}})

    def data(self, name: str) -> Any:
        self.place()
        for number, (spec, step) in enumerate(zip(self.specs, self.steps, strict=True)):
            spec.update(text=self.texts(self.op_spec(step)), superdsc=self.texts(self.superdsc(number, step)))
        us = sum(step["us"] for step in self.steps)
        return {
            "name": name,
            "key": f"{self.rows:016x}",
            "us": us,
            "bound_us": us * 0.8,
            "planner": {"method": "joint search"},
            "loop_ops": self.loop_ops,
            "specs": self.specs,
            "steps": self.steps,
            "buffers": self.buffers,
            "occurrences": 1,
        }


def size_name(place: str) -> str:
    return "core_bytes" if place == "lx" else "bytes"
