"""Attention over a paged cache, as ops of the card: what vLLM calls a backend.

Keys and values of a layer lie apart, each ``[blocks, tokens of a block, heads, head size]``. A program sees
tensors alone: :class:`Step` has all that one step differs from another in.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from .platform import BLOCK


class SpyreAttentionBackend(AttentionBackend):
    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # of the names that vLLM knows, the one for others

    @staticmethod
    def get_impl_cls() -> type[SpyreAttention]:
        return SpyreAttention

    @staticmethod
    def get_builder_cls() -> type[HostTablesBuilder]:
        return HostTablesBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(BLOCK)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True


@dataclasses.dataclass
class HostTables:
    """Of one group of layers: what vLLM's scheduler decided, still on the host."""

    starts: torch.Tensor  # of each request in the flat list of tokens, and its end
    table: torch.Tensor  # the blocks of each request
    slots: torch.Tensor  # where the key of each token goes


class HostTablesBuilder(AttentionMetadataBuilder):
    reorder_batch_threshold = 1

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> HostTables:
        common = common_attn_metadata
        return HostTables(common.query_start_loc_cpu, common.block_table_tensor, common.slot_mapping)


@dataclasses.dataclass
class Step:
    """What the layers of a group get of a step, on the card: rows of equally many queries."""

    blocks: torch.Tensor  # where keys go: [rows * queries], each
    offsets: torch.Tensor
    table: torch.Tensor  # [rows, blocks]
    visible: torch.Tensor  # [rows, 1, queries, keys]


class SpyreAttention(AttentionImpl):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None or logits_soft_cap:
            raise NotImplementedError("ALiBi and a cap on scores do not run on the card yet")
        self.sinks = sinks
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.scale = float(scale)
        self.sliding_window = sliding_window
        self.attn_type = attn_type

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError("layers call attend(), with tensors")

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        rows = step.table.size(0)
        keys.index_put_((step.blocks, step.offsets), key)
        values.index_put_((step.blocks, step.offsets), value)

        def gathered(cache: torch.Tensor) -> torch.Tensor:
            return cache[step.table].flatten(1, 2).transpose(1, 2)

        attended = _attended(
            query.unflatten(0, (rows, -1)).transpose(1, 2),
            gathered(keys),
            gathered(values),
            step.visible,
            self.scale,
            self.sinks,
        )
        return attended.transpose(1, 2).flatten(0, 1)


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    grouped = query.size(1) != key.size(1)
    if sinks is None:
        return F.scaled_dot_product_attention(query, key, value, visible, scale=scale, enable_gqa=grouped)
    if grouped:
        key, value = (each.repeat_interleave(query.size(1) // each.size(1), 1) for each in (key, value))
    scores = torch.where(visible, (query.float() * scale) @ key.float().transpose(2, 3), -torch.inf)
    rest = sinks.float()[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), rest)
    weights = (scores - top).exp()
    return ((weights @ value.float()) / (weights.sum(-1, keepdim=True) + (rest - top).exp())).to(query.dtype)


class CardAttention(Attention):
    """A layer whose caches and step are its attributes: no program knows its name."""

    keys: torch.Tensor
    values: torch.Tensor
    step: Step

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output_shape: torch.Size | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        found = self.impl.attend(
            query.view(-1, self.num_heads, self.head_size),
            key.view(-1, self.num_kv_heads, self.head_size),
            value.view(-1, self.num_kv_heads, self.head_size_v),
            self.keys,
            self.values,
            self.step,
        )
        return found.reshape(-1, self.num_heads * self.head_size_v)

    def bind_kv_cache(self, kv_cache: Any) -> None:
        self.keys, self.values = kv_cache
