"""What makes unmodified Hugging Face models run well on the card; applied when their package is imported.

Every change looks at the device of the model at hand: models elsewhere run the package's own code.

``generate`` works as it does on other accelerators, with three differences that are not seen in its results:

* The sequences themselves live on the host. They grow by a token at a time, and each length would be a program.
* Prompts are padded on the left to a size of the model's ladder (``buckets.py``), masked, and with the positions that
  they have without padding; logits processors, criteria and streamers never see the padding.
* The cache is a :class:`~.bucketed_cache.BucketedCache` unless the caller chose one, or the model was shown not to be
  fit for it (``cache_fitness.py``): then it is the package's own, and nothing is padded.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from ..constants import DEVICE_NAME
from . import hugging_face_ranks


def warm_up(model: Any, longest: int, new_tokens: int = 2, batch_size: int = 1, **options: Any) -> tuple[int, ...]:
    """Compiles what ``generate`` needs for prompts of up to ``longest`` tokens and ``new_tokens`` more.

    Returns the sizes that prompts are padded to; caches go through the same ones. After it, ``model.generate(...,
    **options)`` on this many sequences compiles nothing, however it chooses tokens: that is the host's work.
    """
    from .bucketed_cache import lengths_that_change, sizes_of

    sizes = sizes_of(model.config.get_text_config(decoder=True)).up_to(longest)
    with lengths_that_change():
        for size in sizes:
            # A token after the first needs the next size of the cache; the longest prompt goes all the way.
            count = new_tokens if size == sizes[-1] else min(new_tokens, 2)
            prompt = torch.zeros((batch_size, size), dtype=torch.int64, device=model.device)
            mask = torch.ones_like(prompt)
            model.generate(prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, **options)
    return sizes


def _change(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrap(original)))


def _subclasses(cls: type[Any]) -> set[type[Any]]:
    """All that are defined already, directly or not."""
    return {found for one in cls.__subclasses__() for found in (one, *_subclasses(one))}


def _on_card(model: Any) -> bool:
    return model.device.type == DEVICE_NAME


def _moved(value: Any, device: Any) -> Any:
    """Tensors in an argument of a model, or in what ``generate`` returns, on another device. Caches stay, and so does
    float64, which only the host has."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype == torch.float64 else value.to(device)
    if type(value) is dict:
        return {name: _moved(one, device) for name, one in value.items()}
    if isinstance(value, OrderedDict):  # the package's outputs
        moved = copy.copy(value)
        for name, one in value.items():
            moved[name] = _moved(one, device)
        return moved
    if type(value) in (tuple, list):
        return type(value)(_moved(one, device) for one in value)
    return value


# ---- generate


def fix_generation(utils: ModuleType) -> None:
    # It advises against sequences on the host.
    warnings.filterwarnings("ignore", message=f"(?s)You are calling .generate.*the model is on {DEVICE_NAME}")
    mixin = utils.GenerationMixin
    _change(mixin, "generate", _keep_sequences_on_host)
    _change(mixin, "prepare_inputs_for_generation", _make_room)
    for name, wrap in _IN_SUBCLASSES.items():
        _change(mixin, name, wrap)
    mixin.__init_subclass__ = classmethod(_change_overrides)
    for cls in _subclasses(mixin):
        _change_overrides(cls)
    _change(mixin, "_prepare_cache_for_generation", _use_bucketed_cache)
    _change(mixin, "_prefill", _pad_prompts)
    _change(mixin, "_update_model_kwargs_for_generation", _count_tokens)
    _change(mixin, "_assisted_decoding", _compare_on_host)
    _change(mixin, "_valid_auto_compile_criteria", _compile_as_other_accelerators)


def _change_overrides(cls: type[Any], /, **kwargs: Any) -> None:
    """Models that have their own way with inputs send them as well."""
    for name, wrap in _IN_SUBCLASSES.items():
        if name in vars(cls):
            _change(cls, name, wrap)


_prompt_given: ContextVar[torch.Tensor | None] = ContextVar("prompt_given", default=None)


