"""Static caches, the caller's or those that ``generate`` makes when asked: steps are compiled, one program for all."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

from .wrapping import on_card, wrap


def fix(cache_utils: ModuleType) -> None:
    wrap(cache_utils.StaticSlidingWindowLayer, "__init__", _remember_length)


def _remember_length(original: Any) -> Any:
    def init(self: Any, max_cache_len: int, *args: Any, **kwargs: Any) -> None:
        original(self, max_cache_len, *args, **kwargs)
        self.whole_length = max_cache_len

    return init


def keep_whole_sequences(cache: Any) -> None:
    """A caller's static cache, still empty, keeps all tokens; masks know how far back a layer looks.

    A layer with a window counts its tokens in a Python number, and code that is compiled would be so for each.
    """
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    layers = getattr(cache, "layers", [])
    for i, layer in enumerate(layers):
        if type(layer) is StaticSlidingWindowLayer and not layer.is_initialized:
            layers[i] = StaticLayer(vars(layer)["whole_length"])
            layers[i].is_sliding = True


def compile_as_other_accelerators(original: Any) -> Any:
    """A static cache makes ``generate`` compile the model, as it does on the devices that the package knows by name."""

    def valid(self: Any, model_kwargs: dict[str, Any], generation_config: Any) -> bool:
        if not on_card(self):
            return original(self, model_kwargs, generation_config)
        from .bucketed_cache import self_attention

        chosen = generation_config.cache_implementation is not None or generation_config.compile_config is not None
        if self_attention(model_kwargs.get("past_key_values")) is not None and not chosen:
            return False
        asked = copy.copy(generation_config)
        asked.compile_config = copy.copy(generation_config.compile_config or self._default_compile_config())
        asked.compile_config._compile_all_devices = True
        return original(self, model_kwargs, asked)

    return valid
