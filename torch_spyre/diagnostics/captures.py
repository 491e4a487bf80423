"""One kernel in a file: its loop IR, how its arguments lie, the settings, and if wanted the values it ran on.

The description is JSON, and so part of a diagnostic report too; :mod:`.container` is the file. Everything that is read
is checked here: a capture may come from anywhere.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from .. import _C, __version__, logging
from .._inductor import config
from .._inductor.loop_ir import Kernel
from .._inductor.loop_ir.untrusted import MOST_OPS, InvalidKernel, kernel_of, numbers_of
from ..caching.version import compiler_version
from ..card import description as card_description
from ..execution import kernel as kernels
from ..execution.kernel import Prepared
from ..ir.signature import Argument, signature_of
from . import container, device_bytes
from .errors import CaptureError
from .launch import Results, run

log = logging.get_logger(__name__)

FORMAT, VERSION = "spyre capture", 1
SUFFIX = ".capture"
MOST_BYTES = 1 << 40  # of an argument
MOST_LINE = 1000  # characters

# Settings that plans follow from, and what they may be.
SETTINGS: dict[str, Callable[[Any], bool]] = {
    "sencores": lambda value: type(value) is int and 1 <= value <= 1 << 16,
    "lx_planning": lambda value: isinstance(value, bool),
    "planning": lambda value: value in ("together", "op_by_op"),
    "solver": lambda value: value in ("search", "exact"),
    "ignore_hints": lambda value: isinstance(value, bool),
}


@dataclass(frozen=True)
class Capture:
    """``contents`` has the bytes of device memory by the first argument in it, ``expected`` what the kernel gave;
    both are empty where no values were captured."""

    kernel: Kernel
    signature: tuple[Argument, ...]
    numbers: tuple[float, ...]
    settings: dict[str, Any]
    hardware: dict[str, str]
    made_by: dict[str, str]
    code: dict[str, Any] | None
    sources: dict[str, str]  # the text of each line that ops come from
    contents: dict[int, bytes] = field(default_factory=dict)
    expected: Results | None = None


def describe(
    text: str, signature: Sequence[Argument], numbers: Sequence[float] = (), code: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A kernel as JSON, without values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kernel": json.loads(text),
        "arguments": [_argument_fields(argument) for argument in signature],
        "numbers": [float(number) if isfinite(number) else str(float(number)) for number in numbers],
        "settings": {name: getattr(config, name) for name in SETTINGS},
        "hardware": hardware_in_force(),
        "made_by": {
            "torch_spyre": __version__,
            "torch": torch.__version__,
            "compiler": compiler_version(),
            "mode": _C.card_mode(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "code": None if code is None else dict(code),
        "sources": source_lines(text),
    }


def source_lines(text: str) -> dict[str, str]:
    """The text of every line of the user's program that a kernel names, by that name."""
    found = {op["source"] for op in json.loads(text)["ops"] if op["source"]}
    return {source: _source_line(source)[:MOST_LINE] for source in sorted(found)}


def _source_line(source: str) -> str:
    at = re.match(r'File "(.*)", line (\d+)', source)
    return linecache.getline(at[1], int(at[2])).strip() if at else ""


def hardware_in_force() -> dict[str, str]:
    """The name of the hardware description, and a hash of what it says."""
    constants = json.dumps(card_description.constants(), sort_keys=True)
    name = card_description.selected_file().name.removesuffix(".toml")
    return {"name": name, "sha256": hashlib.sha256(constants.encode()).hexdigest()}


def save(path: Path, prepared: Prepared, values: bool = True) -> None:
    """Writes the capture of a kernel that is about to run. With ``values`` it runs here once, on copies."""
    signature = signature_of(prepared.inputs)
    description = describe(prepared.text, signature, prepared.numbers, prepared.code)
    tensors: dict[str, torch.Tensor] = {}
    if values and _C.card_mode() != "timing" and prepared.plan is not None:
        tensors = _values(prepared, signature, description)
    container.write(path, description, tensors)
    log.info("kernel %s: captured in %s", prepared.code["name"], path)


