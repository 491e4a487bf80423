"""What ranks do in the tests of whole models."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

NEW = 64
SIZES = dict(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=256,
    vocab_size=328,  # 164 and 82 for each rank: no multiples of a stick
    eos_token_id=None,
    bos_token_id=None,
    pad_token_id=None,
)
WINDOW: dict[str, Any] = {"head_dim": 32, "sliding_window": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "granite": (
        "GraniteConfig",
        {"embedding_multiplier": 12.0, "attention_multiplier": 1 / 32, "residual_multiplier": 0.22, "logits_scaling": 16.0},
    ),
    "mistral": ("MistralConfig", WINDOW),
    "gpt_oss": ("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 256,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 16,
            "mamba_d_head": 32,
            "mamba_d_state": 32,
        },
    ),
}


def save(name: str, directory: str) -> None:
    """A model with random weights, large enough to have opinions."""
    import transformers

    cls, changes = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, cls)(**SIZES, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.06)
    model.half().save_pretrained(directory)


def load(directory: str, **options: Any) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float16, **options).eval()


Written = list[tuple[int, float, int]]  # a token, its lead over the next best, and which that is


def write(model: Any) -> Written:
    prompt = torch.randint(3, 300, (1, 10), generator=torch.Generator().manual_seed(1))
    found = model.generate(
        prompt.to(model.device), max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    best = [torch.topk(step[0].float().cpu(), 2) for step in found.logits]
    tokens = found.sequences[0, prompt.shape[1] :].tolist()
    return [
        (token, (one.values[0] - one.values[1]).item(), int(one.indices[one.indices[0] == token].item()))
        for token, one in zip(tokens, best, strict=True)
    ]


def alone(directory: str) -> Written:
    return write(load(directory, device_map="spyre"))


def tensor_parallel(directory: str) -> tuple[Written, int, int, int]:
    """What the rank writes; memory that it holds and held at most while it loaded; what its part of weights takes."""
    from transformers.distributed import DistributedConfig

    card = torch.spyre  # type: ignore[attr-defined]
    card.reset_peak_memory_stats()
    before = card.memory_allocated()
    model = load(directory, distributed_config=DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size()))
    held, most = card.memory_allocated() - before, card.max_memory_allocated() - before
    shards = [p.to_local() if isinstance(p, DTensor) else p for p in (*model.parameters(), *model.buffers())]
    part = sum(-(-shard.nbytes // 128) * 128 for shard in shards)
    return write(model), held, most, part


def fms_tensor_parallel(strategy: bool) -> torch.Tensor:
    """Logits of FMS' llama, with weights that all ranks know."""
    from fms.distributed.strategy import TensorParallelStrategy
    from fms.models import get_model

    whole = get_model("llama", "micro", device_type="cpu", data_type=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.normal_(float(parameter.dim() == 1), 0.05, generator=generator)
    raise NotImplementedError
