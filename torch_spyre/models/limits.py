"""Limits of what a model's directory may ask for before a model is there: a configuration is data, whatever it says."""

from __future__ import annotations

import math
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from . import host_memory
from .errors import ModelError

SECONDS = 20.0  # of processor time, for what takes one or two
COUNTS = {"layer": 2_000, "expert": 100_000, "head": 100_000, "label": 1_000_000}  # by what a field's name has in it
TOKENS = 1 << 24  # tables of tokenizers are as long as their largest token
DEPTH = 50  # of objects in objects
MEMORY = 4 << 30  # bytes, for what takes some hundred million: the weights are not there yet


class _TooLong(BaseException):
    """No Exception: libraries catch those."""


def check_configuration(file: Path, fields: dict[str, Any], trusted: bool = False) -> None:
    """Refuses numbers that no model has, before anything counts up to them, and code that is not ``trusted``."""
    for name, value in _leaves(file, fields):
        if isinstance(value, str) and name.endswith("_implementation") and "/" in value and not trusted:
            raise ModelError(f"{file}: {name} is code from elsewhere, {value!r}: only --trust-remote-code executes it")
        if isinstance(value, float) and math.isnan(value):
            raise ModelError(f"{file}: {name} is not a number")
        if isinstance(value, int | float):
            most = next((most for part, most in COUNTS.items() if part in name), None)
            if most is not None and abs(value) > most and math.isfinite(value):
                raise ModelError(f"{file}: {name} is {value:.6g}, and at most {most} is taken")


def check_tokenizer(file: Path, fields: dict[str, Any]) -> None:
    """Refuses tokens and lengths that no tokenizer has: a library that gets no memory for them ends the process."""
    model = fields.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    others = {name: value for name, value in fields.items() if name != "model"}
    for name, value in _leaves(file, others | ({"vocab": vocabulary} if isinstance(vocabulary, dict) else {})):
        if isinstance(value, int) and abs(value) > TOKENS:
            raise ModelError(f"{file}: {name[:80]!r} is {value:.6g}, and at most {TOKENS} is taken")


def _leaves(file: Path, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is in the objects and lists of a configuration, by the name of its field."""
    stack: list[tuple[str, Any, int]] = [("", fields, 0)]
    while stack:
        name, value, depth = stack.pop()
        if depth > DEPTH:
            raise ModelError(f"{file} is nested deeper than {DEPTH} objects")
        if isinstance(value, dict):
            stack += ((str(key), each, depth + 1) for key, each in value.items())
        elif isinstance(value, list):
            stack += ((name, each, depth + 1) for each in value)
        else:
            yield name, value


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """What runs inside may take a while and some memory, and is then ended with a ModelError."""
    try:
        with _processor_time(SECONDS), _memory():
            yield
    except _TooLong:
        raise ModelError(f"{what} takes more than {SECONDS:.0f} seconds: it is not tried any longer") from None
    except MemoryError:
        raise ModelError(f"{what} takes more than {MEMORY >> 30} GiB of memory, or than this machine has") from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # a panic of a library in Rust, which is no Exception
            raise
        raise ModelError(f"{what} fails: {error}") from None


@contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """Signals come to the main thread; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(signal_number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # and again, if somebody caught it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _memory() -> Iterator[None]:
    """Asking for more fails inside, where it would end in this process being killed. There is no limit where nothing
    tells how much this process has: its cards alone reserve more addresses than would do for one."""
    mapped = host_memory.mapped()
    if mapped is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [mapped + MEMORY, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
