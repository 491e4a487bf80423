"""Real architectures by name, without their weights."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ModelError


@cache
def table() -> dict[str, dict[str, Any]]:
    """The presets as they are in ``presets.toml``."""
    return tomllib.loads((Path(__file__).parent / "presets.toml").read_text())


def configuration(name: str, layers: int | None = None) -> Any:
    """The configuration of a preset; with ``layers``, of a model that ends after so many."""
    from transformers import AutoConfig

    if name not in table():
        raise ModelError(f"there is no preset {name!r}; there are {', '.join(table())}")
    fields = dict(table()[name])
    del fields["parameters"]
    fields |= dict.fromkeys(fields.pop("null", []))
    if layers is not None:
        if not 1 <= layers <= fields["num_hidden_layers"]:
            raise ModelError(f"{name} has {fields['num_hidden_layers']} layers: --layers {layers} is not among them")
        fields["num_hidden_layers"] = layers
        if "layer_types" in fields:
            fields["layer_types"] = fields["layer_types"][:layers]
    return AutoConfig.for_model(fields.pop("model_type"), **fields)
