"""``spyreccl``: torch.distributed on cards, one process for each card."""

from .backend import register

__all__ = ["register"]
