"""``LLM(...).generate`` on the card, against transformers on the CPU; a fallback would be an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.models import tiny

from .expected import check, prompts


def test_prompts_of_many_lengths(serve: Callable[..., dict[str, Any]]) -> None:
    model, given = tiny.decoder("llama"), prompts(1, 5, 17, 40, 84)
    check(model, given, serve(model, given))


@pytest.mark.slow
def test_the_same_without_compiling(serve: Callable[..., dict[str, Any]]) -> None:
    model, given = tiny.decoder("llama"), prompts(1, 5, 17, 40, 84)
    check(model, given, serve(model, given, enforce_eager=True))


@pytest.mark.slow
def test_prompts_longer_than_a_step(serve: Callable[..., dict[str, Any]]) -> None:
    model, given = tiny.decoder("llama"), prompts(300, 5, 129, 200, 63, 64, 65, 128)
    check(model, given, serve(model, given))
