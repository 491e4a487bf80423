"""What is changed in which module of transformers, by the module's name. docs/decisions/patches.md says why."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...constants import DEVICE_NAME
from . import (
    experts,
    host_sequences,
    masks,
    padded_prompts,
    parallel_plans,
    position_constants,
    ranks,
    static_cache,
    whisper,
)
from .wrapping import subclasses, wrap

# Models override some of these methods; the overrides are wrapped as well.
_OVERRIDDEN = {
    "prepare_inputs_for_generation": host_sequences.send_inputs,
    "_prepare_text_encoder_decoder_kwargs_for_generation": host_sequences.encode_on_card,
    "_maybe_prepare_encoder_kwargs_for_generation": host_sequences.encode_anything_on_card,
}


def fix_generation(utils: ModuleType) -> None:
    # The package advises against sequences on the host.
    warnings.filterwarnings("ignore", message=f"(?s)You are calling .generate.*the model is on {DEVICE_NAME}")
    mixin = utils.GenerationMixin
    wrap(mixin, "generate", host_sequences.keep_on_host)
    wrap(mixin, "prepare_inputs_for_generation", padded_prompts.make_room)
    for name, wrapper in _OVERRIDDEN.items():
        wrap(mixin, name, wrapper)
    mixin.__init_subclass__ = classmethod(_wrap_overrides)
    for cls in subclasses(mixin):
        _wrap_overrides(cls)
    wrap(mixin, "_prepare_cache_for_generation", padded_prompts.use_bucketed_cache)
    wrap(mixin, "_prefill", padded_prompts.pad_prompts)
    wrap(mixin, "_update_model_kwargs_for_generation", padded_prompts.count_tokens)
    wrap(mixin, "_assisted_decoding", host_sequences.compare_on_host)
    wrap(mixin, "_valid_auto_compile_criteria", static_cache.compile_as_other_accelerators)


def fix_models(modeling: ModuleType) -> None:
    position_constants.fix(modeling)
    ranks.load_without_accelerate(modeling)


def _wrap_overrides(cls: type[Any], /, **kwargs: Any) -> None:
    for name, wrapper in _OVERRIDDEN.items():
        if name in vars(cls):
            wrap(cls, name, wrapper)


FIXES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.cache_utils": static_cache.fix,
    "transformers.distributed.mixin": parallel_plans.add_plans,
    "transformers.distributed.utils": ranks.name_backend,
    "transformers.masking_utils": masks.fix,
    "transformers.modeling_utils": fix_models,
    "transformers.generation.utils": fix_generation,
    "transformers.integrations.moe": experts.fix,
    "transformers.models.whisper.generation_whisper": whisper.fix,
}
