"""LoRA adapters as ops of the card: tokens go through all adapters, of which there are few, and keep their own."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase
from vllm.model_executor.layers.linear import LinearBase


class CardAdapters(PunicaWrapperBase):
    """vLLM's table of which token has which adapter, and what layers do with it."""

    tokens: torch.Tensor  # on the card: the adapter of each token of the program, -1 without one

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> torch.Tensor:
        """Returns the sum: nothing is written in place."""
        count = lora_a_stacked[0].size(0)
        own = (self.tokens == torch.arange(count, device=x.device, dtype=self.tokens.dtype)[:, None])[..., None]
        found = []
        for a, b in zip(lora_a_stacked, lora_b_stacked, strict=True):
            through = (x @ a[:, 0].transpose(1, 2)) @ b[:, 0].transpose(1, 2)  # adapter, token, output
            found.append(torch.where(own, through, 0).sum(0))
        return y + scale * (found[0] if len(found) == 1 else torch.cat(found, -1))

    def add_shrink(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("Adapters change linear layers alone")

    add_expand = add_lora_embedding = add_lora_logits = apply_lora_full_linear = add_shrink


def restrict(model: torch.nn.Module, config: Any) -> None:
    """Adapters may change linear layers; embeddings and logits are not among them."""
    names = {name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, LinearBase)}
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    allowed = names | {part for name in names for part in packed.get(name, [])}
    config.target_modules = sorted(allowed & set(config.target_modules) if config.target_modules else allowed)


def adapters_of(model: torch.nn.Module) -> CardAdapters | None:
    layers = (each for each in model.modules() if isinstance(each, BaseLayerWithLoRA))
    return next((layer.punica_wrapper for layer in layers), None)
