"""How busy a card of this process is: ``torch.cuda``'s questions, answered by the counters that ``spyre smi`` shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import _C

if TYPE_CHECKING:
    from ..smi.layout import Work

_before: dict[tuple[str, int], tuple[int, Work]] = {}  # of each question: when it was asked last, and the counters then
_started = time.monotonic_ns()


def utilization(device: Any = None) -> int:
    """Per cent of wall time in which the software card worked, since this was asked last."""
    nanoseconds, work = _since("utilization", device)
    return round(100 * min(1.0, work.working_ns / max(1, nanoseconds)))


def power_draw(device: Any = None) -> int:
    """Modelled power while the card worked, since this was asked last, in milliwatts."""
    from ..smi import power

    return round(1000 * power.watts(_since("power_draw", device)[1]))


def temperature(device: Any = None) -> int:
    """Modelled temperature in degrees Celsius of a card that works on as it did since this was asked last."""
    from ..smi import power

    return round(power.celsius(power.watts(_since("temperature", device)[1])))


def _since(question: str, device: Any) -> tuple[int, Work]:
    from ..smi.layout import Work, parse_card
    from . import _index_of

    index = _index_of(device)
    counters = _C.card_counters(index)
    now = time.monotonic_ns()
    work = parse_card(counters, now).work
    then, before = _before.get((question, index), (_started, Work()))
    _before[question, index] = now, work
    return now - then, work.since(before)
