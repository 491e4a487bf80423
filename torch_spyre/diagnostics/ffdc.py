"""First-failure data capture: ``TORCH_SPYRE_FFDC=1`` writes a report when something fails.

A report says what failed and where, and has what is needed to do it again: the kernel (``spyre replay`` runs it), its
OpSpecs and SuperDSC, settings, environment, and the state of the cards. The error itself is raised as ever; a report
that cannot be written costs a warning.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .. import _C, __version__, directories, failures, logging
from .._inductor import config
from ..caching.version import compiler_version
from ..card import description as card_description
from ..execution import kernel as kernels
from ..execution.kernel import Prepared
from ..failures import Failure
from ..ir.signature import signature_of
from . import captures, container

log = logging.get_logger(__name__)

VERSION = 1
KEPT = 50  # reports in a directory; the oldest go first
MOST_TEXT = 8 << 20  # characters of one artifact
CATEGORIES = ("compile_frontend", "compile_backend", "runtime_launch", "unimplemented", "unknown")
SECTIONS = ("failure", "artifacts", "environment", "runtime", "hardware_state")

# Variables that a report may show: others may hold secrets.
_SHOWN = re.compile(
    "(SPYRE|TORCH|PYTORCH|AIU|DXP|FLEX|OMP|MKL)_.*|TORCHINDUCTOR_.*|TORCHDYNAMO_.*"
    "|SENCORES|LX_PLANNING|CO_OPTIMIZING_LX_PLANNING|LAYOUT_SOLVER|MAX_BUCKETS|MIN_DEFAULT_GRANULARITY"
    "|LOCAL_RANK|RANK|WORLD_SIZE|PYTHONPATH|LANG"
)
_SECRET = re.compile("TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_OWN_FILES = re.compile(rf"ffdc_({'|'.join(CATEGORIES)})_\d{{8}}T\d{{6}}_\d{{6}}_\d+\.json")
_RECENT = 64  # kernels that are remembered, for errors that surface when they run


class _Recent:
    """The kernels that were prepared last, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernels: OrderedDict[str, Callable[[], dict[str, Any]]] = OrderedDict()

    def note(self, prepared: Prepared) -> None:
        text, signature, numbers, code = prepared.text, signature_of(prepared.inputs), prepared.numbers, prepared.code
        name = json.loads(text)["name"]  # eager kernels are called as their ops are, by which errors know them
        with self._lock:
            for known in (name, code["name"]):
                self._kernels.pop(known, None)
                self._kernels[known] = lambda: captures.describe(text, signature, numbers, code)
            while len(self._kernels) > _RECENT:
                self._kernels.popitem(last=False)

    def named_in(self, message: str) -> Callable[[], dict[str, Any]] | None:
        """The one that an error names, by the longest name."""
        words = set(re.findall(r"\w+", message))
        with self._lock:
            found = max((name for name in self._kernels if name in words), key=len, default=None)
            return self._kernels[found] if found else None


_recent = _Recent()
_last: Failure | None = None
_writing = threading.local()


def install() -> None:
    """Writes a report for every failure from now on."""
    if _collect not in failures.collectors:
        failures.collectors.append(_collect)
        kernels.observers.append(_recent.note)
        _C.failure_listeners.append(_at_run_time)


def uninstall() -> None:
    """Ends it."""
    if _collect in failures.collectors:
        failures.collectors.remove(_collect)
        kernels.observers.remove(_recent.note)
        _C.failure_listeners.remove(_at_run_time)


def get_diagnostic_report(output_dir: str | Path | None = None) -> dict[str, Any]:
    """A report of this process as it is now, with its last failure if there was one; see ``docs/debugging.md``."""
    found = report(_last)
    if output_dir is not None:
        found["collector"]["path"] = str(_write(found, Path(os.path.abspath(output_dir))))
    return found


def _at_run_time(kind: str, message: str, op: str) -> None:
    category = "unimplemented" if kind == "NotImplementedError" else "runtime_launch"
    _collect(Failure(category, kind, message, facts={"op": op} if op else {}))


def _collect(failure: Failure) -> None:
    """Writes a report. Nothing that goes wrong here may hide the failure itself."""
    global _last
    if failure.type == "FrontendOnly" or getattr(_writing, "now", False):
        return
    _writing.now = True
    try:
        _last = failure
        path = _write(report(failure), directory())
        log.warning("%s failed; a diagnostic report is in %s", _what(failure), path)
    except Exception as error:
        warnings.warn(f"the diagnostic report of a failure was not written: {error}", RuntimeWarning, stacklevel=2)
    finally:
        _writing.now = False


def _what(failure: Failure) -> str:
    return f"{failure.category} of {failure.facts.get('name') or failure.facts.get('op') or 'a program'}"


def directory() -> Path:
    """``TORCH_SPYRE_FFDC_DIR``, or one of the caller's own in the directory for temporary files."""
    if given := os.environ.get("TORCH_SPYRE_FFDC_DIR"):
        return Path(os.path.abspath(given))
    return Path(os.path.realpath(tempfile.gettempdir()), f"torch_spyre_ffdc_{os.geteuid()}")


