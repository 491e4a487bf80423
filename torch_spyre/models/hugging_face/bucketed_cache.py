"""A key-value cache for Hugging Face models that grows, and whose programs are few.

After a prompt it is as long as the padded prompt, and when it is full it grows to the next size of its ladder. So a
prompt is one program for each size of the ladder, and a decode step is another. Slots beyond the last token hold zeros
and are masked: nothing that was not written takes part in attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    EncoderDecoderCache,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from ..buckets import Ladder, ladder

_LINEAR = ("conv", "linear_attention", "moe", "mlp")
_ATTENTION = ("full_attention", "sliding_attention")

_lengths_change: ContextVar[bool] = ContextVar("lengths_change", default=False)


@contextmanager
def lengths_that_change() -> Iterator[None]:
    """Inside, Dynamo traces prompts and steps for any length."""
    token = _lengths_change.set(True)
    try:
        yield
    finally:
        _lengths_change.reset(token)


class BucketedLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[batch, heads, capacity, head size]``.

    How many tokens it holds is known twice: on the card, where compiled code writes (``position``), and on the host,
    which decides about growth (``length``). Compiled code never looks at the host's number, or it would be compiled
    for each.
    """

    keys: Any
    values: Any
    position: Any
    is_compileable = True
    is_croppable = True

    def __init__(self, sizes: Ladder, is_sliding: bool) -> None:
        super().__init__()
        self.sizes, self.is_sliding = sizes, is_sliding
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The first tokens are the cache: attention to a prompt needs no empty slots."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.clone(memory_format=torch.contiguous_format)
        self.values = value_states.clone(memory_format=torch.contiguous_format)
        self.position = torch.full((1,), key_states.shape[-2], dtype=torch.int64, device=self.device)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = key_states.shape[-2]
        if not torch.compiler.is_compiling():
            self.make_room(count)
            self.length += count
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return self.keys, self.values
        slots = torch.arange(count, device=self.device) + self.position
        self.position.add_(count)
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        return self.keys, self.values

    def make_room(self, count: int) -> None:
        """Grows, one size after the other, until ``count`` more tokens fit."""
        if not self.is_initialized:
            return
        while (size := self.keys.shape[-2]) < self.length + count:
            self.grow(self.sizes.at_least(size + 1))
            if _lengths_change.get():
                # A warm-up: what has grown lies otherwise than a prompt's, and to grow once more is another kernel.
                larger = self.sizes.at_least(self.sizes.at_least(size + 1) + 1)
                _grown(self.keys, larger), _grown(self.values, larger)

    def grow(self, size: int) -> None:
        self.keys, self.values = _grown(self.keys, size), _grown(self.values, size)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if not self.is_initialized:
            return query_length, 0
        if not torch.compiler.is_compiling():
            self.make_room(query_length)
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        if torch.compiler.is_compiling():
            return self.position if self.is_initialized else 0
        return self.length

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the newest tokens; their slots are written anew."""
        if tokens_to_remove:
            self.length -= abs(tokens_to_remove)
            self.position.sub_(abs(tokens_to_remove))

    def drop_first(self, count: int) -> None:
        """Forgets the oldest slots."""
        if count and self.is_initialized:
            self.keys, self.values = (x[:, :, count : self.length].clone() for x in (self.keys, self.values))
            self.length -= count
            self.position.sub_(count)

    def reset(self) -> None:
        self.is_initialized, self.length = False, 0
        self.keys = self.values = self.position = None

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.keys, self.values = (x.repeat_interleave(repeats, dim=0) for x in (self.keys, self.values))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.keys, self.values = (x[indices, ...] for x in (self.keys, self.values))


def _grown(states: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(states, (0, 0, 0, size - states.shape[-2]))


class BucketedCache(Cache):
    """The cache that ``generate`` makes for models on the card, unless another one was asked for."""

    def __init__(self, config: Any, longest: int = 0) -> None:
        text = config.get_text_config(decoder=True)
        self.padding = 0  # slots at the beginning that were padded
        self.longest = longest  # how many tokens it may come to, if that is known
        self.sizes = sizes_of(text)
        layers: list[Any] = [
            LinearAttentionLayer(number_of_states=given.get("number_of_states", 1))
            if kind in _LINEAR
            else BucketedLayer(self.sizes, "sliding" in kind)
            for kind, given in zip(*get_layer_types_and_kwargs(text), strict=False)
        ]
        # Encoder-decoders may count the layers of their encoder.
        missing = getattr(text, "decoder_layers", 0) - len(layers)
        super().__init__(layers=layers + [BucketedLayer(self.sizes, False) for _ in range(missing)])

    @staticmethod
    def serves(config: Any) -> bool:
        """Whether it knows all kinds of layers of a model."""
        kinds, _ = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
        return bool(set(kinds) & set(_ATTENTION)) and set(kinds) <= {*_ATTENTION, *_LINEAR}

    @property
    def attention_layers(self) -> list[BucketedLayer]:
        return [layer for layer in self.layers if isinstance(layer, BucketedLayer)]

    @property
    def is_empty(self) -> bool:
        return not any(layer.is_initialized for layer in self.attention_layers)

    @property
    def capacity(self) -> int:
        """Tokens that it has slots for."""
        return 0 if self.is_empty else int(self.attention_layers[0].keys.shape[-2])

    @property
    def lengths_change(self) -> bool:
        """Whether the next forward should be traced for any length: if more of them are known to come. Otherwise Dynamo
        fixes the first one, which takes half as long to trace, and traces for any length once there is a second."""
        will_grow = not self.is_empty and self.capacity < self.padding + self.longest
        return will_grow or _lengths_change.get()

    def expect(self, count: int) -> None:
        """Makes room for the tokens of the next forward."""
        self._held, before = self.get_seq_length(), self.capacity
        self._expected = self._held + count
        for layer in self.attention_layers:
            layer.make_room(count)
        if self.capacity != before and self.lengths_change:
            held = (layer for layer in self.attention_layers if layer.is_initialized)
            for states in (states for layer in held for states in (layer.keys, layer.values)):
                torch._dynamo.maybe_mark_dynamic(states, 2)

    def settle(self) -> None:
        """After a forward: compiled code wrote the expected tokens, and did not count them on the host. Other code
        did, and may have written more of them: of images that come before a prompt."""
        for layer in self.attention_layers:
            if layer.is_initialized and layer.length == self._held:
                layer.length = self._expected

    def reserve(self, capacity: int) -> None:
        """Has slots for that many tokens, at once."""
        for layer in self.attention_layers:
            if layer.is_initialized and layer.keys.shape[-2] < capacity:
                layer.grow(capacity)

    def drop_padding(self) -> None:
        for layer in self.attention_layers:
            layer.drop_first(self.padding)
        self.padding = 0


def self_attention(cache: Any) -> BucketedCache | None:
    """The bucketed cache of a model's decoder, if that is what it uses."""
    cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    return cache if isinstance(cache, BucketedCache) else None


def sizes_of(config: Any) -> Ladder:
    """The sizes for sequences of a model: as long as it has positions for, or what is usual where it names no limit."""
    names = ("max_position_embeddings", "max_target_positions", "n_positions")
    return ladder(next((found for name in names if (found := getattr(config, name, None))), 32768))
