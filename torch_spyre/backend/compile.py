"""From the files of a kernel to what ``_C.prepare_kernel`` takes. Reads nothing but the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import bundle as bundles
from ..ir import superdsc
from .schedule import unrolled
from .steps import step_of
from .tiling import lx_budget, tile_of


def compile_bundle(
    name: str, sdsc_texts: Sequence[str], arguments: Sequence[int], pool_bytes: int, bundle: str | None = None
) -> dict[str, Any]:
    """The kernel's description: bytes of its arguments, its own memory, and one program of all its steps.

    ``bundle`` is the text of ``bundle.mlir``, which names the files ``sdsc_<position>.json``; without one they run in
    their order, each once.
    """
    files = {bundles.file_name(i): superdsc.loads(text) for i, text in enumerate(sdsc_texts)}
    for dsc in files.values():
        superdsc.verify(dsc)
    chain = bundles.parse(bundle) if bundle is not None else bundles.Bundle(name, [bundles.Execute(f) for f in files])
    bundles.verify(chain, files)
    budget, pool = lx_budget(), len(arguments)
    steps, tiles = [], {}
    for file, moved in unrolled(chain.body):
        step = step_of(files[file], pool, moved)
        if file not in tiles:  # loops move a step, they do not change its shape
            tiles[file] = tile_of(step, budget)
        steps.append(step | {"tile": tiles[file]})
    return {
        "name": name,
        "arguments": list(arguments),
        "allocate": [pool_bytes] if pool_bytes else [],
        "steps": [{"type": "Compute", "program": {"steps": steps}}],
    }
