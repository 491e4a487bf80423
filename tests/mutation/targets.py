"""What is done with a damaged input of each kind: read, check, run.

A target gives the bits of what it computed. Everything that an input may be refused with is caught where it may be
raised, and becomes :class:`Refused`; whatever else comes out is a failure.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.mutation import caches, captured, card, directories, models, tile_programs
from tests.mutation.cases import deep_stack
from torch_spyre import _C
from torch_spyre.backend import compile_bundle, single
from torch_spyre.diagnostics import captures, replay
from torch_spyre.diagnostics.errors import CaptureError, KernelFailed
from torch_spyre.ir import spyrecode, superdsc
from torch_spyre.ir.bundle import InvalidBundle


class Refused(Exception):
    """With one of the errors that are meant for it."""


# Messages of C++'s own exceptions and of asserts: they have the types of ours, and say nothing to anyone.
_NOT_OURS = re.compile(r"vector::|basic_string|std::|map::at|bad_alloc|INTERNAL ASSERT|pybind11|stoi|deque|_Map_base")


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        if type(error) not in kinds or _NOT_OURS.search(str(error)) or not str(error).strip():
            raise
        raise Refused(f"{type(error).__name__}: {error}") from None


PREPARED = (ValueError, torch.OutOfMemoryError)  # what _C.prepare_kernel refuses
RUN = (ValueError, IndexError, RuntimeError, torch.OutOfMemoryError, ZeroDivisionError)  # what depends on values


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with."""

    contents: list[bytes]
    order: list[int]
    numbers: Any

    @classmethod
    def of(cls, given: Any) -> Launch:
        contents, order = (given.get(key) if isinstance(given, dict) else None for key in ("contents", "order"))
        if not _all(contents, bytes) or len(contents) > 64 or not _all(order, int) or len(order) > 1000:
            raise Refused("no bytes to launch with")
        return cls(contents, [i for i in order if 0 <= i < len(contents)], given.get("numbers", []))


def run_description(description: Any, launch: Launch) -> str:
    with refusals(*PREPARED, TypeError):
        plan = _C.prepare_kernel(description)
    plan.step_times()
    plan.job_allocation_size()
    with refusals(*RUN, TypeError):
        return card.launched(plan, launch.contents, launch.order, launch.numbers)


def program(given: Any) -> str:
    return run_description(given.get("description") if isinstance(given, dict) else given, Launch.of(given))


def timing(given: Any) -> str:
    if not isinstance(given, dict):
        raise Refused("no steps")
    with refusals(ValueError, TypeError):
        return repr(_C.time_of_steps(given.get("steps", []), given.get("fresh", [])))


def layout(given: Any) -> str:
    if not isinstance(given, dict):
        raise Refused("no layout")
    size = given.get("size")
    with refusals(ValueError, TypeError, RuntimeError, torch.OutOfMemoryError):
        if "order" in given:
            found = _C.SpyreTensorLayout(size, given.get("strides"), torch.float16, given["order"])
        else:
            device_size, stride_map = given.get("device_size"), given.get("stride_map")
            found = _C.SpyreTensorLayout(device_size, stride_map, _C.DataFormats.SEN169_FP16)
        if found.device_bytes() != 2 * math.prod(found.device_size):
            raise AssertionError(f"{found} has {found.device_bytes()} bytes")
        if found.device_bytes() > 1 << 20:
            raise Refused("large")
        tensor = _C.empty_with_layout(size, torch.float16, found)
        tensor.copy_(torch.arange(tensor.numel()).remainder(1000).reshape(tensor.shape).half())
        bits = tensor.cpu()
    if not torch.equal(bits.flatten().long(), torch.arange(tensor.numel()).remainder(1000)):
        raise AssertionError(f"{found} does not give back what was put there")
    return repr(found)


def superdsc_file(given: Any) -> str:
    """As ``spyre sdsc show`` and ``spyre sdsc run`` do."""
    with refusals(superdsc.InvalidSuperDSC):
        op = single.load(_text(given))
        str(op)
    if sum(op.memory) > 4 * card.MOST:
        raise Refused("large")
    with refusals(*RUN, superdsc.InvalidSuperDSC, InvalidBundle):
        inputs = single.random_inputs(op, 0)

        def once() -> str:
            output = single.run(op, inputs).output
            return hashlib.sha256(output.tobytes()).hexdigest()

        return card.twice(once)


