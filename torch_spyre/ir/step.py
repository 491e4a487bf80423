"""One step of a card program, as data. The planner times the steps that this makes, and the back end emits them."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernel_types import Constant, Operand, Scalar, Step
from ..ops.table import OpRow

_OPCODES = {"pointwise": "elementwise", "reduction": "reduce"}  # other kinds are opcodes themselves


def compute_step(
    row: OpRow,
    extents: Sequence[int],
    slices: Sequence[int],
    operands: Sequence[Operand | Constant],
    *,
    reduced: int = 0,
    constants: Sequence[Scalar] = (),
) -> Step:
    """The step of an op, without its tile. ``operands``: the output first, then the inputs.

    ``slices`` are the cores that share each loop, ``reduced`` is how many of the last loops a reduction folds.
    """
    written, *inputs = operands
    moves = row.name == "copy" and all(
        "value" not in each and each["format"] == written["format"] for each in inputs
    )  # without conversion
    step: Step = {
        "op": row.name if moves or row.name == "restickify" else _OPCODES.get(row.kind, row.kind),
        "extents": list(extents),
        "slices": list(slices),
        "operands": list(operands),
    }
    if row.function and not moves:
        step["function"] = row.function
    if row.cost == "special":
        step["special"] = True
    if constants:
        step["constants"] = list(constants)
    if row.folds_by_choice:
        step["reduced"] = reduced
    return step
