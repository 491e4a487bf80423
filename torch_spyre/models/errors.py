"""What users of models are told when something of theirs does not fit."""

from __future__ import annotations


class ModelError(ValueError):
    """A model, a prompt or an option that cannot be run, said in one sentence."""
