"""What no program for a card can beat: reading every weight that is used once, or the multiply-adds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..card import description


def milliseconds(model: Any, tokens: int, context: int, batch: int, dtype: torch.dtype) -> float:
    """Of a whole model on one card: ``tokens`` of each sequence at once, after ``context`` others.

    ``model`` may be on the meta device. Of tables rows alone are read, of experts those that the tokens can reach.
    """
    card = description.constants()
    config = model.config.get_text_config(decoder=True)
    read = _weights(model, config, tokens * batch) + batch * _cached(config, context)
    bandwidth = card["dram_gb_per_s"] * 1e6  # bytes per millisecond
    peak = card["pt_mac_per_ns"] * card["cores"] * 1e6  # multiply-adds per millisecond
    return max(read * dtype.itemsize / bandwidth, batch * _products(model, config, tokens, context) / peak)


def _weights(model: Any, config: Any, tokens: int) -> float:
    experts = getattr(config, "num_local_experts", None) or 0
    share = min(1.0, tokens * config.num_experts_per_tok / experts) if experts else 1.0
    found = {
        id(weight): weight.numel() * (share if _is_of_experts(weight, experts) else 1.0)
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    return sum(found.values())


def _cached(config: Any, context: int) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * _attentions(config) * heads * _head_width(config) * context


def _products(model: Any, config: Any, tokens: int, context: int) -> float:
    """Multiply-adds of one sequence. The head sees its last token."""
    experts = getattr(config, "num_local_experts", None) or 0
    share = config.num_experts_per_tok / experts if experts else 0
    head = model.get_output_embeddings()
    total = 0.0
    for module in model.modules():
        for weight in () if isinstance(module, nn.Embedding) else module.parameters(recurse=False):
            if weight.dim() > 1:
                times = 1 if module is head else tokens
                total += times * weight.numel() * (share if _is_of_experts(weight, experts) else 1.0)
    width = config.num_attention_heads * _head_width(config)
    return total + 2 * _attentions(config) * width * tokens * (context + tokens)


def _attentions(config: Any) -> int:
    kinds = getattr(config, "layer_types", None)
    return sum("attention" in kind for kind in kinds) if kinds else config.num_hidden_layers


def _head_width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _is_of_experts(weight: torch.Tensor, experts: int) -> bool:
    return bool(experts) and weight.dim() == 3 and weight.shape[0] == experts
