"""Collectives between the cards of a group, which compiled blocks have inside."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as collectives
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class SpyreCommunicator(DeviceCommunicatorBase):
    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return collectives.wait_tensor(collectives.all_reduce(input_, "sum", self.device_group))
