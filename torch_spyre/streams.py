"""Streams and events under the name that torch-spyre users know; they live in :mod:`torch_spyre.device.streams`."""

from .device.streams import Event, Stream, current_stream, default_stream, set_stream, stream, synchronize

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream", "synchronize"]
