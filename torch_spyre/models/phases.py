"""The two things that a language model does, timed: reading a prompt at once, and writing a token after others.

Both are compiled, with the tokens on the card at their beginning and the logits there at their end. Values do not
matter, so this is for a card in ``timing`` mode; sizes are exact, where :mod:`.generation` pads them to a ladder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import device, timing
from ..constants import DEVICE_NAME
from .errors import ModelError
from .hugging_face.bucketed_cache import BucketedCache

STICK = 64  # slots of a cache come in whole sticks of halves


@dataclass(frozen=True)
class Phase:
    """A forward that was compiled and then timed."""

    name: str
    tokens: int  # that it reads
    context: int  # tokens before them
    batch: int
    compile_seconds: float
    recording: timing.Recording
    memory: int = 0  # of the card, at most so far
    cards: int = 1  # that share the model
    collectives: int = 0
    floor: float = 0.0  # milliseconds: of the whole model on one card, divided by the cards


def time_prefill(model: Any, tokens: int, batch: int = 1) -> Phase:
    """Of a prompt of so many tokens, with nothing before it."""
    return _timed(prefill_call(model, tokens, batch), "prefill", tokens, 0, batch)


def time_decode(model: Any, context: int, batch: int = 1) -> Phase:
    """Of one token after ``context`` others."""
    return _timed(decode_call(model, context, batch), "decode", 1, context, batch)


def prefill_call(model: Any, tokens: int, batch: int = 1) -> Callable[[], None]:
    """Reads a prompt, compiled, each time with an empty cache."""
    _check(model)
    return _call_of(model, tokens, 0, batch, lambda: BucketedCache(model.config))


def decode_call(model: Any, context: int, batch: int = 1) -> Callable[[], None]:
    """Writes one token after ``context`` others, compiled."""
    _check(model)
    cache = _filled(model, context, batch)
    return _call_of(model, 1, context, batch, lambda: cache)


def _check(model: Any) -> None:
    if not BucketedCache.serves(model.config):
        raise ModelError(f"{model.config.model_type} keeps no keys and values of tokens: there are no such phases")


def _call_of(
    model: Any, tokens: int, context: int, batch: int, cache_of: Callable[[], BucketedCache]
) -> Callable[[], None]:
    forward = torch.compile(model.forward, dynamic=False)
    ids = torch.zeros(batch, tokens, dtype=torch.int64, device=DEVICE_NAME)
    positions = torch.arange(context, context + tokens, device=DEVICE_NAME).expand(batch, -1)
    return lambda: _call(forward, model, ids, positions, cache_of())


def _timed(call: Callable[[], None], name: str, tokens: int, context: int, batch: int) -> Phase:
    began = time.monotonic()
    call()
    seconds = time.monotonic() - began
    collectives = _collectives()
    with timing.record() as recording:
        call()
    count = _collectives() - collectives
    return Phase(name, tokens, context, batch, seconds, recording, device.max_memory_allocated(), collectives=count)


def _collectives() -> int:
    """That the world's members have asked for so far."""
    if not torch.distributed.is_initialized():
        return 0
    world: Any = torch.distributed.group.WORLD
    return int(world._get_backend(torch.device(DEVICE_NAME)).calls)


@torch.no_grad()
def _call(forward: Callable[..., Any], model: Any, ids: Any, positions: Any, cache: BucketedCache) -> None:
    options = {"logits_to_keep": 1} if model._supports_logits_to_keep() else {}
    forward(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **options)


def _filled(model: Any, context: int, batch: int) -> BucketedCache:
    """A cache as it is after ``context`` tokens: what a single token leaves, with more slots for those before it."""
    cache = BucketedCache(model.config)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=DEVICE_NAME)
    _call(model, model, token, token, cache)
    slots = -(-(context + 1) // STICK) * STICK
    for layer in cache.attention_layers:
        size = (*layer.keys.shape[:2], slots, layer.keys.shape[-1])
        layer.keys, layer.values = (torch.empty(size, dtype=layer.dtype, device=layer.device) for _ in range(2))
        layer.length = context
        layer.position.fill_(context)
    return cache
