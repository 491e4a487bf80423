"""Eager ops: a call becomes a graph of one op and goes through the compiler. ``_C`` calls :func:`compile_call`."""

from .calls import compile_call

__all__ = ["compile_call"]