def _keep_sequences_on_host(original: Any) -> Any:
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_card(self):
            return original(self, *args, **kwargs)
        prompt = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        args, kwargs = (_moved(given, "cpu") for given in (args, kwargs))
        ids = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs"))
        token = _prompt_given.set(ids if isinstance(ids, torch.Tensor) and not ids.is_floating_point() else None)
        try:
            found = original(self, *args, **kwargs)
        finally:
            _prompt_given.reset(token)
        _cut_padding(found)
        _return_cache(found)
        if prompt is not None and prompt.device.type == "cpu":
            return found
        if isinstance(found, torch.Tensor):
            return found.to(self.device)
        for name, value in list(found.items()):
            found[name] = _moved(value, self.device)
        return found

    return generate


def _cut_padding(found: Any) -> None:
    """States and attentions of the tokens alone: neither of padding before them nor of the cache's free slots."""
    from .bucketed_cache import self_attention

    cache = self_attention(found.get("past_key_values")) if isinstance(found, dict) else None
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


def _own_part(x: Any, padding: int, is_prompt: bool, seen: int) -> Any:
    """Of a step's states [batch, tokens, width], or attentions [batch, heads, tokens, slots]."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.dim() == 4:
        x = x[..., padding : padding + seen]
        return x[:, :, padding:] if is_prompt else x
    return x[:, padding:] if is_prompt else x


def _return_cache(found: Any) -> None:
    """A caller who goes on with the cache knows nothing of the padding in it."""
    if isinstance(found, dict) and found.get("past_key_values") is not None:
        from .bucketed_cache import self_attention

        cache = self_attention(found["past_key_values"])
        if cache is not None:
            cache.drop_padding()


def _encode_on_card(original: Any) -> Any:
    def prepare(self: Any, inputs_tensor: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_card(self):
            return original(self, inputs_tensor, model_kwargs, *args, **kwargs)
        sent = _moved(model_kwargs, self.device)
        found = original(self, _moved(inputs_tensor, self.device), sent, *args, **kwargs)
        return {**model_kwargs, "encoder_outputs": found["encoder_outputs"]}

    return prepare


def _encode_anything_on_card(original: Any) -> Any:
    """What an encoder made stays on the card; what it was given, and what is left of it, on the host."""

    def prepare(self: Any, inputs_tensor: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_card(self):
            return original(self, inputs_tensor, model_kwargs, *args, **kwargs)
        sent = _moved(model_kwargs, self.device)
        found = original(self, _moved(inputs_tensor, self.device), dict(sent), *args, **kwargs)
        return {
            name: model_kwargs[name] if name in sent and value is sent[name] else value for name, value in found.items()
        }

    return prepare


# Others rebuild the mask from the length of the sequence, which does not know the padding.
_PADDING_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")


def _use_bucketed_cache(original: Any) -> Any:
    def prepare(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, batch_size: int, longest: int
    ) -> Any:
        from . import cache_fitness
        from .bucketed_cache import BucketedCache

        if _on_card(self):
            _keep_whole_sequences(model_kwargs.get("past_key_values"))
        if (
            not _on_card(self)
            or mode.value not in _PADDING_MODES
            or generation_config.is_assistant
            or generation_config.cache_implementation not in (None, "static")
            or generation_config.use_cache is False
            or model_kwargs.get("past_key_values") is not None
            or not self._supports_default_dynamic_cache()
            or not BucketedCache.serves(self.config)
        ):
            return original(self, generation_config, model_kwargs, mode, batch_size, longest)
        prompt = _prompt_given.get()
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


def fix_static_cache(caches: ModuleType) -> None:
    _change(caches.StaticSlidingWindowLayer, "__init__", _remember_length)


def _remember_length(original: Any) -> Any:
    def init(self: Any, max_cache_len: int, *args: Any, **kwargs: Any) -> None:
        original(self, max_cache_len, *args, **kwargs)
        self.whole_length = max_cache_len

    return init


def _keep_whole_sequences(cache: Any) -> None:
    """A caller's static cache, still empty, keeps all tokens; masks know how far back a layer looks.

    A layer with a window counts its tokens in a Python number, and code that is compiled would be so for each.
    """
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    layers = getattr(cache, "layers", [])
    for i, layer in enumerate(layers):
        if type(layer) is StaticSlidingWindowLayer and not layer.is_initialized:
            layers[i] = StaticLayer(vars(layer)["whole_length"])
            layers[i].is_sliding = True


def _pad_prompts(original: Any) -> Any:
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


def _make_room(original: Any) -> Any:
    def prepare_inputs_for_generation(
        self: Any, input_ids: torch.Tensor, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if not _on_card(self):
            return original(self, input_ids, next_sequence_length=next_sequence_length, **kwargs)
        from .bucketed_cache import self_attention

        cache = self_attention(kwargs.get("past_key_values"))
        if cache is not None:
            prompt = kwargs.get("inputs_embeds") if kwargs.get("is_first_iteration") else None
            cache.expect(next_sequence_length or (input_ids if prompt is None else prompt).shape[1])
        with _masks_kept(cache is not None):
            return original(self, input_ids, next_sequence_length=next_sequence_length, **kwargs)

    return prepare_inputs_for_generation


def _send_inputs(original: Any) -> Any:
    def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = original(self, *args, **kwargs)
        if not _on_card(self):
            return inputs
        from .bucketed_cache import self_attention

        inputs = {name: _moved(value, self.device) for name, value in inputs.items()}
        cache = self_attention(kwargs.get("past_key_values"))
        if cache is None or cache.lengths_change:
            for value in inputs.values():
                _mark_lengths(value)
        return inputs

    return prepare_inputs_for_generation


# Methods that models have versions of their own of, to which the same applies.
_IN_SUBCLASSES = {
    "prepare_inputs_for_generation": _send_inputs,
    "_prepare_text_encoder_decoder_kwargs_for_generation": _encode_on_card,
    "_maybe_prepare_encoder_kwargs_for_generation": _encode_anything_on_card,
}


_keeps_masks = ContextVar("keeps_masks", default=False)


@contextmanager
def _masks_kept(kept: bool) -> Iterator[None]:
    token = _keeps_masks.set(kept)
    try:
        yield
    finally:
        _keeps_masks.reset(token)


def fix_masks(masks: ModuleType) -> None:
    _change(masks, "_ignore_causal_mask_sdpa", _keep_mask)


def _keep_mask(original: Any) -> Any:
    """A mask that masks nothing would be left out, and the program without it is another: each size would have two."""

    def ignore(*args: Any, **kwargs: Any) -> bool:
        kept = not torch.compiler.is_compiling() and _keeps_masks.get()  # which Dynamo could not follow
        return not kept and original(*args, **kwargs)

    return ignore


def _mark_lengths(value: Any) -> None:
    """Tells Dynamo that lengths change."""
    if isinstance(value, dict):
        for one in value.values():
            _mark_lengths(one)
    elif isinstance(value, torch.Tensor):
        for dim in (1,) if value.dim() == 2 else (2, 3) if value.dim() == 4 else ():
            if value.shape[dim] > 1:
                torch._dynamo.maybe_mark_dynamic(value, dim)


def _count_tokens(original: Any) -> Any:
    def update(self: Any, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        model_kwargs = original(self, outputs, model_kwargs, *args, **kwargs)
        if _on_card(self):
            from .bucketed_cache import self_attention

            cache = self_attention(model_kwargs.get("past_key_values"))
            if cache is not None:
                cache.settle()
        return model_kwargs

    return update


def _compile_as_other_accelerators(original: Any) -> Any:
    """A static cache makes ``generate`` compile the model, as it does on the devices that the package knows by name."""

    def valid(self: Any, model_kwargs: dict[str, Any], generation_config: Any) -> bool:
        if not _on_card(self):
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


class _SeenFromHost:
    """A model for code that asks it where tokens should be, not where the model is."""

    device = torch.device("cpu")

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


def _compare_on_host(original: Any) -> Any:
    """Candidates are compared with the tokens of the sequence: where that is."""

    def decode(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_SeenFromHost(self) if _on_card(self) else self, *args, **kwargs)

    return decode


def fix_whisper(whisper: ModuleType) -> None:
    """It cuts sequences at time stamps, which is the host's work as well."""
    mixin = whisper.WhisperGenerationMixin
    _change(mixin, "generate", _keep_sequences_on_host)
    _change(mixin, "detect_language", _hear_on_card)
    _change(mixin, "_retrieve_init_tokens", _return_to_host)


