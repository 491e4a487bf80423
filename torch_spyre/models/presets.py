"""Real architectures by name, without their weights."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ModelError


@cache
def table() -> dict[str, dict[str, Any]]:
    """The presets as they are in ``presets.toml``."""
    return tomllib.loads((Path(__file__).parent / "presets.toml").read_text())


@cache
def causal() -> tuple[str, ...]:
    """The presets that write text token by token."""
    ends = ("ForCausalLM", "LMHeadModel")
    return tuple(name for name, fields in table().items() if fields["architectures"][0].endswith(ends))


def configuration(name: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The configuration of a preset, with some of its fields changed."""
    from transformers import AutoConfig

    fields = dict(table()[name])
    del fields["parameters"]
    fields |= dict.fromkeys(fields.pop("null", [])) | dict(changes or {})
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def check_causal(name: str) -> None:
    """Refuses what is no preset that writes text."""
    if name not in causal():
        problem = f"{name} is no causal language model" if name in table() else f"there is no preset {name!r}"
        raise ModelError(f"{problem}; there are {', '.join(causal())}")


def causal_configuration(name: str, layers: int | None = None) -> Any:
    """Of a preset that writes text; with ``layers``, of a model that ends after so many."""
    check_causal(name)
    whole = configuration(name)
    if layers is None:
        return whole
    if not 1 <= layers <= whole.num_hidden_layers:
        raise ModelError(f"{name} has {whole.num_hidden_layers} layers: --layers {layers} is not among them")
    changes = {whole.attribute_map.get("num_hidden_layers", "num_hidden_layers"): layers}
    if "layer_types" in table()[name]:
        changes["layer_types"] = table()[name]["layer_types"][:layers]
    return configuration(name, changes)
