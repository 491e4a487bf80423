"""What the tests of model directories share."""

import shutil
from pathlib import Path

import pytest
import torch

TINY = dict(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=256,
    eos_token_id=None,
    bos_token_id=None,
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama on disk, without a tokenizer; tests do not change it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**TINY)).half().save_pretrained(path)
    return path


@pytest.fixture
def copied(tiny: Path, tmp_path: Path) -> Path:
    """A copy of ``tiny`` that the test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))