def _hear_on_card(original: Any) -> Any:
    def detect_language(self: Any, input_features: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(self, _moved(input_features, self.device), *args, **kwargs)

    return detect_language


def _return_to_host(original: Any) -> Any:
    def retrieve(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        return found.cpu() if _on_card(self) else found

    return retrieve


# ---- models


def fix_models(modeling: ModuleType) -> None:
    """Constants of positions that models compute in float64, where a device is not known to lack it: on the host."""
    hugging_face_ranks.load_without_accelerate(modeling)
    base = modeling.PreTrainedModel
    original = base.__init_subclass__.__func__

    def change(cls: type[Any]) -> None:
        module = sys.modules[cls.__module__]
        built = vars(module).get(_IN_FLOAT64)
        if built is not None and not hasattr(built, "__wrapped__"):
            _change(module, _IN_FLOAT64, _compute_on_host)

    def define(cls: type[Any], /, **kwargs: Any) -> None:
        original(cls, **kwargs)
        change(cls)

    base.__init_subclass__ = classmethod(define)
    for cls in _subclasses(base):
        change(cls)


_IN_FLOAT64 = "build_2d_sinusoidal_position_embedding"  # several models have a copy of it


def _compute_on_host(original: Any) -> Any:
    def compute(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != DEVICE_NAME:
            return original(*args, device=device, **kwargs)
        return original(*args, device=torch.device("cpu"), **kwargs).to(device)

    return compute


# ---- mixtures of experts


def fix_experts(moe: ModuleType) -> None:
    """The package's default sorts tokens by expert and counts them: sizes that depend on values, which no program has.

    A few tokens gather the weights of their experts. Many tokens would gather each expert many times: for them every
    expert sees every token, and what was not chosen is dropped. Both round alike.
    """
    grouped, batched = moe.grouped_mm_experts_forward, moe.batched_mm_experts_forward

    @functools.wraps(grouped)
    def forward(self: Any, hidden_states: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if hidden_states.device.type != DEVICE_NAME:
            return grouped(self, hidden_states, indices, weights)
        if self._is_expert_parallel or indices.numel() < self.down_proj.shape[0]:
            return batched(self, hidden_states, indices, weights)
        return _every_expert(self, hidden_states, indices, weights)

    moe.ALL_EXPERTS_FUNCTIONS.register("grouped_mm", forward)


def _every_expert(experts: Any, tokens: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = getattr(experts, name)
        y = x @ (weight if experts.is_transposed else weight.transpose(1, 2))
        return y + getattr(experts, f"{name}_bias")[:, None] if experts.has_bias else y

    found = linear(tokens, "gate_up_proj" if experts.has_gate else "up_proj")
    found = linear(experts._apply_gate(found) if experts.has_gate else experts.act_fn(found), "down_proj")
    chosen = indices == torch.arange(found.shape[0], device=indices.device)[:, None, None]  # expert, token, choice
    share = torch.where(chosen, weights, 0).sum(-1, keepdim=True)
    return torch.where(chosen.any(-1, keepdim=True), found * share, 0).sum(0).to(tokens.dtype)


FIXES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.cache_utils": fix_static_cache,
    "transformers.distributed.utils": hugging_face_ranks.name_backend,
    "transformers.masking_utils": fix_masks,
    "transformers.modeling_utils": fix_models,
    "transformers.generation.utils": fix_generation,
    "transformers.integrations.moe": fix_experts,
    "transformers.models.whisper.generation_whisper": fix_whisper,
}
