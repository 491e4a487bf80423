"""What vLLM asks a platform: names, dtypes, classes, and a configuration that the card can run."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from .. import device as device_module
from ..constants import DEVICE_NAME

BLOCK = 64  # tokens of a block of the cache: a stick of the card's 2-byte numbers


class SpyrePlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = DEVICE_NAME
    device_type = DEVICE_NAME
    dispatch_key = "PrivateUse1"
    dist_backend = "cpu:gloo,spyre:spyreccl"
    device_control_env_var = "SPYRE_VISIBLE_DEVICES"
    simple_compile_backend = "eager"  # of small functions of the host, which a request should not wait for

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return device_module.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(device_module.get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        return float(device_module.memory_allocated(device))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        device_module.set_device(device)

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        device_module.manual_seed_all(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        pass

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def can_update_inplace(cls) -> bool:
        return False

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "torch_spyre.serving.lora.CardAdapters"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "torch_spyre.serving.communicator.SpyreCommunicator"

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        pass

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM is built for no device: there are none."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm.triton_utils.dispatcher import register_kernels

        from .host_kernels import KERNELS

        register_kernels(KERNELS)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError("Latent and sparse attention do not run on the card")
        return "torch_spyre.serving.attention.SpyreAttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        # The runner compiles blocks itself, and host and card take turns.
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        vllm_config.compilation_config.ir_enable_torch_wrap = False
        vllm_config.scheduler_config.async_scheduling = False
        if vllm_config.scheduler_config.scheduler_cls is None:
            vllm_config.scheduler_config.scheduler_cls = "torch_spyre.serving.scheduler.SpyreScheduler"
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "torch_spyre.serving.worker.SpyreWorker"
        parallel.disable_custom_all_reduce = True
        parallel.enable_dbo = False
        cache = vllm_config.cache_config
        if not cache.user_specified_block_size:
            cache.block_size = BLOCK
        if cache.mamba_ssm_cache_dtype == "auto":
            cache.mamba_ssm_cache_dtype = "float32"  # states are sums over all tokens
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        os.environ["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # which has Triton kernels
