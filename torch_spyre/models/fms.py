"""What IBM's Foundation Model Stack needs of the device; applied when it is imported.

Its experts sort tokens into blocks for a Triton kernel, and other devices loop over experts with masks: neither has a
fixed shape. On the card every token gathers the matrices of its own experts and multiplies with them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..constants import DEVICE_NAME


def install(ops: ModuleType) -> None:
    """``ops`` is fms.triton.pytorch_ops, which defines both functions."""
    from .. import compiler

    compiler.register_decomposition(torch.ops.moe.moe_mm.default)(_gathered_products)
    ops.moe_align_block_size = _unsorted_on_the_card(ops.moe_align_block_size)  # type: ignore[attr-defined]


def _unsorted_on_the_card(sort: Any) -> Any:
    @functools.wraps(sort)
    def aligned(topk_ids: Tensor, block_size: int, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
        if topk_ids.device.type == DEVICE_NAME:
            return topk_ids, topk_ids, topk_ids  # the products below look at none of them
        return sort(topk_ids, block_size, num_experts)

    return aligned


def _gathered_products(
    input: Tensor, moe_matrix: Tensor, token_expert_mapping: Tensor, *_blocks: Any, **_more: Any
) -> Tensor:
    """``input`` has a row for every token, or one for each expert of a token."""
    tokens, active = token_expert_mapping.shape
    rows = input.reshape(tokens, -1, input.shape[-1]).expand(tokens, active, -1)
    return (moe_matrix[token_expert_mapping] @ rows.unsqueeze(-1)).squeeze(-1)
