"""From the files of a kernel to what ``_C.prepare_kernel`` takes. Reads nothing but the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..card.lx_budget import tile_budget
from ..ir import bundle as bundles
from ..ir import superdsc
from .schedule import unrolled
from .steps import step_of
from .tiling import resident_end, tile_of


def compile_bundle(
    name: str, sdsc_texts: Sequence[str], arguments: Sequence[int], pool_bytes: int, bundle: str | None = None
) -> dict[str, Any]:
    """The kernel's description: bytes of its arguments, its own memory, and one program of all its steps.

    ``bundle`` is the text of ``bundle.mlir``, which names the files ``sdsc_<position>.json``; without one they run in
    their order, each once.
    """
    pool = len(arguments)
    plain: dict[str, dict[str, Any]] = {}  # steps by file
    moving: dict[str, dict[str, Any]] = {}  # files that a loop moves
    moves: dict[str, bundles.Moves] = {}
    for i, text in enumerate(sdsc_texts):
        dsc = superdsc.loads(text)  # one at a time: hundreds of them would keep the garbage collector busy
        superdsc.verify(dsc)
        file = bundles.file_name(i)
        plain[file] = step_of(dsc, pool)
        moves[file] = bundles.moves_of(dsc)
        if moves[file]:
            moving[file] = dsc
    resident = max(map(resident_end, plain.values()), default=0)
    budget = tile_budget(resident)
    staging = {"staging": resident} if resident else {}
    tiles = {file: {"tile": tile_of(step, budget)} | staging for file, step in plain.items()}
    chain = bundles.parse(bundle) if bundle is not None else bundles.Bundle(name, [bundles.Execute(f) for f in moves])
    bundles.verify(chain, moves)
    numbers = {file: i for i, file in enumerate(plain)}
    steps = []
    for run in unrolled(chain.body):
        step = step_of(moving[run.file], pool, run.moved) if run.file in moving else plain[run.file]
        numbered = {"spec": numbers[run.file]}
        steps.append(step | tiles[run.file] | numbered | ({"turn": True} if run.turn else {}))
    return {
        "name": name,
        "arguments": list(arguments),
        "allocate": [pool_bytes] if pool_bytes else [],
        "steps": [{"type": "Compute", "program": {"steps": steps}}],
    }
