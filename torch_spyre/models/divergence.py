"""What the card's number format costs: the same tokens through the same model on the CPU in fp32.

Both sides are given the tokens that the card wrote, so that they can be compared at every step and not only until
they first differ. A step where they would choose different tokens is a *tie* if the CPU's logits of the two are nearer
to each other than the format's error, which :func:`tie_bounds` derives from the model alone, not from what the card
computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..constants import DEVICE_NAME
from .loading import decoder_layers

# SEN169 has 9 fraction bits: rounding to nearest is off by at most half a unit in the last of them.
UNIT = 2.0**-10
# Values on the way through a decoder layer that are rounded into that format one after the other: two norms, q/k/v,
# RoPE, scores, softmax, weighted values, output, gate and up, activation, product, down, two sums with the residual.
ROUNDINGS_PER_LAYER = 14
# Embedding, last norm, logits.
ROUNDINGS_OUTSIDE = 3
# Standard deviations of the sum of those roundings that count as format error.
DEVIATIONS = 4.0


@dataclass(frozen=True)
class Divergence:
    steps: int
    agreeing: int
    ties: int
    worst_gap: float
    worst_bound: float
    mean_kl: float
    worst_kl: float
    layers: tuple[float, ...]

    @property
    def worst_layer(self) -> int:
        return max(range(len(self.layers)), key=self.layers.__getitem__)


@torch.no_grad()
def compare(reference: Any, model: Any, prompt: list[int], tokens: list[int], logits: torch.Tensor) -> Divergence:
    """A model on the CPU against one on the card that gave ``logits``, a row for each of ``tokens``."""
    ids = torch.tensor([[*prompt, *tokens]])
    hidden: list[torch.Tensor] = []
    head = reference.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
    try:
        expected_layers, expected = _layers_and_logits(reference, ids)
    finally:
        hook.remove()
    found_layers, _ = _layers_and_logits(model, ids.to(DEVICE_NAME))
    rows = slice(len(prompt) - 1, -1)
    expected = expected[0, rows]

    mine, theirs = expected.argmax(-1), logits.argmax(-1)
    apart = (mine != theirs).nonzero().flatten()
    gaps = expected.gather(-1, mine[:, None]) - expected.gather(-1, theirs[:, None])
    layers = reference.config.get_text_config(decoder=True).num_hidden_layers
    scale = getattr(reference.config, "logits_scaling", 1.0)
    bounds = tie_bounds(hidden[0][0, rows] / scale, head.weight, expected, mine, theirs, layers)
    differing = gaps.flatten()[apart]
    worst = int(differing.argmax()) if len(apart) else 0
    kl = _kl(expected.double().log_softmax(-1), logits.double().log_softmax(-1))
    return Divergence(
        steps=len(tokens),
        agreeing=len(tokens) - len(apart),
        ties=int((differing <= bounds[apart]).sum()),
        worst_gap=float(differing[worst]) if len(apart) else 0.0,
        worst_bound=float(bounds[apart][worst]) if len(apart) else 0.0,
        mean_kl=float(kl.mean()),
        worst_kl=float(kl.max()),
        layers=tuple(
            float((found - wanted).norm() / wanted.norm())
            for found, wanted in zip(found_layers, expected_layers, strict=True)
        ),
    )


def _kl(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence by row, of logarithms of probabilities."""
    return (expected.exp() * (expected - found)).sum(-1)


def tie_bounds(
    hidden: torch.Tensor,
    head: torch.Tensor,
    logits: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    layers: int,
) -> torch.Tensor:
    """How far roundings alone may move the difference of two logits, a row each.

    Each of the N roundings before the last hidden state ``h`` moves an element by a relative error that is uniform up
    to :data:`UNIT`, hence of standard deviation UNIT/sqrt(3); through residual connections they neither grow nor shrink
    and add up as independent ones do, to sqrt(N) times that. The difference of two logits is ``(w1 - w2) · h``, and its
    deviation the norm of ``(w1 - w2) * h`` times it. The logits themselves are rounded once more, by UNIT at most.
    """
    deviation = UNIT * math.sqrt((layers * ROUNDINGS_PER_LAYER + ROUNDINGS_OUTSIDE) / 3)
    difference = ((head[first] - head[second]) * hidden).norm(dim=-1)
    rounded = logits.gather(-1, first[:, None]).abs() + logits.gather(-1, second[:, None]).abs()
    return DEVIATIONS * deviation * difference + UNIT * rounded.flatten()


def _layers_and_logits(model: Any, ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The output of every decoder layer, and the logits, on the host in fp32."""
    outputs: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: object, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).cpu().float())

    hooks = [layer.register_forward_hook(keep) for layer in decoder_layers(model)]
    try:
        return outputs, model(input_ids=ids, use_cache=False).logits.cpu().float()
    finally:
        for hook in hooks:
            hook.remove()
