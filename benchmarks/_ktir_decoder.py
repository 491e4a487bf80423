"""A decoder of 135 million parameters as functions of KTIR, one for each step of a layer, on shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

HIDDEN, HEADS, SHARED_HEADS, WIDTH, INNER, WORDS, LENGTH = 576, 9, 3, 64, 1536, 49152, 128


def box(*sizes: int) -> str:
    rows = ", ".join(f"d{i} >= 0, -d{i} + {n - 1} >= 0" for i, n in enumerate(sizes))
    return f"affine_set<({', '.join(f'd{i}' for i in range(len(sizes)))}) : ({rows})>"


@dataclass
class Decoder:
    layers: int = 30
    next_address: int = 0
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def place(self, *shape: int) -> int:
        address = self.next_address
        self.shapes[address] = shape
        self.next_address += int(np.prod(shape)) + 64
        return address

    def begin(self, what: str, cores: int) -> None:
        name = f"f{len(self.functions)}_{what}"
        self.functions.append(name)
        self.lines += [
            f"func.func @{name}() attributes {{grid = [{cores}]}} {{",
            "  %id = ktdp.get_compute_tile_id : index",
            "  %c0 = arith.constant 0 : index",
            "  %c64 = arith.constant 64 : index",
            "  %place = arith.muli %id, %c64 : index",
        ]

    def add(self, text: str) -> None:
        self.lines += [f"  {line}" for line in text.strip().split("\n")]

    def end(self) -> None:
        self.lines += ["  return", "}"]

    def at(self, name: str, address: int, sizes: tuple[int, ...], where: str, tile: tuple[int, ...]) -> None:
        of, shape = "x".join(map(str, sizes)), "x".join(map(str, tile))
        strides = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
        self.add(f"""
