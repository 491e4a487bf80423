"""What holds of a plan: rules after every stage, and conditions from the stage that gives them on.

Both are tables of rules (:mod:`.verification`), which live beside their IR: ``loop_ir/``, ``layout/`` and
``planning/`` have a ``verify.py`` each. A rule is about whatever the plan has by then: one about layouts says nothing
before there are any. A condition has a name: stages say with it what they need and what they give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir.op_spec import verify_all
from . import verification
from .layout import verify as layout
from .layout.device_ir import Plan
from .loop_ir import verify as loop_ir
from .loop_ir.overlaps import overlaps
from .planning import verify as planning
from .verification import Rule


def verify(plan: Plan, where: str) -> None:
    """Raises InvalidIR naming the kernel, the place in the pipeline, the op and the rule, for the first fault."""
    place = f"{plan.kernel.name}, {where}"
    loop_ir.verify(plan.kernel, place, plan.verified)
    planning.verify(plan, place)


def check(plan: Plan, names: Sequence[str], where: str) -> None:
    """The same for conditions."""
    for name in names:
        verification.check(f"{plan.kernel.name}, {where}", CONDITIONS[name], plan)


def _aliased(plan: Plan) -> Iterator[str]:
    for op in plan.kernel.ops:
        for access in op.accesses():
            first = plan.storages.get(access.buffer, access.buffer)
            if first != access.buffer:
                yield f"{loop_ir.described(op)} uses {access.buffer}, which lies in the storage of {first}"


def _dead(plan: Plan) -> Iterator[str]:
    needed = {name for name, buffer in plan.kernel.buffers.items() if buffer.kind != "internal"}
    for op in reversed(plan.kernel.ops):
        if op.out.buffer not in needed:
            yield f"nothing reads {op.out.buffer}, which {loop_ir.described(op)} writes"
        needed.update(op.reads())


def _overlapping(plan: Plan) -> Iterator[str]:
    for op in plan.kernel.ops:
        if overlaps(op):
            yield f"{loop_ir.described(op)} reads {op.out.buffer} where other points write it"


def _wrong_specs(plan: Plan) -> Iterator[str]:
    try:
        verify_all(plan.specs)
    except ValueError as error:
        yield str(error)


CONDITIONS = {
    "no aliases": (Rule("arguments on one storage are one buffer", _aliased),),
    "no dead ops": (Rule("every op writes something that is used", _dead),),
    "no overlaps": (Rule("an op reads what it writes only point by point", _overlapping),),
    "layouts": layout.LAYOUTS,
    "device ops": layout.LIFTED,
    "divided": planning.DIVIDED,
    "placed": planning.PLACED,
    "specs": (Rule("the OpSpecs are valid", _wrong_specs),),
}
