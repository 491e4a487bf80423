"""From the files of a kernel to what ``_C.prepare_kernel`` takes. Reads nothing but the files."""

from __future__ import annotations

from collections.abc import Sequence

from ..card.lx_budget import tile_budget
from ..ir import bundle as bundles
from ..ir import superdsc
from ..kernel_types import Description, KernelDescription, Step
from .schedule import unrolled
from .steps import step_of
from .tiling import resident_end, tile_of


def compile_bundle(
    name: str, sdsc_texts: Sequence[str], arguments: Sequence[int], pool_bytes: int, bundle: str | None = None
) -> KernelDescription:
    """The kernel's description: the bytes of its arguments and of its pool, and one program of all its steps.

    ``bundle`` is the text of ``bundle.mlir``, which names the files ``sdsc_<position>.json``; without one, each file
    runs once, in order.
    """
    pool = len(arguments)
    plain: dict[str, Step] = {}  # file -> its step, outside of loops
    moving: dict[str, Description] = {}  # files with tensors that a loop moves
    moves: dict[str, bundles.Moves] = {}
    for i, text in enumerate(sdsc_texts):
        dsc = superdsc.loads(text)  # one at a time: hundreds of them alive would slow the garbage collector down
        superdsc.verify(dsc)
        file = bundles.file_name(i)
        plain[file] = step_of(dsc, pool)
        moves[file] = bundles.moves_of(dsc)
        if moves[file]:
            moving[file] = dsc
    resident = max(map(resident_end, plain.values()), default=0)
    budget = tile_budget(resident)
    tiles = {file: tile_of(step, budget) for file, step in plain.items()}
    chain = bundles.parse(bundle) if bundle is not None else bundles.Bundle(name, [bundles.Execute(f) for f in moves])
    bundles.verify(chain, moves)
    steps: list[Step] = []
    for run in unrolled(chain.body):
        untiled = step_of(moving[run.file], pool, run.moved) if run.file in moving else plain[run.file]
        step: Step = {**untiled, "tile": tiles[run.file]}
        if resident:
            step["staging"] = resident
        if run.turn:
            step["turn"] = True
        steps.append(step)
    return {
        "name": name,
        "arguments": list(arguments),
        "allocate": [pool_bytes] if pool_bytes else [],
        "steps": [{"type": "Compute", "program": {"steps": steps}}],
    }
