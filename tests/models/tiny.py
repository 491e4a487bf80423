"""Small models with random weights, one of each architecture, with the ratios of the real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCABULARY = 160
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_SCALES: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 1 / 32,
    "residual_multiplier": 0.22,
    "logits_scaling": 16.0,
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
_ENCODER: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 320,
}

# name: (configuration class, arguments)
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _TEXT),
    "granite": ("GraniteConfig", {**_TEXT, **_SCALES}),
    "hybrid": (
        "GraniteMoeHybridConfig",
        {
            **_TEXT,
            **_SCALES,
            **_EXPERTS,
            "intermediate_size": 64,
            "shared_intermediate_size": 128,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 32,
            "mamba_n_groups": 1,
            "mamba_expand": 2,
            "position_embedding_type": "nope",
        },
    ),
    "mistral": ("MistralConfig", {**_TEXT, "sliding_window": 16}),
    "qwen2": ("Qwen2Config", _TEXT),
    "qwen3": ("Qwen3Config", {**_TEXT, "head_dim": 32}),
    "gpt_oss": ("GptOssConfig", {**_TEXT, **_EXPERTS, "intermediate_size": 128, "head_dim": 32, "sliding_window": 16}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": None},
    ),
}


def decoder(name: str, seed: int = 0, **changes: Any) -> Any:
    kind, arguments = DECODERS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**{**arguments, **changes})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(vocab_size=VOCABULARY, **_ENCODER)).eval()


def vit() -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=64, patch_size=16, num_labels=10, **_ENCODER)
    return transformers.ViTForImageClassification(config).eval()


def whisper() -> Any:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=320,
        decoder_ffn_dim=320,
        max_source_positions=50,
        max_target_positions=80,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config).eval()


def prompts(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
