"""What users of captures are told."""

from __future__ import annotations


class KernelFailed(RuntimeError):
    """The compiler failed on a captured kernel; the cause is what it raised."""


class CaptureError(ValueError):
    """A capture that is damaged, or that cannot be made or run here; said in one sentence."""
