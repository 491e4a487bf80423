"""The few lines after a run: how fast here, how fast on the card, what it took."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _C, device
from ..execution import kernel_cache
from .divergence import Divergence
from .generation import Generated


@dataclass(frozen=True)
class Machine:
    """What the card and the host say of themselves once a run is over."""

    mode: str
    card_peak: int
    card_total: int
    host_peak: int
    fallbacks: dict[str, int]
    kernels: dict[str, int]

    @staticmethod
    def now() -> Machine:
        return Machine(
            mode=_C.card_mode(),
            card_peak=device.max_memory_allocated(),
            card_total=device.mem_get_info()[1],
            host_peak=_peak_of_process(),
            fallbacks=device.fallback_counts(),
            kernels=kernel_cache.stats(),
        )


def _peak_of_process() -> int:
    """The most memory that this program had. ``ru_maxrss`` would count that of whoever started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def text(name: str, model: Any, generated: Generated, machine: Machine, divergence: Divergence | None) -> str:
    rows = [
        ("model", f"{name}, {_count(sum(p.numel() for p in model.parameters()))} parameters"),
        ("tokens", f"{len(generated.prompt)} in the prompt, {len(generated.steps)} written"),
        *_sizes(generated),
        *_here(generated, machine),
        *_card(generated),
        ("memory", f"{_bytes(machine.card_peak)} of the card's {_bytes(machine.card_total)}; "
                   f"{_bytes(machine.host_peak)} of this machine"),
        ("fallbacks", ", ".join(f"{op} {n}×" for op, n in machine.fallbacks.items()) or "none"),
        ("kernels", f"{machine.kernels['hits']} from the cache, {machine.kernels['misses']} compiled"),
        *(_divergence(divergence) if divergence else ()),
    ]  # fmt: skip
    return "\n".join(f"{label:<12}{value}" for label, value in rows)


def _sizes(generated: Generated) -> list[tuple[str, str]]:
    """What the tokens were padded to: programs, and with them times, are those of these sizes."""
    sizes = sorted({step.slots for step in generated.steps[1:] if step.slots is not None})
    if generated.steps[0].slots is None:
        return []
    caches = f", cache of {' '.join(map(str, sizes))}" if sizes else ""
    return [("sizes", f"prompt padded to {generated.steps[0].slots}{caches}")]


def _here(generated: Generated, machine: Machine) -> list[tuple[str, str]]:
    first, later = generated.steps[0], generated.steps[2:]
    said = f"{_seconds(first.seconds)} to the first token"
    if later:  # the second step prepares the kernels of all that follow
        said += f", then {1 / statistics.median(step.seconds for step in later):.1f} tokens/s"
    return [("here", said + (" (no values: the card's mode is timing)" if machine.mode == "timing" else ""))]


def _card(generated: Generated) -> list[tuple[str, str]]:
    first, later = generated.steps[0], generated.steps[1:]
    said = f"{_seconds(first.card_milliseconds / 1e3)} to the first token{'' if later else ', modelled'}"
    if later:
        each = statistics.fmean(step.card_milliseconds for step in later) / 1e3
        said += f", then {_seconds(each)} per token ({1 / each:.1f} tokens/s), modelled"
    return [("on the card", said)]


def _divergence(divergence: Divergence) -> list[tuple[str, str]]:
    beyond = divergence.steps - divergence.agreeing - divergence.ties
    said = f"{divergence.agreeing} of {divergence.steps} tokens"
    if divergence.agreeing < divergence.steps:
        said += (
            f"; {divergence.ties} ties within format error, {beyond} beyond it"
            f" (largest gap of logits {divergence.worst_gap:.3g}, format error there {divergence.worst_bound:.3g})"
        )
    layers = divergence.layers
    return [
        ("as CPU fp32", said),
        ("KL", f"{divergence.mean_kl:.2g} nats per token, {divergence.worst_kl:.2g} at worst"),
        *([("layers", f"relative error {layers[0]:.2g} after the first, {layers[-1]:.2g} after the last; "
                      f"worst {layers[divergence.worst_layer]:.2g} after layer {divergence.worst_layer}")]
          if layers else []),
    ]  # fmt: skip


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _count(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.2f} million"
