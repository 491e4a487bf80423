"""Whether a model may use the bucketed cache: its results must depend neither on padding nor on free slots.

That is shown, not assumed. On first use a few tokens go through the model twice, a prompt and a step: with the dynamic
cache of transformers, and padded, with a bucketed cache that has as many slots as the call may come to, nearly all of
them free. What every module of its layers computes has to agree. So many free slots move a query as
far as possible from the end of its keys: a model that counts positions by slots, has windows or biases by the number
of keys, or attends to what was never written, loses sight of its tokens or sees zeros instead, and its attention is
another.

The model itself is not touched: an outline of it, with the same weights, has only those of its first layers that
differ in kind, so that the cost is that of a layer or two, and not of the model. Its sliding windows are so short that
a few tokens fill them: what the dynamic cache forgets there, a mask has to hide.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ... import _C
from ...logging import get_logger
from .bucketed_cache import BucketedCache, self_attention

log = get_logger(__name__)

# How far apart results may be that are the same: sums over padded keys may be added in another order. What a model does
# that is not fit changes its attention by a part of it.
_SAME = {torch.float32: 2.0**-14}
_SAME_IN_HALVES = 2.0**-6
# What `generate` knows how to pad, or what has no place for each token. Anything else belongs to a prompt with images
# or the like, which only that prompt shows.
PADDED = ("attention_mask", "position_ids", "token_type_ids")
_WITHOUT_PLACES = ("encoder_outputs", "decoder_attention_mask", "past_key_values", "inputs_embeds", "input_ids")

_TOKENS = (5, 6, 7, 8, 9, 10)  # a prompt, and one more
_WINDOW = 3  # tokens that layers of the outline look back which look back so and so far: fewer than there are


@dataclass
class _Shown:
    """How many slots a model was shown to be fit for; 0 if it was shown not to be."""

    capacity: int


_shown: WeakKeyDictionary[Any, dict[Any, _Shown]] = WeakKeyDictionary()


def is_fit(model: Any, settings: Any, state: dict[str, Any], longest: int, prompt: torch.Tensor | None) -> bool:
    """Of the keyword arguments that ``generate`` has for the model, and the tokens that it may come to."""
    more = extras(state)
    key = (model.dtype, model.config._attn_implementation, tuple(sorted(more)))
    known = _shown.setdefault(model, {})
    sizes = BucketedCache(model.config).sizes
    capacity = sizes.at_least(sizes.at_least(max(longest, len(_TOKENS))) + 1)  # with what is padded
    if key not in known or 0 < known[key].capacity < capacity:
        reason = _why_not(model, settings, state, capacity, prompt if more else None, bool(more))
        known[key] = _Shown(0 if reason else capacity)
        if reason:
            log.warning(
                "%s: generate uses transformers' dynamic cache, and each length is compiled for: %s",
                type(model).__name__,
                reason,
            )
    return known[key].capacity > 0


def extras(state: dict[str, Any]) -> list[str]:
    """Tensors of a call that padding does not know."""
    return [
        name
        for name, value in state.items()
        if name not in PADDED and name not in _WITHOUT_PLACES and _holds_tensors(value)
    ]


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_tensors(one) for one in value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(one) for one in value)
    return isinstance(value, torch.Tensor)


@torch.no_grad()
def _why_not(
    model: Any, settings: Any, state: dict[str, Any], capacity: int, prompt: torch.Tensor | None, needs_prompt: bool
) -> str | None:
    if needs_prompt and prompt is None:
        return "its inputs are more than tokens"
    try:
        outline = _outline(model)
    except Exception as problem:
        return f"it cannot be tried ({_sentence(problem)})"
    try:
        expected = _results(outline, _dynamic(outline), settings, state, prompt, 0)
    except Exception as problem:
        return f"it cannot be tried ({_sentence(problem)})"
    try:
        found = _results(outline, bucketed(outline, 0), settings, state, prompt, capacity)
    except Exception as problem:
        return f"padding or free slots make it fail ({_sentence(problem)})"
    return None if _C.card_mode() == "timing" else _difference(found, expected, model.dtype)


def bucketed(model: Any, longest: int) -> Any:
    cache: Any = BucketedCache(model.config, longest)
    return EncoderDecoderCache(cache, BucketedCache(model.config)) if model.config.is_encoder_decoder else cache


def _dynamic(model: Any) -> Any:
    config = model.config.get_text_config(decoder=True)
    cache: Any = DynamicCache(config=config)
    return EncoderDecoderCache(cache, DynamicCache(config=config)) if model.config.is_encoder_decoder else cache


# ---- the outline


def _outline(model: Any) -> Any:
    """The model with its own weights, without hooks, and with as many layers as show one of each kind."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    outline = copy.deepcopy(model, shared).eval()
    for module in outline.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        _shorten_window(module)
    for config in (outline.config, outline.config.get_text_config(decoder=True)):
        _shorten_window(config)
    layers = _layers(outline)
    if layers is not None:
        kinds = _kinds(layers)
        del layers[max(kinds.index(kind) for kind in kinds) + 1 :]
    return outline


