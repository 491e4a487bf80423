"""Mixtures of experts without sorting tokens: sizes that depend on values are in no program.

The package's default sorts tokens by expert and counts them. Here a few tokens gather the weights of their experts.
Many tokens would gather each expert many times: for them every expert sees every token, and what was not chosen is
dropped. Both round alike.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from ...constants import DEVICE_NAME


def fix(moe: ModuleType) -> None:
    grouped, batched = moe.grouped_mm_experts_forward, moe.batched_mm_experts_forward

    @functools.wraps(grouped)
    def forward(self: Any, hidden_states: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if hidden_states.device.type != DEVICE_NAME:
            return grouped(self, hidden_states, indices, weights)
        if self._is_expert_parallel or indices.numel() < self.down_proj.shape[0]:
            return batched(self, hidden_states, indices, weights)
        return _every_expert(self, hidden_states, indices, weights)

    moe.ALL_EXPERTS_FUNCTIONS.register("grouped_mm", forward)


def _every_expert(experts: Any, tokens: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = getattr(experts, name)
        y = x @ (weight if experts.is_transposed else weight.transpose(1, 2))
        return y + getattr(experts, f"{name}_bias")[:, None] if experts.has_bias else y

    found = linear(tokens, "gate_up_proj" if experts.has_gate else "up_proj")
    found = linear(experts._apply_gate(found) if experts.has_gate else experts.act_fn(found), "down_proj")
    chosen = indices == torch.arange(found.shape[0], device=indices.device)[:, None, None]  # expert, token, choice
    share = torch.where(chosen, weights, 0).sum(-1, keepdim=True)
    return torch.where(chosen.any(-1, keepdim=True), found * share, 0).sum(0).to(tokens.dtype)
