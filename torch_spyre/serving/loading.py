"""A model of vLLM on the card: made on the host without its weights, which go to the card as they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from .. import _C
from ..model_utils import Owners, along_outputs, wanted_layout
from .attention import CardAttention
from .experts import CardExperts, refuse
from .mamba import CardMamba


def load(config: Any, device: torch.device) -> Any:
    loader = get_model_loader(config.load_config)
    with set_default_torch_dtype(config.model_config.dtype):
        # Tables of positions and the like are computed by the host, in its precision.
        with torch.device("cpu"):
            model = loader.create_model(config, config.model_config)
        _move(model, device)
        loader.load_weights(model, config.model_config)
        process_weights_after_loading(model, config.model_config, device)
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = CardAttention
        elif type(module) is MoERunner:
            refuse(module)
            module.__class__ = CardExperts
        elif type(module) is MambaMixer2:
            module.__class__ = CardMamba
    return model.eval()


def _move(model: nn.Module, device: torch.device) -> None:
    """Memory on the card for what is read from files: matrices. Pages of the host that nothing wrote cost nothing.

    Vectors have their values already: a file need not have each.
    """
    owners: dict[nn.Parameter, Owners] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((module, name))
    for parameter, own in owners.items():  # which stay the same objects: loaders hold on to them
        if parameter.device.type == "cpu":
            shape, dtype = tuple(parameter.shape), parameter.dtype
            if len(shape) < 2:
                _C.set_data(parameter, parameter.data.to(device))
            else:
                is_linear = len(shape) == 2 and all(isinstance(each, LinearBase | ParallelLMHead) for each, _ in own)
                layout = along_outputs(shape, dtype) if is_linear else wanted_layout(shape, dtype, own)
                empty = torch.empty(shape, dtype=dtype, device=device, device_layout=layout)  # type: ignore[call-overload]
                _C.set_data(parameter, empty)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
