"""``spyre timing check``: the clock against measured kernels, by family, and where it is worst."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt

import torch

from .._inductor import config
from ..device.streams import current_stream
from .table import Row, program_of

# RMS of relative errors that a family may have.
BOUNDS = {
    "pointwise": 0.05,
    "broadcast": 0.08,
    "reduction": 0.06,
    "transpose": 0.04,
    "outer transpose": 0.10,
    "concat": 0.10,
    "softmax": 0.15,
    "matmul": 0.12,
    "core ladder": 0.15,
    "chain": 0.08,
}
LEAST_RANK_CORRELATION = 0.99


@dataclass(frozen=True)
class Timed:
    row: Row
    us: float

    @property
    def error(self) -> float:
        return self.us / self.row.us - 1


def time_rows(rows: Iterable[Row], progress: Callable[[Row], None] = lambda row: None) -> list[Timed]:
    """Compiles the program of each row and asks the clock."""
    found = []
    for row in rows:
        progress(row)
        found.append(Timed(row, _microseconds(row)))
    return found


def _microseconds(row: Row) -> float:
    program = program_of(row)
    args = [torch.empty(size, dtype=torch.float16, device="spyre") for size in program.sizes]
    torch._dynamo.reset()
    with config.patch(sencores=row.cores, lx_planning=row.lx_planning), torch.spyre.fallback("error"):  # type: ignore[attr-defined]
        compiled = program.compiled(program.function)
        compiled(*args)
        stream = current_stream()
        before = stream.modelled_time()
        compiled(*args)
        return (stream.modelled_time() - before) * 1000


def report(timed: list[Timed], worst: int = 15) -> str:
    """Errors by family against their bounds, and the rows that are farthest off."""
    lines = [f"{'family':16} {'rows':>5} {'RMS':>7} {'bound':>7} {'mean':>7}"]
    for family, (rms, mean, count) in scores(timed).items():
        bound = BOUNDS.get(family)
        said = "" if bound is None else f"{bound:7.1%}{'' if rms <= bound else '  missed'}"
        lines.append(f"{family:16} {count:5} {rms:7.1%} {said:7} {mean:+7.1%}")
    lines.append(f"rank correlation {rank_correlation(timed):.4f} over {len(timed)} rows")
    lines += ["", "farthest off:"]
    for each in sorted(timed, key=lambda each: -abs(each.error))[:worst]:
        lines.append(f"  {each.error:+7.1%}  {each.us:10.1f} us, measured {each.row.us:10.1f}  {each.row}")
    return "\n".join(lines)


def scores(timed: list[Timed]) -> dict[str, tuple[float, float, int]]:
    """By family: RMS of relative errors, their mean, how many."""
    errors: dict[str, list[float]] = defaultdict(list)
    for each in timed:
        errors[each.row.family].append(each.error)
    return {
        family: (sqrt(sum(e * e for e in found) / len(found)), sum(found) / len(found), len(found))
        for family, found in errors.items()
    }


def failures(timed: list[Timed]) -> list[str]:
    """Families beyond their bounds, in a sentence each."""
    missed = [
        f"{family}: RMS error {rms:.1%}, the bound is {BOUNDS[family]:.0%}"
        for family, (rms, _, _) in scores(timed).items()
        if rms > BOUNDS.get(family, float("inf"))
    ]
    if len(timed) > 2 and (found := rank_correlation(timed)) < LEAST_RANK_CORRELATION:
        missed.append(f"rank correlation {found:.4f}, the bound is {LEAST_RANK_CORRELATION}")
    return missed


def rank_correlation(timed: list[Timed]) -> float:
    """Spearman's."""
    ranks = torch.tensor([[each.us for each in timed], [each.row.us for each in timed]], dtype=torch.float64)
    ranks = ranks.argsort(-1).argsort(-1).double()
    return float(torch.corrcoef(ranks)[0, 1]) if len(timed) > 2 else 1.0


def to_json(timed: list[Timed]) -> str:
    return json.dumps([{**vars(each.row), "modelled_us": each.us} for each in timed])
