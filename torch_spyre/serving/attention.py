"""Attention over a paged cache, as ops of the card: what vLLM calls a backend.

Keys and values of a layer lie apart, each ``[blocks, tokens of a block, heads, head size]``. A program sees
tensors alone: :class:`Step` has all that one step differs from another in.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from ..constants import DEVICE_NAME
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
    """What the layers of a group get of a step."""

    blocks: torch.Tensor  # where the key of each token goes: the block,
    offsets: torch.Tensor  # and where in it
    table: torch.Tensor  # [requests, blocks]
    starts: torch.Tensor  # on the host: where the tokens of each request begin, and their end
    lengths: torch.Tensor  # on the host: keys of each request, those of its tokens included


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
        self.sinks = sinks
        self.soft_cap = logits_soft_cap or 0.0
        self.slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, device=DEVICE_NAME)
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
        keys.index_put_((step.blocks, step.offsets), key)
        values.index_put_((step.blocks, step.offsets), value)
        return torch.ops.spyre.paged_attention(
            query,
            keys,
            values,
            step.table,
            step.starts,
            step.lengths,
            self.scale,
            window=self.sliding_window or 0,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            alibi_slopes=self.slopes,
        )


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
