"""Logging: log lines, the IR after every pass, and the files of a compile.

``SPYRE_INDUCTOR_LOG=1`` turns logging on, ``SPYRE_INDUCTOR_LOG_LEVEL`` sets how much (INFO), ``SPYRE_LOG_FILE`` where
to (standard error). ``TORCH_LOGS="+torch_spyre"`` works too. Files are written under ``TORCH_COMPILE_DEBUG=1``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

_directory: ContextVar[Path | None] = ContextVar("directory", default=None)


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, ``get_logger(__name__)``."""
    _set_up()
    return logging.getLogger(name)


@cache
def _set_up() -> None:
    if os.environ.get("SPYRE_INDUCTOR_LOG", "0") in ("", "0"):
        return
    level = os.environ.get("SPYRE_INDUCTOR_LOG_LEVEL") or "INFO"
    if level.upper() not in logging.getLevelNamesMapping():
        raise ValueError(f"SPYRE_INDUCTOR_LOG_LEVEL={level!r}: expected DEBUG, INFO, WARNING or ERROR")
    file = os.environ.get("SPYRE_LOG_FILE")
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    package = logging.getLogger("torch_spyre")
    package.setLevel(level.upper())
    package.addHandler(handler)


_passes = get_logger("torch_spyre._inductor.passes")


def log_pass(title: str, *ir: object) -> None:
    """Print the IR as it is after a pass, at DEBUG level."""
    if _passes.isEnabledFor(logging.DEBUG):
        _passes.debug("%s:\n%s", title, "\n".join(map(str, ir)))


def dump_pass(kernel_name: str, title: str, ir: object) -> None:
    """The same for a pass of the pipeline, which is also kept as a file: ``passes/03_elide_copies.txt``."""
    log_pass(title, ir)
    if artifacts_wanted():
        folder = _kernel_directory(kernel_name) / "passes"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir())):02}_{title}.txt").write_text(str(ir))


def artifact_directory() -> Path | None:
    """Where the running compile writes its files; None outside of a compile, or if files were not asked for."""
    if _directory.get() is not None:
        return _directory.get()
    inductor = sys.modules.get("torch._inductor.virtualized")
    path = getattr(inductor.V.debug, "_path", None) if inductor is not None else None
    return Path(path) if path else None


@contextmanager
def artifacts_in(directory: Path | None) -> Iterator[None]:
    """Inside, files go here: kernels are compiled when they first run, after their graph."""
    token = _directory.set(directory)
    try:
        yield
    finally:
        _directory.reset(token)


def artifacts_wanted() -> bool:
    """Whether :func:`save_artifact` writes."""
    return artifact_directory() is not None or os.environ.get("TORCH_COMPILE_DEBUG") == "1"


def save_artifact(kernel_name: str, filename: str, text: str) -> None:
    """Keep a file of a kernel (``sdsc_0.json``, ``bundle.mlir``, an IR) in the compile's debug directory."""
    if artifacts_wanted():
        directory = _kernel_directory(kernel_name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / filename).write_text(text)


def _kernel_directory(kernel_name: str) -> Path:
    directory = artifact_directory()
    if directory is None:  # an eager op
        from torch._dynamo.utils import get_debug_dir

        directory = Path(get_debug_dir(), "spyre")
    return directory / kernel_name


def save_artifacts(
    kernel_name: str, kernel: object, specs: Sequence[object], texts: Sequence[str], bundle: str
) -> None:
    """Keep a kernel's loop IR, its OpSpecs, one SuperDSC text per OpSpec, and what chains them."""
    if not artifacts_wanted():
        return
    save_artifact(kernel_name, "loop_ir.txt", str(kernel))
    save_artifact(kernel_name, "bundle.mlir", bundle)
    save_artifact(kernel_name, "op_specs.txt", "\n".join(map(str, specs)))
    for position, text in enumerate(texts):
        save_artifact(kernel_name, f"sdsc_{position}.json", text)
