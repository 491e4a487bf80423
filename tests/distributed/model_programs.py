"""What ranks do in the tests of whole models."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
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
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 1 / 32,
            "residual_multiplier": 0.22,
            "logits_scaling": 16.0,
        },
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


PROMPT = tuple(range(3, 303, 30))


def write(model: Any, **options: Any) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens, and the logits of each."""
    prompt = torch.tensor([PROMPT], device=model.device)
    found = model.generate(
        prompt, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )
    return found.sequences[0, len(PROMPT) :].tolist(), torch.cat([step.float().cpu() for step in found.logits])


@torch.no_grad()
def read(model: Any, tokens: list[int]) -> torch.Tensor:
    """The logits of a model that is given what another wrote."""
    ids = torch.tensor([[*PROMPT, *tokens[:-1]]], device=model.device)
    return model(ids, use_cache=False).logits[0, len(PROMPT) - 1 :].float().cpu()


def tensor_parallel(
    directory: str, tokens: list[int]
) -> tuple[list[int], torch.Tensor, dict[str, int], dict[str, int]]:
    """What the rank writes and reads; memory that it holds, held at most while it loaded, and that its part needs; and
    the bytes of each parameter that every rank has as a whole."""
    from transformers.distributed import DistributedConfig

    card = torch.spyre  # type: ignore[attr-defined]
    gc.collect()
    card.reset_peak_memory_stats()
    before = card.memory_allocated()
    model = load(directory, distributed_config=DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size()))
    held, most = card.memory_allocated() - before, card.max_memory_allocated() - before
    shards = [p.to_local() if isinstance(p, DTensor) else p for p in (*model.parameters(), *model.buffers())]
    memory = {
        "held": held,
        "most": most,
        "part": sum(shard.nbytes for shard in shards),
        "largest": max(shard.nbytes for shard in shards),
        "whole": sum(p.nbytes for p in model.parameters()),
    }
    whole = {name: p.nbytes for name, p in model.named_parameters() if not _is_divided(p)}
    return write(model)[0], read(model, tokens), memory, whole


def _is_divided(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, DTensor) and not all(placement.is_replicate() for placement in parameter.placements)


@torch.no_grad()
def compiled(directory: str) -> bool:
    """The same bits in one graph."""
    from transformers.distributed import DistributedConfig

    model = load(directory, distributed_config=DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size()))
    ids = torch.tensor([PROMPT], device=model.device)
    found = torch.compile(model.forward, fullgraph=True)(ids, use_cache=False).logits
    return torch.equal(found.cpu(), model(ids, use_cache=False).logits.cpu())


def compiled_tokens(directory: str) -> tuple[list[int], torch.Tensor, dict[str, int]]:
    """Tokens of a model whose steps are compiled, their logits; and how many graphs, breaks and fallbacks there are."""
    from transformers.distributed import DistributedConfig

    card = torch.spyre  # type: ignore[attr-defined]
    model = load(directory, distributed_config=DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size()))
    torch.compiler.reset()
    counters.clear()
    before = sum(card.fallback_counts().values())
    tokens, logits = write(model, cache_implementation="static")
    counts = {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "fallbacks": sum(card.fallback_counts().values()) - before,
    }
    return tokens, logits, counts


@torch.no_grad()
def fms(directory: str, strategy: str | None) -> torch.Tensor:
    """Logits of IBM's models, from the same files."""
    from fms.models import get_model

    model = get_model(
        "hf_pretrained",
        model_path=directory,
        device_type="spyre",
        data_type=torch.float16,
        distributed_strategy=strategy,
        group=dist.group.WORLD if strategy else None,
    ).eval()
    ids = torch.tensor([PROMPT], device="spyre")
    found = model(ids)
    return (found[0] if isinstance(found, tuple) else found).float().cpu()
