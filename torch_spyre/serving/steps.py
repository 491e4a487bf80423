"""What layers get of a step: from the tables of vLLM's scheduler on the host, padded to a program, sent to the card."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from .attention import CardAttention, HostTables, Step
from .lora import CardAdapters
from .mamba import CardMamba, StateStep
from .segments import Segment

Layers = dict[str, CardAttention | CardMamba]


@dataclasses.dataclass
class Tokens:
    """The tokens of a segment."""

    segment: Segment
    at: Any  # where they lie in the program
    of: Any  # where they lie in the step
    ids: Any  # of all tokens of the program; 0 is padding
    positions: Any

    @staticmethod
    def taken(segment: Segment, starts: Any, ids: Any, positions: Any) -> Tokens:
        at, of = segment.places(starts)
        padded = [np.zeros(segment.tokens, np.int32) for _ in range(2)]
        padded[0][at], padded[1][at] = ids[of], positions[of]
        return Tokens(segment, at, of, *padded)

    @staticmethod
    def none(segment: Segment) -> Tokens:
        nothing = np.zeros(0, np.int64)
        return Tokens(segment, nothing, nothing, *(np.zeros(segment.tokens, np.int32) for _ in range(2)))


def give(
    layers: Layers, adapters: CardAdapters | None, tokens: Tokens, tables: dict[str, HostTables], card: torch.device
) -> None:
    """Every layer gets what it needs of the step; layers of a group share it."""
    if adapters is not None:
        chosen = np.full(tokens.segment.tokens, -1, np.int32)
        chosen[tokens.at] = adapters.token_lora_indices.numpy()[tokens.of]
        adapters.tokens = sent(chosen, card)
    steps: dict[tuple[int, int], Step | StateStep] = {}
    for name, layer in layers.items():
        size = layer.conv_kernel_size if isinstance(layer, CardMamba) else layer.keys.size(1)
        key = id(tables[name]), size
        if key not in steps:
            make = _state_step if isinstance(layer, CardMamba) else _attention_step
            steps[key] = make(tokens, tables[name], size, card)
        layer.step = steps[key]


def _attention_step(tokens: Tokens, given: HostTables, block: int, card: torch.device) -> Step:
    segment = tokens.segment
    slots = np.arange(segment.tokens) % block  # padding goes to block 0, which vLLM gives to nobody
    slots[tokens.at] = given.slots.numpy()[tokens.of]
    # A row's padding attends to keys behind its own, in blocks behind them.
    width = given.table.size(1)
    table = np.zeros((segment.rows, width + -(-segment.behind // block)), np.int32)
    table[: len(segment.requests), :width] = given.table.numpy()[list(segment.requests)]
    counts = segment.starts[1:] - segment.starts[:-1]
    before = np.where(counts > 0, tokens.positions[np.minimum(segment.starts[:-1], segment.tokens - 1)], 0)
    return Step(
        sent((slots // block).astype(np.int32), card),
        sent((slots % block).astype(np.int32), card),
        sent(table, card),
        torch.from_numpy(segment.starts.astype(np.int32)),
        torch.from_numpy((before + counts).astype(np.int32)),
    )


def _state_step(tokens: Tokens, given: HostTables, width: int, card: torch.device) -> StateStep:
    segment = tokens.segment
    each = segment.tokens // segment.rows
    counts = np.zeros((segment.rows, each, 1), np.float32)
    counts.reshape(-1)[tokens.at] = 1
    states = np.zeros(segment.rows, np.int32)
    states[: len(segment.requests)] = given.table.numpy()[list(segment.requests), 0]
    ends = np.arange(segment.rows) * (each + width - 1) + counts.sum((1, 2)).astype(np.int64)
    return StateStep(
        sent(states, card),
        sent(tokens.positions.reshape(segment.rows, each)[:, 0, None, None] == 0, card),
        sent(counts, card),
        sent((ends[:, None] + np.arange(width - 1)).astype(np.int32), card),
    )


def sent(array: Any, card: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(card)
