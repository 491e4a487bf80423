"""Refusals of the compiler."""


class FrontendOnly(RuntimeError):
    """A kernel is planned and emitted, and was not asked to run: ``TORCH_SPYRE_FRONTEND_ONLY=1``."""


class Unsupported(RuntimeError):
    """The card cannot do this. The message names op, shapes and layouts; the op then runs on the CPU, warned."""
