"""Logging: log lines, the IR after every pass, and the files of a compile.

``TORCH_LOGS`` turns it on (:mod:`torch_spyre.logging_config` has the names), and so do functions there. Files are
written under ``TORCH_COMPILE_DEBUG=1``. ``SPYRE_INDUCTOR_LOG`` and ``SPYRE_INDUCTOR_LOG_LEVEL``, with
``SPYRE_LOG_FILE``, are an older way, deprecated.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

_directory: ContextVar[Path | None] = ContextVar("directory", default=None)
_folder: ContextVar[tuple[str, Path] | None] = ContextVar("folder", default=None)  # of the kernel that is compiled


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
    warnings.warn(
        "SPYRE_INDUCTOR_LOG and SPYRE_INDUCTOR_LOG_LEVEL are deprecated: "
        'TORCH_LOGS="torch_spyre" or "+torch_spyre" logs the same, and TORCH_LOGS_OUT names a file',
        FutureWarning,
        stacklevel=2,
    )
    file = os.environ.get("SPYRE_LOG_FILE")
    add_handler(logging.FileHandler(file) if file else logging.StreamHandler())
    PACKAGE.setLevel(level.upper())


PACKAGE = logging.getLogger("torch_spyre")


def add_handler(handler: logging.Handler) -> None:
    """Lets the lines of the package go there."""
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    PACKAGE.addHandler(handler)


_passes = get_logger("torch_spyre._inductor.passes")


_selected: Collection[str] | None = None  # passes that are told of; None: all
ARTIFACTS: set[str] = set()  # names that TORCH_LOGS knows: "spyre_passes", "spyre_<pass>"


def select_passes(names: Collection[str] | None) -> None:
    """The IR is printed and written after these passes alone; None: after every pass."""
    global _selected
    _selected = names


def _pass_logger(title: str) -> logging.Logger | None:
    """The logger that the IR after a pass goes to, if any."""
    if _selected is not None and title not in _selected:
        return None
    if _passes.isEnabledFor(logging.DEBUG):
        return _passes
    for name in {"spyre_passes", f"spyre_{title}"} & ARTIFACTS:
        if (logger := _artifact_logger(name)).isEnabledFor(logging.DEBUG):
            return logger
    return None


def passes_wanted() -> bool:
    """Whether the IR after some pass is printed: kernels are compiled for it, even if they are in the cache."""
    if _passes.isEnabledFor(logging.DEBUG):
        return _selected is None or bool(_selected)
    return any(_artifact_logger(name).isEnabledFor(logging.DEBUG) for name in ARTIFACTS)


@cache
def _artifact_logger(name: str) -> logging.Logger:
    from torch._logging import getArtifactLogger

    logger: logging.Logger = getArtifactLogger(_passes.name, name)
    return logger


def log_pass(title: str, *ir: object) -> None:
    """Print the IR as it is after a pass, at DEBUG level."""
    if (logger := _pass_logger(title)) is not None:
        logger.debug("%s:\n%s", title, "\n".join(map(str, ir)))


def dump_pass(kernel_name: str, title: str, ir: object) -> None:
    """The same for a pass of the pipeline, which is also kept as a file: ``passes/03_elide_copies.txt``."""
    log_pass(title, ir)
    if artifacts_wanted() and (_selected is None or title in _selected):
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
    return artifact_directory() is not None or os.environ.get("TORCH_COMPILE_DEBUG") == "1" or frontend_only()


def frontend_only() -> bool:
    """Whether kernels are planned and written, and not launched (``TORCH_SPYRE_FRONTEND_ONLY=1``)."""
    given = os.environ.get("TORCH_SPYRE_FRONTEND_ONLY", "")
    if given not in ("", "0", "1"):
        raise ValueError(f"TORCH_SPYRE_FRONTEND_ONLY={given!r}: expected 0 or 1")
    return given == "1"


def save_artifact(kernel_name: str, filename: str, text: str) -> None:
    """Keep a file of a kernel (``sdsc_0.json``, ``bundle.mlir``, an IR) in the compile's debug directory."""
    if artifacts_wanted():
        directory = _kernel_directory(kernel_name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / filename).write_text(text)


@contextmanager
def folder_of(kernel_name: str) -> Iterator[None]:
    """Inside, files of this kernel go to a folder of its own: kernels of one name may be compiled several times, for
    other shapes or layouts."""
    token = _folder.set((kernel_name, _free_folder(kernel_name)) if artifacts_wanted() else None)
    try:
        yield
    finally:
        _folder.reset(token)


def _free_folder(kernel_name: str) -> Path:
    base = _base_directory()
    names = (f"{kernel_name}_{n}" if n else kernel_name for n in itertools.count())
    return next(base / name for name in names if not (base / name).exists())


def _kernel_directory(kernel_name: str) -> Path:
    """The folder of the kernel in work; kernels that planners try on the way have folders in it."""
    known = _folder.get()
    if known is None:
        return _base_directory() / kernel_name
    return known[1] if kernel_name == known[0] else known[1] / kernel_name


def _base_directory() -> Path:
    directory = artifact_directory()
    if directory is None:  # an eager op
        from torch._dynamo.utils import get_debug_dir

        directory = Path(get_debug_dir(), "spyre")
    return directory


def save_artifacts(
    kernel_name: str, kernel: object, specs: Sequence[object], texts: Sequence[str], bundle: str
) -> Path | None:
    """Keep a kernel's loop IR, its OpSpecs, one SuperDSC text per OpSpec, and what chains them; gives the folder."""
    if not artifacts_wanted():
        return None
    save_artifact(kernel_name, "loop_ir.txt", str(kernel))
    if bundle:  # else the one text is the kernel as KTIR
        save_artifact(kernel_name, "bundle.mlir", bundle)
    save_artifact(kernel_name, "op_specs.txt", "\n".join(map(str, specs)))
    for position, text in enumerate(texts):
        save_artifact(kernel_name, f"sdsc_{position}.json" if bundle else "kernel.mlir", text)
    return _kernel_directory(kernel_name)