def _text(given: Any) -> str:
    if isinstance(given, dict) and isinstance(given.get("text"), str):
        return given["text"]
    if isinstance(given, dict) and "json" in given:
        with deep_stack():
            return json.dumps(given["json"], default=repr)
    raise Refused("no file")


def bundle(given: Any) -> str:
    """As the compiler hands a kernel's files to the back end."""
    launch = Launch.of(given)
    texts, lines, sizes, pool = (given.get(key) for key in ("texts", "lines", "sizes", "pool"))
    if not (_all(texts, str) and _all(lines, str) and _all(sizes, int) and type(pool) is int):
        raise Refused("no files")
    with refusals(superdsc.InvalidSuperDSC, InvalidBundle):
        description = compile_bundle("k", texts, sizes, pool, "\n".join(lines))
    return run_description(description, launch)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def spyrecode_directory(given: Any) -> str:
    launch = Launch.of(given)
    with _scratch() as scratch:
        directories.write(scratch / "code", given.get("files"))
        if given.get("rehash") is True:
            directories.rehash(scratch / "code")
        with refusals(spyrecode.CorruptSpyreCode):
            description = spyrecode.read(scratch / "code")
    return run_description(description, launch)


def capture_file(given: Any) -> str:
    """As ``spyre replay`` does."""
    if not isinstance(given, dict):
        raise Refused("no capture")
    with _scratch() as scratch:
        captured.write(scratch / "file", given)
        with refusals(CaptureError):
            found = captures.load(scratch / "file")
    if sum(captures.memory_of(found.signature).values()) > 4 * card.MOST:
        raise Refused("large")
    cores, as_captured = given.get("cores"), given.get("as_captured") is True
    options = replay.Options(cores=cores if type(cores) is int and not as_captured else None, as_captured=as_captured)

    def once() -> str:
        results = replay.replay(found, options).results.all()
        return hashlib.sha256(
            b"".join(each.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for each in results)
        ).hexdigest()

    with refusals(*RUN, CaptureError, KernelFailed):
        return card.twice(once)


def kernel_cache_entry(given: Any) -> str:
    """Trusted like code: an entry whose checksums fit may be another kernel, though not one that breaks anything."""
    return _cache_entry("kernels", given, trusted=isinstance(given, dict) and given.get("rehash") is True)


def plan_cache_entry(given: Any) -> str:
    """A plan decides about time, whatever it says."""
    return _cache_entry("plans", given, trusted=False)


def _cache_entry(kind: str, given: Any, trusted: bool) -> str:
    if not isinstance(given, dict):
        raise Refused("no entry")
    with _scratch() as scratch, refusals(*RUN) if trusted else nullcontext():
        found = caches.run(kind, given, scratch)
    if found != caches.right(kind) and not trusted:
        raise AssertionError("an op gives other bits with this in the cache")
    return found


def model_directory(given: Any) -> str:
    if not isinstance(given, dict):
        raise Refused("no model")
    with _scratch() as scratch:
        code, text, said = models.run(given, scratch)
    if code == 2 and said:
        raise Refused(said)
    if code:
        raise AssertionError(f"exit code {code}: {said}")
    return text


def ktir_program(given: Any) -> str:
    try:
        return tile_programs.run(given)
    except tile_programs.NoInput as error:
        raise Refused(str(error)) from None
    except (ValueError, RuntimeError) as error:
        if not tile_programs.has_place(error) or _NOT_OURS.search(str(error)):
            raise
        raise Refused(f"{type(error).__name__}: {error}") from None


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spyre-mutation-") as folder:
        yield Path(os.path.realpath(folder))


TARGETS: dict[str, Callable[[Any], str]] = {
    "program": program,
    "timing": timing,
    "layout": layout,
    "superdsc": superdsc_file,
    "bundle": bundle,
    "spyrecode": spyrecode_directory,
    "capture": capture_file,
    "kernels": kernel_cache_entry,
    "plans": plan_cache_entry,
    "model": model_directory,
    "ktir": ktir_program,
}
