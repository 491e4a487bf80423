"""Mixtures of experts as ops of the card, in the place of vLLM's kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

LIMIT, SLOPE = 7.0, 1.702  # of the activation that gpt-oss has


class CardExperts(MoERunner):
    """A mixture of experts that no program knows by its name."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.gate is not None:
            router_logits, _ = self.gate(hidden_states)
        weights, experts = _chosen(self.router, router_logits)
        found, shared = _mixed(self.routed_experts, hidden_states, weights, experts), None
        if self._shared_experts is not None:
            shared = self._shared_experts._layer(
                hidden_states if shared_experts_input is None else shared_experts_input
            )
        shared, found = self._maybe_apply_routed_scale_to_output(shared, found)
        found = found if shared is None else shared + found
        return tensor_model_parallel_all_reduce(found) if self.moe_config.tp_size > 1 else found


def refuse(runner: MoERunner) -> None:
    """What would be computed wrongly."""
    if type(runner.router) is not FusedTopKRouter:
        raise NotImplementedError(f"Experts chosen by {type(runner.router).__name__} do not run on the card yet")
    if runner.routed_input_transform is not None or runner.routed_output_transform is not None:
        raise NotImplementedError("Experts on a projection of the hidden states do not run on the card yet")
    if runner.moe_config.moe_parallel_config.use_ep:
        raise NotImplementedError("Expert parallelism is not there; tensor parallelism divides experts")
    if runner.routed_experts.apply_router_weight_on_input:
        raise NotImplementedError("Weights of experts on their inputs do not run on the card yet")
    if runner.activation.value not in _ACTIVATIONS:
        raise NotImplementedError(f"Experts with the activation {runner.activation.value} do not run on the card yet")


def _chosen(router: Any, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights and numbers of each token's experts."""
    logits = logits.float()
    if router.scoring_func == "softmax" and router.renormalize:
        best, experts = torch.topk(logits, router.top_k, -1)
        return torch.softmax(best, -1), experts
    scores = torch.sigmoid(logits) if router.scoring_func == "sigmoid" else torch.softmax(logits, -1)
    weights, experts = torch.topk(scores, router.top_k, -1)
    return (weights / weights.sum(-1, keepdim=True) if router.renormalize else weights), experts


def _mixed(layer: Any, tokens: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Few tokens read the weights of their experts alone; many go through each expert, and what was not chosen is
    dropped, because reading an expert once is less than reading it for every token."""
    up, down = layer.w13_weight, layer.w2_weight
    up_bias, down_bias = getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None)
    activation = _ACTIVATIONS[layer.activation.value]
    if experts.numel() < up.size(0):
        found = (up[experts] @ tokens[:, None, :, None]).squeeze(-1)  # token, choice, width
        found = activation(found if up_bias is None else found + up_bias[experts])
        found = (down[experts] @ found.unsqueeze(-1)).squeeze(-1)
        found = found if down_bias is None else found + down_bias[experts]
        return (found * weights[..., None]).sum(1).to(tokens.dtype)
    found = tokens @ up.transpose(1, 2)  # expert, token, width
    found = activation(found if up_bias is None else found + up_bias[:, None])
    found = found @ down.transpose(1, 2)
    found = found if down_bias is None else found + down_bias[:, None]
    chosen = experts == torch.arange(up.size(0), device=experts.device)[:, None, None]
    share = torch.where(chosen, weights, 0).sum(-1, keepdim=True)
    return torch.where(chosen.any(-1, keepdim=True), found * share, 0).sum(0).to(tokens.dtype)


def _gated(function: Any) -> Any:
    def activation(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return function(gate) * up

    return activation


def _clamped(x: torch.Tensor) -> torch.Tensor:
    """Of gpt-oss, whose gates and inputs alternate."""
    gate, up = x[..., ::2].clamp(max=LIMIT), x[..., 1::2].clamp(-LIMIT, LIMIT)
    return (up + 1) * gate * torch.sigmoid(SLOPE * gate)


_ACTIVATIONS = {
    "silu": _gated(F.silu),
    "gelu": _gated(F.gelu),
    "gelu_tanh": _gated(lambda x: F.gelu(x, approximate="tanh")),
    "swigluoai": _clamped,
}
