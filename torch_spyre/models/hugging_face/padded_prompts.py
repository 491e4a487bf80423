"""``generate`` with prompts of few sizes and a cache that grows through the same ones.

A prompt is padded on the left to a size of the model's ladder, masked, and has the positions that it has without
padding. The bucketed cache is made here, told how many tokens come, and freed of the padding before a caller sees it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from .host_sequences import prompt_given
from .masks import masks_kept
from .static_cache import keep_whole_sequences
from .wrapping import on_card

# Other modes rebuild the mask from the length of the sequence, which does not know the padding.
_PADDING_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")


def use_bucketed_cache(original: Any) -> Any:
    """The cache is bucketed unless the caller chose one, the mode cannot be padded or the model is not fit for it."""

    def prepare(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, batch_size: int, longest: int
    ) -> Any:
        from . import cache_fitness
        from .bucketed_cache import BucketedCache

        if on_card(self):
            keep_whole_sequences(model_kwargs.get("past_key_values"))
        if (
            not on_card(self)
            or mode.value not in _PADDING_MODES
            or generation_config.is_assistant
            or generation_config.cache_implementation not in (None, "static")
            or generation_config.use_cache is False
            or model_kwargs.get("past_key_values") is not None
            or not self._supports_default_dynamic_cache()
            or not BucketedCache.serves(self.config)
        ):
            return original(self, generation_config, model_kwargs, mode, batch_size, longest)
        prompt = prompt_given()
        if prompt is not None:
            prompt = prompt.repeat_interleave(
                max(generation_config.num_beams, generation_config.num_return_sequences), dim=0
            )
        if not cache_fitness.is_fit(self, generation_config, model_kwargs, longest, prompt):
            dynamic = copy.copy(generation_config)
            dynamic.cache_implementation = None
            return original(self, dynamic, model_kwargs, mode, batch_size, longest)
        model_kwargs["past_key_values"] = cache_fitness.bucketed(self, longest)

    return prepare


def pad_prompts(original: Any) -> Any:
    """The first forward of a bucketed cache gets a padded prompt, with its mask and positions."""

    def prefill(
        self: Any, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> Any:
        from .bucketed_cache import BucketedCache
        from .cache_fitness import PADDED, extras

        cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
        if (
            not isinstance(cache, BucketedCache)
            or not cache.is_empty
            or generation_config.prefill_chunk_size is not None
            or model_kwargs.get("inputs_embeds") is not None
            or extras(model_kwargs)
            or (positions is not None and positions.dim() != 2)
        ):
            return original(self, input_ids, generation_config, model_kwargs, **kwargs)
        padding = cache.sizes.at_least(input_ids.shape[1]) - input_ids.shape[1]
        cache.padding = padding
        mask = model_kwargs.get("attention_mask")
        model_kwargs["attention_mask"] = _padded(torch.ones_like(input_ids) if mask is None else mask, padding)
        for name in PADDED[1:]:
            if model_kwargs.get(name) is not None:
                model_kwargs[name] = _padded(model_kwargs[name].expand(input_ids.shape), padding)
        inputs = self.prepare_inputs_for_generation(_padded(input_ids, padding), **kwargs, **model_kwargs)
        compiled = self._valid_auto_compile_criteria(model_kwargs, generation_config)
        forward = self.get_compiled_call(generation_config.compile_config) if compiled else self
        return forward(**inputs, return_dict=True)

    return prefill


def _padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    return torch.nn.functional.pad(tokens, (count, 0))


def make_room(original: Any) -> Any:
    """Before a forward, the cache grows until the tokens to come fit."""

    def prepare_inputs_for_generation(
        self: Any, input_ids: torch.Tensor, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if not on_card(self):
            return original(self, input_ids, next_sequence_length=next_sequence_length, **kwargs)
        from .bucketed_cache import self_attention

        cache = self_attention(kwargs.get("past_key_values"))
        if cache is not None:
            prompt = kwargs.get("inputs_embeds") if kwargs.get("is_first_iteration") else None
            cache.expect(next_sequence_length or (input_ids if prompt is None else prompt).shape[1])
        with masks_kept(cache is not None):
            return original(self, input_ids, next_sequence_length=next_sequence_length, **kwargs)

    return prepare_inputs_for_generation


def count_tokens(original: Any) -> Any:
    """After a forward, the host counts the tokens that compiled code wrote into the cache."""

    def update(self: Any, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        model_kwargs = original(self, outputs, model_kwargs, *args, **kwargs)
        if on_card(self):
            from .bucketed_cache import self_attention

            cache = self_attention(model_kwargs.get("past_key_values"))
            if cache is not None:
                cache.settle()
        return model_kwargs

    return update


def without_padding(found: Any) -> None:
    """Takes the padding out of what ``generate`` returns, in place: states and attentions are those of the tokens
    alone, without the cache's free slots, and a caller who goes on with the cache knows nothing of padding."""
    if not isinstance(found, dict):
        return
    from .bucketed_cache import self_attention

    cache = self_attention(found.get("past_key_values"))
    if cache is None:
        return
    for prefix in ("", "decoder_"):
        for name in (f"{prefix}hidden_states", f"{prefix}attentions"):
            steps = found.get(name)
            if steps is None:
                continue
            before = found["sequences"].shape[1] - len(steps)  # tokens that the first step has seen
            found[name] = tuple(
                tuple(_own_part(x, cache.padding, step == 0, before + step) for x in layers)
                for step, layers in enumerate(steps)
            )
    cache.drop_padding()


def _own_part(x: Any, padding: int, is_prompt: bool, seen: int) -> Any:
    """Of a step's states [batch, tokens, width], or attentions [batch, heads, tokens, slots]."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.dim() == 4:
        x = x[..., padding : padding + seen]
        return x[:, :, padding:] if is_prompt else x
    return x[:, padding:] if is_prompt else x
