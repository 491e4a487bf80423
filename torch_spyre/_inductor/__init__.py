"""The compiler's front end: from FX graphs to OpSpecs. Everything is imported when first used."""

from typing import Any

__all__ = ["config", "spyre_hint"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "config":
        return importlib.import_module(".config", __name__)
    if name == "spyre_hint":
        from .fx.hints import spyre_hint

        return spyre_hint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