def _write(found: dict[str, Any], folder: Path) -> Path:
    """A file for the caller alone, in a directory of theirs."""
    now = time.time_ns() // 1000
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 1_000_000))
    name = f"ffdc_{found['metadata']['category']}_{stamp}_{now % 1_000_000:06}_{os.getpid()}.json"
    content = json.dumps(found, indent=1, default=str).encode()
    with directories.private(folder, create=True) as opened:
        beside = directories.new_name(".ffdc.")
        try:
            directories.write_files(opened, {beside: content})
            os.rename(beside, name, src_dir_fd=opened, dst_dir_fd=opened)
        except OSError:
            directories.remove(opened, beside)
            raise
        _forget_oldest(opened)
    return folder / name


def _forget_oldest(opened: int) -> None:
    ours = filter(_OWN_FILES.fullmatch, os.listdir(opened))
    by_time = sorted(ours, key=lambda name: name.split("_")[-3:-1])
    for name in by_time[:-KEPT]:
        with suppress(FileNotFoundError):  # another process was faster
            os.unlink(name, dir_fd=opened)


def report(failure: Failure | None) -> dict[str, Any]:
    """What is known of a failure, and of the process. A section that cannot be made says why instead."""
    made: dict[str, Any] = {
        "failure": lambda: None if failure is None else _failure(failure),
        "artifacts": lambda: _artifacts(failure),
        "environment": _environment,
        "runtime": _runtime,
        "hardware_state": _hardware_state,
    }
    found: dict[str, Any] = {"metadata": _metadata(failure)}
    missing: list[str] = []
    for name in SECTIONS:
        try:
            found[name] = made[name]()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            missing.append(name)
    missing += [f"artifacts.{name}" for name, value in found["artifacts"].items() if value is None and failure]
    fields = len(SECTIONS) + len(found["artifacts"])
    found["collector"] = {
        "completeness_pct": round(100 * (fields - len(missing)) / fields),
        "missing": missing,
        "path": None,
    }
    return found


def _metadata(failure: Failure | None) -> dict[str, Any]:
    return {
        "format": "spyre ffdc",
        "version": VERSION,
        "category": "unknown" if failure is None else failure.category,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        "torch_spyre": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "compiler": compiler_version(),
    }


def _failure(failure: Failure) -> dict[str, Any]:
    error = failure.error
    trace = [] if error is None else traceback.format_exception(error)
    return {
        "type": failure.type,
        "message": failure.message,
        "op": failure.facts.get("op"),
        "kernel": failure.facts.get("name"),
        "traceback": "".join(trace)[-MOST_TEXT:],
        "called_from": _called_from(),
    }


def _called_from() -> list[str]:
    """The lines of the user's program that led here, the innermost last."""
    own, pytorch = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)
    frames = traceback.extract_stack()
    theirs = [frame for frame in frames if not frame.filename.startswith((own, pytorch, "<"))]
    return [f'File "{frame.filename}", line {frame.lineno}: {frame.line or ""}' for frame in theirs[-20:]]


def _artifacts(failure: Failure | None) -> dict[str, Any]:
    facts = {} if failure is None else failure.facts
    kernel = None
    if "text" in facts:
        kernel = captures.describe(facts["text"], facts["signature"])
    elif failure is not None and (named := _recent.named_in(failure.message)):
        kernel = named()
    if kernel is not None and len(json.dumps(kernel)) > container.MOST_HEADER:
        kernel["code"] = None
    specs = facts.get("op_specs")
    return {
        "kernel": kernel,
        "loop_ir": None if kernel is None else _loop_ir(kernel),
        "op_specs": specs() if callable(specs) else None,
        "superdsc": facts.get("superdsc"),
        "bundle": facts.get("bundle"),
        "settings": config.save_config_portable(),
        "sources": None if kernel is None else kernel["sources"],
    }


def _loop_ir(kernel: dict[str, Any]) -> str:
    from .._inductor.loop_ir import from_json

    return str(from_json(json.dumps(kernel["kernel"])))[:MOST_TEXT]


def _environment() -> dict[str, Any]:
    shown = {name: value for name, value in os.environ.items() if _SHOWN.fullmatch(name) and not _SECRET.search(name)}
    return {"variables": dict(sorted(shown.items())), "python": sys.version, "cpus": os.cpu_count()}


def _runtime() -> dict[str, Any]:
    from ..caching import kernel_cache

    return {
        "started": _C.runtime_started(),
        "mode": _C.card_mode(),
        "flex_device": _C.flex_device(),
        "fallback_mode": _C.fallback_mode(),
        "fallbacks": _C.fallback_counts(),
        "kernels": _C.kernel_counts(),
        "kernel_cache": kernel_cache.stats(),
        "threads": threading.active_count(),
    }


def _hardware_state() -> dict[str, Any]:
    return {
        "description": captures.hardware_in_force(),
        "constants": card_description.constants(),
        "cards": [_card(index) for index in range(_C.device_count())] if _C.runtime_started() else [],
    }


def _card(index: int) -> dict[str, Any]:
    from ..device import memory

    return {
        "cores": _C.card_cores(index),
        "memory_bytes": _C.card_memory(index),
        "allocated_bytes": memory.memory_allocated(index),
        "reserved_bytes": memory.memory_reserved(index),
        "peak_bytes": memory.max_memory_allocated(index),
        "default_stream_ns": _C.stream_time_ns(index, 0),
    }
