"""Whisper cuts sequences at time stamps, which is the host's work, as sequences are in ``generate``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .host_sequences import keep_on_host
from .wrapping import moved, on_card, wrap


def fix(generation_whisper: ModuleType) -> None:
    mixin = generation_whisper.WhisperGenerationMixin
    wrap(mixin, "generate", keep_on_host)
    wrap(mixin, "detect_language", _hear_on_card)
    wrap(mixin, "_retrieve_init_tokens", _return_to_host)


def _hear_on_card(original: Any) -> Any:
    def detect_language(self: Any, input_features: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(self, moved(input_features, self.device), *args, **kwargs)

    return detect_language


def _return_to_host(original: Any) -> Any:
    def retrieve(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        return found.cpu() if on_card(self) else found

    return retrieve