%{name}_base = arith.constant {address} : index
%{name}_view = ktdp.construct_memory_view %{name}_base, sizes: {list(sizes)}, strides: {strides} {{
  coordinate_set = {box(*sizes)}, memory_space = #ktdp.spyre_memory_space<HBM>}} : memref<{of}xf16>
%{name}_at = ktdp.construct_access_tile %{name}_view[{where}] {{
  access_tile_set = {box(*tile)}}} : memref<{of}xf16> -> !ktdp.access_tile<{shape}xindex>""")

    def load(
        self, name: str, address: int, sizes: tuple[int, ...], where: str, tile: tuple[int, ...], as_: str = ""
    ) -> None:
        self.at(name, address, sizes, where, tile)
        shape = "x".join(map(str, tile))
        self.add(f"%{name} = ktdp.load %{name}_at : !ktdp.access_tile<{shape}xindex> -> tensor<{as_ or shape}xf16>")

    def store(
        self, value: str, address: int, sizes: tuple[int, ...], where: str, tile: tuple[int, ...], as_: str = ""
    ) -> None:
        self.at(f"{value}_to", address, sizes, where, tile)
        shape = "x".join(map(str, tile))
        self.add(f"ktdp.store %{value}, %{value}_to_at : tensor<{as_ or shape}xf16>, !ktdp.access_tile<{shape}xindex>")

    def product(self, x: int, inputs: int, outputs: int) -> int:
        """A row by weights that are stored as rows of outputs."""
        weight, y = self.place(outputs, inputs), self.place(outputs)
        cores = next(n for n in range(32, 0, -1) if outputs % (64 * n) == 0)
        each = outputs // cores
        self.begin("product", cores)
        self.add(f"%count = arith.constant {each} : index\n%first = arith.muli %id, %count : index")
        self.add("%end = arith.addi %first, %count : index")
        self.load("x", x, (1, inputs), "%c0, %c0", (1, inputs))
        self.add("%zero = arith.constant dense<0.0> : tensor<1x64xf16>")
        self.add("scf.for %column = %first to %end step %c64 {")
        self.load("w", weight, (outputs, inputs), "%column, %c0", (64, inputs))
        self.add(
            f"%y = linalg.matmul_transpose_b ins(%x, %w : tensor<1x{inputs}xf16>, tensor<64x{inputs}xf16>) "
            "outs(%zero : tensor<1x64xf16>) -> tensor<1x64xf16>"
        )
        self.store("y", y, (1, outputs), "%c0, %column", (1, 64))
        self.add("}")
        self.end()
        return y

    def norm(self, x: int) -> int:
        weight, y = self.place(HIDDEN), self.place(HIDDEN)
        self.begin("norm", 1)
        self.load("x", x, (HIDDEN,), "%c0", (HIDDEN,))
        self.load("w", weight, (HIDDEN,), "%c0", (HIDDEN,))
        self.add(f"""
%none = arith.constant dense<0.0> : tensor<f32>
%wide = arith.extf %x : tensor<{HIDDEN}xf16> to tensor<{HIDDEN}xf32>
%squares = arith.mulf %wide, %wide : tensor<{HIDDEN}xf32>
%sum = linalg.reduce {{ arith.addf }} ins(%squares : tensor<{HIDDEN}xf32>) outs(%none : tensor<f32>) dimensions = [0]
%total = tensor.extract %sum[] : tensor<f32>
%share = arith.constant {1 / HIDDEN!r} : f32
%mean = arith.mulf %total, %share : f32
%epsilon = arith.constant 1.0e-05 : f32
%positive = arith.addf %mean, %epsilon : f32
%factor = math.rsqrt %positive : f32
%factors = tensor.splat %factor : tensor<{HIDDEN}xf32>
%unit = arith.mulf %wide, %factors : tensor<{HIDDEN}xf32>
%half = arith.truncf %unit : tensor<{HIDDEN}xf32> to tensor<{HIDDEN}xf16>
%y = arith.mulf %half, %w : tensor<{HIDDEN}xf16>""")
        self.store("y", y, (HIDDEN,), "%c0", (HIDDEN,))
        self.end()
        return y

    def elementwise(self, what: str, a: int, b: int, size: int, text: str) -> int:
        y = self.place(size)
        self.begin(what, size // 64)
        self.load("a", a, (size,), "%place", (64,))
        self.load("b", b, (size,), "%place", (64,))
        self.add(text)
        self.store("y", y, (size,), "%place", (64,))
        self.end()
        return y

    def rotate(self, x: int, heads: int, cos: int, sin: int, y: int, sizes: tuple[int, ...], where: str) -> None:
        """One head a core; results go to a tensor of their own, or into a cache."""
        self.begin("rotate", heads)
        self.add("%c32 = arith.constant 32 : index\n%c127 = arith.constant 127 : index")
        self.load("a", x, (heads, WIDTH), "%id, %c0", (1, 32), "32")
        self.load("b", x, (heads, WIDTH), "%id, %c32", (1, 32), "32")
        self.load("c", cos, (32,), "%c0", (32,))
        self.load("s", sin, (32,), "%c0", (32,))
        self.add("""
%ac = arith.mulf %a, %c : tensor<32xf16>
%bs = arith.mulf %b, %s : tensor<32xf16>
%first = arith.subf %ac, %bs : tensor<32xf16>
%bc = arith.mulf %b, %c : tensor<32xf16>
%as = arith.mulf %a, %s : tensor<32xf16>
%second = arith.addf %bc, %as : tensor<32xf16>""")
        tile = (1,) * (len(sizes) - 1) + (32,)
        self.store("first", y, sizes, where.replace("LAST", "%c0"), tile, "32")
        self.store("second", y, sizes, where.replace("LAST", "%c32"), tile, "32")
        self.end()

    def attention(self, q: int, keys: int, values: int) -> int:
        y, group = self.place(HEADS, WIDTH), HEADS // SHARED_HEADS
        cache, scores = (SHARED_HEADS, LENGTH, WIDTH), f"tensor<{group}x{LENGTH}xf32>"
        self.begin("attention", SHARED_HEADS)
        self.add(f"%group = arith.constant {group} : index\n%first = arith.muli %id, %group : index")
        self.load("q", q, (HEADS, WIDTH), "%first, %c0", (group, WIDTH))
        for name, address in (("k", keys), ("v", values)):
            self.load(name, address, cache, "%id, %c0, %c0", (1, LENGTH, WIDTH), f"{LENGTH}x{WIDTH}")
        tile = f"tensor<{LENGTH}x{WIDTH}xf16>"
        self.add(f"""
%none = arith.constant dense<0.0> : {scores}
%least = arith.constant dense<0xFF800000> : tensor<{group}xf32>
%nothing = arith.constant dense<0.0> : tensor<{group}xf32>
%no_result = arith.constant dense<0.0> : tensor<{group}x{WIDTH}xf16>
%raw = linalg.matmul_transpose_b ins(%q, %k : tensor<{group}x{WIDTH}xf16>, {tile}) outs(%none : {scores}) -> {scores}
%scale = arith.constant dense<0.125> : {scores}
%scaled = arith.mulf %raw, %scale : {scores}
%most = linalg.reduce {{ arith.maximumf }} ins(%scaled : {scores}) outs(%least : tensor<{group}xf32>) dimensions = [1]
%most_all = linalg.broadcast ins(%most : tensor<{group}xf32>) outs(%none : {scores}) dimensions = [1]
%below = arith.subf %scaled, %most_all : {scores}
%weights = math.exp %below : {scores}
%sum = linalg.reduce {{ arith.addf }} ins(%weights : {scores}) outs(%nothing : tensor<{group}xf32>) dimensions = [1]
%sum_all = linalg.broadcast ins(%sum : tensor<{group}xf32>) outs(%none : {scores}) dimensions = [1]
%shares = arith.divf %weights, %sum_all : {scores}
%half = arith.truncf %shares : {scores} to tensor<{group}x{LENGTH}xf16>
%y = linalg.matmul ins(%half, %v : tensor<{group}x{LENGTH}xf16>, {tile})
    outs(%no_result : tensor<{group}x{WIDTH}xf16>) -> tensor<{group}x{WIDTH}xf16>""")
        self.store("y", y, (HEADS, WIDTH), "%first, %c0", (group, WIDTH))
        self.end()
        return y

    def build(self) -> str:
        vector = f"tensor<{64}xf16>"
        plus = f"%y = arith.addf %a, %b : {vector}"
        gate = f"%s = spyreop.silu %a : {vector}\n%y = arith.mulf %s, %b : {vector}"
        x, cos, sin = self.place(HIDDEN), self.place(32), self.place(32)
        for _ in range(self.layers):
            normed = self.norm(x)
            q = self.product(normed, HIDDEN, HIDDEN)
            k = self.product(normed, HIDDEN, SHARED_HEADS * WIDTH)
            v = self.product(normed, HIDDEN, SHARED_HEADS * WIDTH)
            keys, values = (self.place(SHARED_HEADS, LENGTH, WIDTH) for _ in range(2))
            rotated = self.place(HEADS, WIDTH)
            self.rotate(q, HEADS, cos, sin, rotated, (HEADS, WIDTH), "%id, LAST")
            self.rotate(k, SHARED_HEADS, cos, sin, keys, (SHARED_HEADS, LENGTH, WIDTH), "%id, %c127, LAST")
            self.begin("keep", SHARED_HEADS)
            self.add("%c127 = arith.constant 127 : index")
            self.load("v", v, (SHARED_HEADS, WIDTH), "%id, %c0", (1, WIDTH), f"{WIDTH}")
            self.store("v", values, (SHARED_HEADS, LENGTH, WIDTH), "%id, %c127, %c0", (1, 1, WIDTH), f"{WIDTH}")
            self.end()
            attended = self.product(self.attention(rotated, keys, values), HIDDEN, HIDDEN)
            x = self.elementwise("add", x, attended, HIDDEN, plus)
            normed = self.norm(x)
            inner = self.elementwise(
                "gate", self.product(normed, HIDDEN, INNER), self.product(normed, HIDDEN, INNER), INNER, gate
            )
            x = self.elementwise("add", x, self.product(inner, INNER, HIDDEN), HIDDEN, plus)
        self.product(self.norm(x), HIDDEN, WORDS)
        return "\n".join(["module {", *self.lines, "}", ""])

    def arrays(self) -> dict[int, Any]:
        random = np.random.default_rng(0)
        found = {}
        for address, shape in self.shapes.items():
            scale = 0.02 if len(shape) == 2 else 1.0
            found[address] = (random.standard_normal(shape, np.float32) * scale).astype(np.float16)
        return found
