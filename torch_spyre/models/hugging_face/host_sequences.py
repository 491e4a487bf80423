"""``generate`` keeps its sequences on the host and sends the card what the model needs of them.

Sequences grow by a token at a time: on the card, each length would be a program. What a model is given is on the card,
what the caller gets is where its prompt was.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch

from .wrapping import moved, on_card

_prompt_given: ContextVar[torch.Tensor | None] = ContextVar("prompt_given", default=None)


def prompt_given() -> torch.Tensor | None:
    """The tokens, on the host, that the current call of ``generate`` begins with, if it begins with tokens."""
    return _prompt_given.get()


def keep_on_host(original: Any) -> Any:
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_card(self):
            return original(self, *args, **kwargs)
        from .padded_prompts import without_padding

        prompt = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        args, kwargs = (moved(given, "cpu") for given in (args, kwargs))
        ids = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs"))
        token = _prompt_given.set(ids if isinstance(ids, torch.Tensor) and not ids.is_floating_point() else None)
        try:
            found = original(self, *args, **kwargs)
        finally:
            _prompt_given.reset(token)
        without_padding(found)
        if prompt is not None and prompt.device.type == "cpu":
            return found
        if isinstance(found, torch.Tensor):
            return found.to(self.device)
        for name, value in list(found.items()):
            found[name] = moved(value, self.device)
        return found

    return generate


def encode_on_card(original: Any) -> Any:
    """An encoder's input is sent to the card; its output stays there."""

    def prepare(self: Any, inputs_tensor: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_card(self):
            return original(self, inputs_tensor, model_kwargs, *args, **kwargs)
        sent = moved(model_kwargs, self.device)
        found = original(self, moved(inputs_tensor, self.device), sent, *args, **kwargs)
        return {**model_kwargs, "encoder_outputs": found["encoder_outputs"]}

    return prepare


def encode_anything_on_card(original: Any) -> Any:
    """The same of encoders that return more than their output: what they made stays on the card, what they were given
    on the host."""

    def prepare(self: Any, inputs_tensor: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_card(self):
            return original(self, inputs_tensor, model_kwargs, *args, **kwargs)
        sent = moved(model_kwargs, self.device)
        found = original(self, moved(inputs_tensor, self.device), dict(sent), *args, **kwargs)
        return {
            name: model_kwargs[name] if name in sent and value is sent[name] else value for name, value in found.items()
        }

    return prepare


def send_inputs(original: Any) -> Any:
    """The inputs of a forward are sent to the card; Dynamo is told that their lengths change, where they do."""

    def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = original(self, *args, **kwargs)
        if not on_card(self):
            return inputs
        from .bucketed_cache import self_attention

        inputs = {name: moved(value, self.device) for name, value in inputs.items()}
        cache = self_attention(kwargs.get("past_key_values"))
        if cache is None or cache.lengths_change:
            for value in inputs.values():
                _mark_lengths(value)
        return inputs

    return prepare_inputs_for_generation


def _mark_lengths(value: Any) -> None:
    """Lengths are dimension 1 of tokens [batch, tokens] and the last two of masks [batch, 1, tokens, slots]."""
    if isinstance(value, dict):
        for one in value.values():
            _mark_lengths(one)
    elif isinstance(value, torch.Tensor):
        for dim in (1,) if value.dim() == 2 else (2, 3) if value.dim() == 4 else ():
            if value.shape[dim] > 1:
                torch._dynamo.maybe_mark_dynamic(value, dim)


class _SeenFromHost:
    """A model for code that asks it where tokens should be, not where the model is."""

    device = torch.device("cpu")

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


def compare_on_host(original: Any) -> Any:
    """Candidates of assisted decoding are compared with the tokens of the sequence: where that is."""

    def decode(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_SeenFromHost(self) if on_card(self) else self, *args, **kwargs)

    return decode
