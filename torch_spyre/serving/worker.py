"""A worker: one process, one card."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from .. import device as device_module
from ..constants import DEVICE_NAME
from .platform import SpyrePlatform
from .runner import SpyreModelRunner


class SpyreWorker(Worker):
    def init_device(self) -> None:
        if self.parallel_config.world_size > 1:  # so many cards, whose processes share the cores of this machine
            size = str(self.parallel_config.local_world_size)
            os.environ["AIU_WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = size
        self.device = torch.device(DEVICE_NAME, self.local_rank)
        device_module.set_device(self.device)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, SpyrePlatform.dist_backend
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = SpyreModelRunner(self.vllm_config)

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return contextlib.nullcontext()

    def determine_available_memory(self) -> int:
        """The memory for caches: twice what all sequences take at their longest, so that prefixes stay.

        The card's memory bounds it, and so does the host's, where the software card commits what is written.
        """
        if (asked := self.cache_config.kv_cache_memory_bytes) is not None:
            return asked
        free, total = device_module.mem_get_info(self.device)
        room = int(total * self.cache_config.gpu_memory_utilization) - (total - free)
        needed = sum(
            spec.max_memory_usage_bytes(self.vllm_config) for spec in self.model_runner.get_kv_cache_spec().values()
        )
        return min(room, 2 * needed * self.scheduler_config.max_num_seqs)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        self.model_runner.warm_up()
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def execute_dummy_batch(self) -> None:
        pass
