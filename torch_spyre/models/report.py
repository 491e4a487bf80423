"""The few lines after a run: how fast here, how fast on the card, what it took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _C, device
from ..caching import kernel_cache
from ..units import count, seconds, size
from . import host_memory
from .divergence import Divergence
from .generation import Generated
from .ranks import CardFacts


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
            host_peak=host_memory.peak(),
            fallbacks=device.fallback_counts(),
            kernels=kernel_cache.stats(),
        )


def text(
    name: str,
    parameters: int,
    generated: Generated,
    machine: Machine,
    divergence: Divergence | None,
    cards: Sequence[CardFacts] = (),
) -> str:
    """``cards``: of several, what each one says; the rest is of the first."""
    rows = [
        ("model", f"{name}, {count(parameters)} parameters"),
        ("tokens", f"{len(generated.prompt)} in the prompt, {len(generated.steps)} written"),
        *_sizes(generated),
        *_here(generated, machine),
        *_card(generated),
        ("memory", f"{size(machine.card_peak)} of the card's {size(machine.card_total)}; "
                   f"{size(machine.host_peak)} of this machine"),
        ("fallbacks", ", ".join(f"{op} {n}×" for op, n in machine.fallbacks.items()) or "none"),
        ("kernels", f"{machine.kernels['hits']} from the cache, {machine.kernels['misses']} compiled"),
        *(_divergence(divergence) if divergence else ()),
        *((f"card {rank}", _of_card(facts)) for rank, facts in enumerate(cards)),
    ]  # fmt: skip
    return "\n".join(f"{label:<12}{value}" for label, value in rows)


def _of_card(facts: CardFacts) -> str:
    return (
        f"{size(facts.peak)} of {size(facts.total)}; {seconds(facts.milliseconds / 1e3)} in all, modelled, "
        f"{facts.waiting / facts.milliseconds:.1%} of it waiting for other cards"
    )


def _sizes(generated: Generated) -> list[tuple[str, str]]:
    """What the tokens were padded to: programs, and with them times, are those of these sizes."""
    sizes = sorted({step.slots for step in generated.steps[1:] if step.slots is not None})
    if generated.steps[0].slots is None:
        return []
    caches = f", cache of {' '.join(map(str, sizes))}" if sizes else ""
    return [("sizes", f"prompt padded to {generated.steps[0].slots}{caches}")]


def _here(generated: Generated, machine: Machine) -> list[tuple[str, str]]:
    """Running apart from compiling: the one happens for every token, the other when sizes come that are new."""
    first, later = generated.steps[0], generated.steps[1:]
    ran, compiled = f"{seconds(first.running)} to the first token", f"{seconds(first.compiling)} before the first token"
    if later:
        ran += f", then {len(later) / sum(step.running for step in later):.1f} tokens/s"
        compiled += f", {seconds(sum(step.compiling for step in later))} between later ones"
    ran += " (no values: the card's mode is timing)" if machine.mode == "timing" else ""
    return [("here", ran), ("compiling", compiled)]


def _card(generated: Generated) -> list[tuple[str, str]]:
    first, later = generated.steps[0], generated.steps[1:]
    said = f"{seconds(first.card_milliseconds / 1e3)} to the first token{'' if later else ', modelled'}"
    if later:
        each = statistics.fmean(step.card_milliseconds for step in later) / 1e3
        said += f", then {seconds(each)} per token ({1 / each:.1f} tokens/s), modelled"
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
