"""The open back end: from the SuperDSC files of a kernel to a card program."""

from .compile import compile_bundle

__all__ = ["compile_bundle"]