def _values(prepared: Prepared, signature: Sequence[Argument], description: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The contents of memory, and what the kernel makes of it; nothing where that is too much, or cannot be read."""
    sizes = memory_of(signature)
    if 2 * sum(sizes.values()) > container.MOST_VALUES:
        log.warning("kernel %s: its %d bytes of arguments are not captured", prepared.code["name"], sum(sizes.values()))
        return {}
    try:
        contents = {i: device_bytes.get(prepared.inputs[i], size) for i, size in sizes.items()}
        capture = parse(description, {f"memory_{i}": _as_tensor(content) for i, content in contents.items()})
        expected = run(capture, prepared.plan, prepared.code).results
    except (RuntimeError, ValueError) as error:  # of strict mode: memory that nobody has written
        log.warning("kernel %s: its values are not captured: %s", prepared.code["name"], error)
        return {}
    tensors = {f"memory_{i}": _as_tensor(content) for i, content in contents.items()}
    tensors |= {f"output_{i}": value for i, value in enumerate(expected.outputs)}
    return tensors | {f"written_{i}": value for i, value in expected.written.items()}


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def memory_of(signature: Sequence[Argument]) -> dict[int, int]:
    """Bytes of each memory that arguments lie in, by the first of them."""
    sizes: dict[int, int] = {}
    for argument in signature:
        sizes[argument.storage] = max(sizes.get(argument.storage, 0), argument.layout.device_bytes())
    return sizes


def load(path: Path) -> Capture:
    """The capture in a file, or in a diagnostic report. Raises CaptureError."""
    description, tensors = container.read(path)
    try:
        return parse(description, tensors)
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from None


def parse(given: Any, tensors: Mapping[str, torch.Tensor]) -> Capture:
    """What a description and its tensors say. Raises CaptureError, which names the field."""
    _need(isinstance(given, dict) and given.get("format") == FORMAT, "this is no capture of a kernel")
    _need(given.get("version") == VERSION, f"the capture has another version than {VERSION}: capture again")
    try:
        kernel = kernel_of(given.get("kernel"))
    except InvalidKernel as error:
        raise CaptureError(str(error)) from None
    signature = _signature(given.get("arguments"))
    _need(len(signature) == len(kernel.inputs()), "arguments: the kernel has another number of inputs")
    numbers = _numbers(given.get("numbers"))
    _need(len(numbers) == numbers_of(kernel), f"numbers: the kernel takes {numbers_of(kernel)}")
    settings = given.get("settings")
    _need(
        isinstance(settings, dict) and settings.keys() == SETTINGS.keys(), "settings: those of a capture are expected"
    )
    for name, fits in SETTINGS.items():
        _need(fits(settings[name]), f"settings: {name} has no value that it can have")
    return Capture(
        kernel,
        signature,
        numbers,
        settings,
        _texts(given, "hardware", "name", "sha256"),
        _texts(given, "made_by", "torch_spyre", "torch", "compiler", "mode", "time"),
        _code(given.get("code")),
        _sources(given.get("sources")),
        *_parse_values(kernel, signature, tensors),
    )


def _need(holds: bool, message: str) -> None:
    if not holds:
        raise CaptureError(message)


def _argument_fields(argument: Argument) -> dict[str, Any]:
    layout = argument.layout
    return {
        "device_size": list(layout.device_size),
        "stride_map": list(layout.stride_map),
        "device_dtype": layout.device_dtype.name,
        "element_arrangement": layout.element_arrangement.name,
        "offset": argument.offset,
        "storage": argument.storage,
    }


def _signature(given: Any) -> tuple[Argument, ...]:
    _need(isinstance(given, list) and len(given) <= 1 << 16, "arguments: a list is expected")
    return tuple(_argument(each, i, given) for i, each in enumerate(given))


def _argument(given: Any, position: int, all_of_them: list[Any]) -> Argument:
    where = f"argument {position}"
    fields = given if isinstance(given, dict) else {}
    form = _C.DataFormats.__members__.get(str(fields.get("device_dtype")))
    arrangement = _C.ElementArrangement.__members__.get(str(fields.get("element_arrangement")))
    sizes: Any = fields.get("device_size")
    strides: Any = fields.get("stride_map")
    _need(form is not None and arrangement is not None, f"{where}: its format or arrangement is none of the card")
    _need(_are_integers(sizes) and _are_integers(strides), f"{where}: its sizes or strides are no numbers")
    assert form is not None and arrangement is not None
    try:
        layout = _C.SpyreTensorLayout(sizes, strides, form, arrangement)
        size = layout.device_bytes()
    except (ValueError, TypeError, RuntimeError) as error:
        raise CaptureError(f"{where}: {error}") from None
    _need(0 < size <= MOST_BYTES, f"{where}: it has {size} bytes")
    offset: Any = fields.get("offset")
    storage: Any = fields.get("storage")
    _need(type(offset) is int and 0 <= offset <= MOST_BYTES, f"{where}: its offset is no position")
    _need(type(storage) is int and 0 <= storage <= position, f"{where}: its storage is no argument before it")
    first = all_of_them[storage]
    _need(isinstance(first, dict) and first.get("storage") == storage, f"{where}: its storage is not the first one")
    return Argument(layout, offset, storage)


def _are_integers(given: Any) -> bool:
    return isinstance(given, list) and len(given) <= 64 and all(type(n) is int and abs(n) <= 1 << 40 for n in given)


def _numbers(given: Any) -> tuple[float, ...]:
    _need(isinstance(given, list) and len(given) <= 1 << 10, "numbers: a list is expected")
    for number in given:
        plain = isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < float("inf")
        _need(plain or (isinstance(number, str) and number in ("inf", "-inf", "nan")), "numbers: one is no number")
    return tuple(map(float, given))


def _texts(given: dict[str, Any], name: str, *fields: str) -> dict[str, str]:
    found = given.get(name)
    _need(
        isinstance(found, dict) and all(isinstance(found.get(key), str) and len(found[key]) <= 200 for key in fields),
        f"{name}: {', '.join(fields)} are expected, as texts",
    )
    assert isinstance(found, dict)
    return {key: printable(found[key]) for key in fields}


def _code(given: Any) -> dict[str, Any] | None:
    """The card program: what it does is checked by the card, and what lies around it here."""
    if given is None:
        return None
    _need(isinstance(given, dict), "code: an object is expected")
    steps = given.get("steps")
    _need(
        isinstance(steps, list) and all(isinstance(step, dict) and step.get("type") == "Compute" for step in steps),
        "code: its steps are not programs of the card alone",
    )
    _need(isinstance(given.get("outputs"), list), "code: it has no outputs")
    for output in given["outputs"]:
        _need(isinstance(output, dict) and isinstance(output.get("layout"), dict), "code: an output has no layout")
        _need(_are_integers(output.get("size")) and _are_integers(output.get("stride")), "code: an output has no size")
    return given


def _sources(given: Any) -> dict[str, str]:
    _need(isinstance(given, dict) and len(given) <= MOST_OPS, "sources: an object is expected")
    _need(all(isinstance(line, str) and len(line) <= MOST_LINE for line in given.values()), "sources: one is no line")
    return {source: printable(line) for source, line in given.items()}


def printable(text: str) -> str:
    """Without what a terminal would take for commands."""
    return "".join(c for c in text if c.isprintable())


def _parse_values(
    kernel: Kernel, signature: Sequence[Argument], tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[int, bytes], Results | None]:
    if not tensors:
        return {}, None
    sizes = memory_of(signature)
    contents = {}
    for i, size in sizes.items():
        found = tensors.get(f"memory_{i}")
        _need(
            found is not None and found.dtype == torch.uint8 and found.dim() == 1, f"memory_{i} is not there as bytes"
        )
        assert found is not None
        _need(len(found) == size, f"memory_{i} has {len(found)} bytes, the arguments in it take {size}")
        contents[i] = found.numpy().tobytes()
    outputs = [tensors.get(f"output_{i}") for i in range(len(kernel.outputs()))]
    written = {i: tensors.get(f"written_{i}") for i in written_inputs(kernel)}
    values = [*outputs, *written.values()]
    if all(value is None for value in values):
        return contents, None
    buffers = [*kernel.outputs(), *(kernel.inputs()[i] for i in written)]
    for value, buffer in zip(values, buffers, strict=True):
        fits = value is not None and value.dtype == buffer.dtype and tuple(value.shape) == buffer.size
        _need(fits, f"the captured values of {buffer.name} are not there, or not of its dtype and size")
    return contents, Results([v for v in outputs if v is not None], {i: v for i, v in written.items() if v is not None})


def written_inputs(kernel: Kernel) -> list[int]:
    """Positions of the inputs that the kernel writes."""
    written = {buffer.name for buffer in kernel.written_inputs()}
    return [i for i, buffer in enumerate(kernel.inputs()) if buffer.name in written]


@dataclass
class Captured:
    """The kernels that ran inside, by name, and the files that were written."""

    kernels: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


@contextmanager
def capturing(target: Path, kernel: str | None, values: bool) -> Iterator[Captured]:
    """Writes kernels that run inside, see :func:`torch_spyre.diagnostics.capture`."""
    found = Captured()
    save_one = _saver(target, kernel, values, found)
    kernels.forget_prepared()
    kernels.observers.append(save_one)
    try:
        yield found
    finally:
        kernels.observers.remove(save_one)
    if not found.files:
        wanted = f" whose name contains {kernel!r}" if kernel else ""
        raise CaptureError(f"no kernel{wanted} ran; those that did: {', '.join(found.kernels) or 'none'}")


def _saver(target: Path, kernel: str | None, values: bool, found: Captured) -> Callable[[Prepared], None]:
    def save_one(prepared: Prepared) -> None:
        name = prepared.code["name"]
        found.kernels.append(name)
        if (kernel and kernel not in name) or (found.files and not target.is_dir()):
            return
        file = target / f"{len(found.files):03}_{name}{SUFFIX}" if target.is_dir() else target
        found.files.append(file)
        save(file, prepared, values)

    return save_one


def capture_all(folder: Path, kernel: str | None) -> None:
    """Writes every kernel of this process when it first runs; what cannot be written costs a warning."""
    save_one = _saver(folder, kernel, True, Captured())

    def observed(prepared: Prepared) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_one(prepared)
        except (OSError, CaptureError) as error:
            warnings.warn(f"kernel {prepared.code['name']} was not captured: {error}", RuntimeWarning, stacklevel=2)

    kernels.observers.append(observed)