def _shorten_window(owner: Any) -> None:
    for name, value in vars(owner).items():
        if "sliding_window" in name and type(value) is int and value > _WINDOW:
            setattr(owner, name, _WINDOW)


def _layers(model: Any) -> Any:
    """The list of a decoder's layers, whatever a model calls it."""
    config = model.config.get_text_config(decoder=True)
    counts = [getattr(config, name, None) for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers")]
    count = next((number for number in counts if number), 0)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = (module for module in (decoder or model).modules() if isinstance(module, torch.nn.ModuleList))
    return next((found for found in lists if len(found) == count > 1), None)


def _kinds(layers: Any) -> list[Any]:
    """What layers are, apart from weights and place: classes, shapes, and the numbers and names that they keep."""
    kept = [
        {
            (name, attribute): value
            for name, module in layer.named_modules()
            for attribute, value in vars(module).items()
            if isinstance(value, (bool, int, float, str)) and attribute != "training"
        }
        for layer in layers
    ]
    places = {key for key in kept[0] if all(values.get(key) == i for i, values in enumerate(kept))}
    return [
        (
            [(name, type(module)) for name, module in layer.named_modules()],
            [(name, value.shape, value.dtype) for name, value in layer.named_parameters()],
            sorted((key, repr(value)) for key, value in values.items() if key not in places),
        )
        for layer, values in zip(layers, kept, strict=True)
    ]


# ---- both ways


def _results(
    outline: Any, cache: Any, settings: Any, state: dict[str, Any], prompt: torch.Tensor | None, capacity: int
) -> list[list[torch.Tensor]]:
    """What modules computed, of a prompt and of a step after it."""
    state = {name: value for name, value in state.items() if name != "inputs_embeds"}
    ids = _prompt(outline, state) if prompt is None else prompt
    state |= {"past_key_values": cache, "use_cache": True}
    settings = copy.copy(settings)
    settings.prefill_chunk_size = settings.cache_implementation = settings.compile_config = None  # nothing is compiled
    found = []
    with _Watching(outline) as seen:
        output = outline._prefill(ids, settings, state, is_first_iteration=True)
        found.append([*seen.take(), output.logits])
        state = outline._update_model_kwargs_for_generation(
            output, state, is_encoder_decoder=outline.config.is_encoder_decoder
        )
        own = self_attention(cache)
        if own is not None:
            own.reserve(capacity)
        ids = torch.cat([ids, ids.new_full((ids.shape[0], 1), _TOKENS[-1])], dim=1)
        inputs = outline.prepare_inputs_for_generation(ids, next_sequence_length=1, **state)
        output = outline(**inputs, return_dict=True)
        found.append([*seen.take(), output.logits])
    return found


def _prompt(model: Any, state: dict[str, Any]) -> torch.Tensor:
    """A few tokens, of as many sequences as the encoder has read; what belongs to the caller's is left out."""
    ids = torch.tensor([_TOKENS[:-1]])
    if model.config.is_encoder_decoder:
        encoded = state.get("encoder_outputs")
        state.pop("decoder_attention_mask", None)
        return ids if encoded is None else ids.expand(encoded[0].shape[0], -1).contiguous()
    for name in PADDED:
        state.pop(name, None)
    accepted = inspect.signature(model.forward).parameters
    if "attention_mask" in accepted:
        state["attention_mask"] = torch.ones_like(ids)
    if "position_ids" in accepted:
        state["position_ids"] = model._prepare_position_ids_for_generation(ids, state)
    return ids


class _Watching:
    """What modules without parts take and give: of attention, what the projection after it takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.seen = model, list[torch.Tensor]()

    def __enter__(self) -> _Watching:
        leaves = [module for module in self.model.modules() if not any(True for _ in module.children())]
        self.hooks = [module.register_forward_hook(self._note) for module in leaves]
        return self

    def _note(self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.seen += [x for x in (*inputs, output) if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def take(self) -> list[torch.Tensor]:
        seen, self.seen = self.seen, []
        return seen

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()


def _difference(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]], dtype: torch.dtype) -> str | None:
    allowed = _SAME.get(dtype, _SAME_IN_HALVES)
    for step, (some, others) in enumerate(zip(found, expected, strict=True)):
        name = ("its prompt", "a step after it")[step]
        if len(some) != len(others):
            return f"other modules take part in {name}"
        for x, y in zip(some, others, strict=True):
            if not _comparable(x, y):
                continue
            if x.shape != y.shape:
                tokens = min(x.shape[1], y.shape[1])
                x, y = x[:, -tokens:], y[:, -tokens:]
            x, y = x.cpu().float(), y.cpu().float()
            if not torch.equal(x, y) and not float((x - y).norm()) <= allowed * float(y.norm()):
                return f"padding or free slots change {name}"
    return None


def _comparable(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether both are of the same tokens, or one of them of padding before them as well."""
    return x.shape == y.shape or x.dim() == y.dim() == 3 and x.shape[::2] == y.shape[::2]


def _sentence(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:160]
