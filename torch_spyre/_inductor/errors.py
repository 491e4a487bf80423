"""Refusals of the compiler."""


class Unsupported(RuntimeError):
    """The card cannot do this. The message names op, shapes and layouts; the op then runs on the CPU, warned."""
