"""``LLM(...).generate`` on the card, against transformers on the CPU; fallbacks and late compiles would be errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.models import tiny

from .expected import check, prompts

pytest.importorskip("vllm")
Serve = Callable[..., dict[str, Any]]

MODELS = {
    "llama": {},
    "granite": {},
    "mistral": {"sliding_window": 32},
    "qwen3": {},
    "gpt_oss": {},
    "granite_hybrid": {},
}


def test_prompts_of_many_lengths(serve: Serve) -> None:
    model, given = tiny.decoder("llama"), prompts(1, 5, 17, 40, 84)
    check(model, given, serve(model, given))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "eager"), [*((key, False) for key in MODELS), ("llama", True), ("granite_hybrid", True)]
)
def test_architectures(serve: Serve, key: str, eager: bool) -> None:
    """Longer prompts than a step has room for run in parts."""
    model = tiny.decoder(key, **MODELS[key])
    given = prompts(1, 5, 17, 40, 84, 300, 6, 129, 200, 63, 64, 65, 128)
    check(model, given, serve(model, given, enforce_eager=eager))
