"""Whoever imports whom first: models of Hugging Face are prepared for the card."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("transformers")

_CHECK = """
import transformers
from transformers.cache_utils import StaticSlidingWindowLayer
from transformers.generation.utils import GenerationMixin
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin
for changed in (
    StaticSlidingWindowLayer.__init__,
    GenerationMixin._prefill,
    ALL_EXPERTS_FUNCTIONS["grouped_mm"],
    WhisperGenerationMixin.generate,
):
    assert "/torch_spyre/models/hugging_face/" in changed.__code__.co_filename, changed
"""


@pytest.mark.parametrize(
    "first",
    [
        "import transformers",
        "import torch, importlib.util; importlib.util.find_spec('transformers')",
        *(
            pytest.param(f"import {name}, tabnanny", marks=pytest.mark.slow)  # whatever is imported in between
            for name in (
                "torch",
                "transformers.cache_utils",
                "transformers.generation.utils",
                "transformers.integrations.moe",
                "transformers.models.whisper.generation_whisper",
            )
        ),
    ],
)
def test_any_order_of_imports(first: str) -> None:
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", first + _CHECK], check=True)


def test_the_device_alone_imports_no_models() -> None:
    code = "import sys, torch; torch.ones(2, device='spyre'); assert 'torch_spyre.models' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
