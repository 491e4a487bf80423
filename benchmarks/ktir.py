"""Programs of KTIR on this machine: milliseconds to load and compile, and to run; then a decoder, token by token."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._ktir_decoder import Decoder
from torch_spyre import ktir

PROGRAMS = Path(__file__).parents[1] / "tests" / "ktir" / "programs"
ROUNDS = 7


def halves(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16)


def arrays() -> dict[str, tuple[str, dict[str, Any]]]:
    rows, long = halves(4096, 1024), halves(1151, 8192)
    heads, halves_of_heads = halves(40, 4096, 128), halves(4096, 64)
    cache = halves(256, 16, 8, 128)
    table = np.arange(64, dtype=np.int32).reshape(8, 8)
    norm = {"x": long, "weight": halves(8192), "bias": halves(8192), "y": long}
    product = {"a": halves(64, 8192), "b": halves(8192, 2048), "c": np.zeros((64, 2048), np.float16)}
    paged = {"q": halves(8, 32, 128), "k": cache, "v": cache, "table": table, "o": halves(8, 32, 128)}
    return {
        "softmax": ("softmax", {"x": rows, "y": rows}),
        "softmax_generic": ("softmax", {"x": rows, "y": rows}),
        "layernorm": ("layernorm", norm),
        "matmul_loop": ("matmul", product),
        "paged_attention": ("paged_attention", paged),
        "rope": ("rope", {"x": heads, "cos": halves_of_heads, "sin": halves_of_heads, "y": heads}),
    }


def best(function: Any) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def programs(chosen: list[str]) -> None:
    for name, (function, given) in arrays().items():
        if chosen and name not in chosen:
            continue
        start = time.perf_counter()
        module = ktir.load(PROGRAMS / f"{name}.mlir")
        _ = module.functions[function].compiled
        loaded = 1000 * (time.perf_counter() - start)
        run = best(lambda module=module, function=function, given=given: module.run(function, **given))
        modelled = module.time(function, **given)
        print(f"{name:<16} load and compile {loaded:7.1f} ms, run {run:7.2f} ms, modelled {modelled:.1f} us")


def decoder() -> None:
    decoder = Decoder()
    text = decoder.build()
    start = time.perf_counter()
    module = ktir.load(text)
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    for each in module.functions.values():
        _ = each.compiled
    compiled = time.perf_counter() - start
    memory = ktir.Memory(decoder.arrays(), copied=False)

    def token() -> None:
        for name in decoder.functions:
            module.run(name, memory=memory)

    token()
    lines = text.count("\n")
    print(f"decoder: {len(decoder.functions)} functions, {lines} lines: load {loaded:.2f} s, compile {compiled:.2f} s")
    print(f"decoder          a token {best(token):.1f} ms")


if __name__ == "__main__":
    programs(sys.argv[1:])
    if not sys.argv[1:] or "decoder" in sys.argv[1:]:
        decoder()
