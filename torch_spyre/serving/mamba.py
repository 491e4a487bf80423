"""Mamba-2 layers as ops of the card, in the place of vLLM's kernels; states lie on the card, one in each block."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from .attention import SpyreAttentionBackend

CHUNK = 128  # tokens that are computed at once as products of matrices


class StateBackend(SpyreAttentionBackend):
    """What vLLM calls the attention backend of a layer that keeps a state."""

    @classmethod
    def is_ssm(cls) -> bool:
        return True


@dataclasses.dataclass
class StateStep:
    """What the layers get of a step, on the card: rows of equally many tokens."""

    states: torch.Tensor  # the block of each row
    begins: torch.Tensor  # [rows, 1, 1]: whether there is no state yet
    counts: torch.Tensor  # [rows, tokens, 1]: 1, and 0 for padding
    tails: torch.Tensor  # [rows, width of the convolution - 1]: what the next step's convolution needs, see _convolved


class CardMamba(MambaMixer2):
    """A layer whose states and step are its attributes: no program knows its name."""

    convolution: torch.Tensor  # [blocks, width - 1, channels]
    states: torch.Tensor  # [blocks, heads, head size, state size]
    step: StateStep

    def get_attn_backend(self) -> type[StateBackend]:
        return StateBackend

    def bind_kv_cache(self, kv_cache: Any) -> None:
        self.convolution, self.states = kv_cache

    def forward(self, hidden_states: torch.Tensor, mup_vector: torch.Tensor | None = None) -> torch.Tensor:
        projected, _ = self.in_proj(hidden_states)
        if mup_vector is not None:
            projected = projected * mup_vector
        gate, inputs, dt = projected.split(
            [self.tped_intermediate_size, self.tped_conv_size, self.tped_dt_size], dim=-1
        )
        rows = self.step.begins.size(0)
        inputs = self._convolved(inputs.unflatten(0, (rows, -1)))
        found = self._scanned(inputs, dt.unflatten(0, (rows, -1)))
        output, _ = self.out_proj(self.norm(found.flatten(0, 1).to(hidden_states.dtype), gate))
        return output

    def _convolved(self, inputs: torch.Tensor) -> torch.Tensor:
        """Each channel over its last tokens, [rows, tokens, channels]; keeps the last inputs for the next step."""
        step, width = self.step, self.conv_kernel_size
        before = torch.where(step.begins, 0.0, self.convolution[step.states])
        window = torch.cat([before, inputs], 1)
        self.convolution.index_put_((step.states,), window.flatten(0, 1)[step.tails])
        weight = self.conv1d.weight.squeeze(1).float()
        taps = [window[:, k : k + inputs.size(1)].float() * weight[:, k] for k in range(width)]
        found = sum(taps[1:], taps[0])
        return F.silu(found if self.conv1d.bias is None else found + self.conv1d.bias.float())

    def _scanned(self, inputs: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        """The recurrence in float32, [rows, tokens, heads * head size]; keeps the last state."""
        step, tokens = self.step, inputs.size(1)
        x, b, c = self.split_hidden_states_B_C_fn(inputs)
        x = x.unflatten(-1, (-1, self.head_dim))  # row, token, head, element
        b, c = (_of_each_head(each.unflatten(-1, (-1, self.ssm_state_size)), x.size(2)) for each in (b, c))
        dt = F.softplus(dt.float() + self.dt_bias.float()) * step.counts
        state = torch.where(step.begins[..., None], 0.0, self.states[step.states].float())
        found = []
        for at in range(0, tokens, CHUNK):
            part = slice(at, min(at + CHUNK, tokens))
            y, state = _chunk(x[:, part], b[:, part], c[:, part], dt[:, part], self.A, state)
            found.append(y)
        self.states.index_put_((step.states,), state.to(self.states.dtype))
        y = found[0] if len(found) == 1 else torch.cat(found, 1)
        return (y + self.D.float()[:, None] * x).flatten(2, 3)


def _of_each_head(groups: torch.Tensor, heads: int) -> torch.Tensor:
    return groups.repeat_interleave(heads // groups.size(2), 2)


def _chunk(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Some tokens of the recurrence at once: ``state = exp(dt * a) * state + dt * x * b``, ``y = state @ c``."""
    given = (dt[..., None] * x).transpose(1, 2)  # row, head, token, element
    b, c = b.transpose(1, 2), c.transpose(1, 2)
    decay = (dt * a).transpose(1, 2)  # row, head, token: logarithms
    if x.size(1) == 1:
        state = decay.exp()[..., None] * state + given.transpose(2, 3) * b
        return (state @ c.transpose(2, 3)).permute(0, 3, 1, 2), state
    total = decay.cumsum(-1)
    between = total[..., :, None] - total[..., None, :]
    later = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
    weights = (c @ b.transpose(2, 3)) * torch.where(later, between, -torch.inf).exp()
    y = weights @ given + total.exp()[..., None] * (c @ state.transpose(2, 3))
    left = (total[..., -1:] - total).exp()[..., None] * given
    state = total[..., -1].exp()[..., None, None] * state + left.transpose(2, 3) @ b
    return y.transpose(1, 2), state
