"""Models with adapters, models that embed, and models on several cards."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import tiny
from torch_spyre.models.files import BOX

from .expected import check, prompts

pytest.importorskip("vllm")
Serve = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow
RANK = 8


def _adapter(model: Any, directory: Path, seed: int) -> Any:
    """Writes an adapter of some layers; returns a copy of the model with it."""
    from safetensors.torch import save_file

    directory.mkdir()
    chance = torch.Generator().manual_seed(seed)
    adapted, weights = copy.deepcopy(model), {}
    for name, layer in adapted.named_modules():
        if name.rpartition(".")[2] in ("q_proj", "v_proj", "down_proj"):
            a = torch.randn(RANK, layer.in_features, generator=chance) / layer.in_features**0.5
            b = torch.randn(layer.out_features, RANK, generator=chance) / RANK**0.5
            weights[f"base_model.model.{name}.lora_A.weight"] = a
            weights[f"base_model.model.{name}.lora_B.weight"] = b
            layer.weight.data += b @ a
    save_file(weights, directory / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return adapted


def test_requests_with_different_adapters_run_together(serve: Serve, tmp_path: Path) -> None:
    model = tiny.decoder("llama")
    adapted = [_adapter(model, tmp_path / name, seed) for seed, name in enumerate("ab")]
    given = prompts(5, 40, 70)
    sampling = [{"adapter": str(tmp_path / "a")}, {"adapter": str(tmp_path / "b")}, {}]
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    found = serve(model, given, sampling, **options)
    for i, each in enumerate([*adapted, model]):
        check(each, given[i : i + 1], {name: found[name][i : i + 1] for name in ("tokens", "logprobs")})


def test_embeddings(serve: Serve) -> None:
    from transformers import AutoModel

    model, given = AutoModel.from_pretrained(BOX, dtype=torch.float32), prompts(1, 30, 90, 200)
    found = serve(str(BOX), given, runner="pooling", convert="embed", max_model_len=256)["embedded"]
    for prompt, own in zip(given, found, strict=True):
        with torch.no_grad():
            last = model(torch.tensor([prompt])).last_hidden_state[0, -1]
        assert torch.nn.functional.cosine_similarity(last, torch.tensor(own), dim=0) > 0.9999


@pytest.mark.parametrize("cards", [2, 4])
def test_cards_share_a_model(serve: Serve, cards: int) -> None:
    model = tiny.decoder("llama", num_key_value_heads=4, num_attention_heads=4)
    given = prompts(5, 40, 150)
    check(model, given, serve(model, given, tensor_parallel_size=cards))
