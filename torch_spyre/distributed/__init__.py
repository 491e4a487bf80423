"""``spyreccl``: torch.distributed on cards, one process for each card."""

from .backend import register
from .lone import lone_world
from .times import collective_times

__all__ = ["collective_times", "lone_world", "register"]
