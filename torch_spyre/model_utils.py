"""Weights straight to the card: one tensor at a time, each once, in the layout that the compiler wants."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from . import _C
from .constants import DEVICE_NAME
from .device.properties import get_device_properties
from .models.files import INDEX, SINGLE, check_directory, indexed_files, read_json
from .models.limits import check_configuration

MAPPED = 2**28  # bytes of a file that are mapped at a time: what was read of them is this process's memory
Owners = list[tuple[nn.Module, str]]  # the modules that a parameter belongs to, and its name there
Layouts = Callable[[tuple[int, ...], torch.dtype], _C.SpyreTensorLayout]  # of a shape and dtype
Progress = Callable[[int, int], None]
Cut = Callable[[Any], Tensor]  # makes of a tensor, or of one in a file, the part that is wanted
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def load_model_to_spyre(
    model: nn.Module | str | Path,
    weights: str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = DEVICE_NAME,
    progress: Progress | None = None,
    cuts: Mapping[nn.Parameter, Cut] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Put a model on the card, parameter by parameter: the host holds one tensor of the file at a time.

    ``model`` is a module, on the host or on ``meta``, or a directory in Hugging Face's form, which is built by
    transformers. ``weights`` is a safetensors file or a directory of them with the module's names; without it the
    module's own parameters are sent. ``dtype`` is that of real parameters; constants keep theirs. Parameters stay the
    same objects, tied ones stay tied. A card in timing mode keeps no values: there a module on ``meta`` is enough.
    ``progress`` is told after each parameter how many there are so far, and in all. Of a parameter in ``cuts`` only
    that part is read; ``names`` are those of parameters that were one in the whole model, by each of them.
    """
    if not isinstance(model, nn.Module):
        model, weights = _from_directory(Path(model), dtype)
    parameters = _unique_parameters(model)
    if weights is None:
        placed = _sent_parameters(parameters, dtype, device)
    else:
        wanted = _Wanted(model, _files(Path(weights)), cuts or {}, names or {})
        placed = _streamed_parameters(wanted, dict(parameters), dtype, device)
    for done, _ in enumerate(placed, 1):
        if progress is not None:
            progress(done, len(parameters))
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                layout = wanted_layout(tuple(buffer.shape), buffer.dtype, [(module, name)])
                module._buffers[name] = _sent(buffer, layout, buffer.dtype, device)
    return model


def wanted_layout(shape: tuple[int, ...], dtype: torch.dtype, owners: Owners) -> _C.SpyreTensorLayout | None:
    """How a parameter should lie so that no compiled call moves it; None: as any tensor."""
    make = way_to_lie(shape, owners)
    return None if make is None else make(shape, dtype)


def way_to_lie(shape: tuple[int, ...], owners: Owners) -> Layouts | None:
    """The same for all dtypes, also those that the card has not.

    The matrix unit wants a Linear's weight in sticks along the outputs, which is not PyTorch's order: one that lies
    along the inputs is turned on every call. A table of embeddings, tied to one or not, must keep rows whole. A
    convolution is a product with its weight as a matrix. In a batch of matrices, as of several experts, outputs lie
    next to the sticks: the default layout has the first dimension there, and batches there slow the unit down.
    """
    if all(_is_linear(module, name, shape) for module, name in owners):
        return along_outputs
    if any(name in module._buffers for module, name in owners):  # no other weight is a buffer
        return None
    if all(isinstance(module, CONVOLUTIONS) and module.groups == 1 and name == "weight" for module, name in owners):
        return _as_matrix
    if len(shape) == 3 and min(shape) > 1 and not any(isinstance(module, _ConvNd) for module, _ in owners):
        return _by_experts
    return None


def _is_linear(module: nn.Module, name: str, shape: tuple[int, ...]) -> bool:
    """Whether this is the weight of a Linear, or of what quantisation put in the place of one: there it is a buffer."""
    given = (getattr(module, "out_features", None), getattr(module, "in_features", None))
    return name == "weight" and (isinstance(module, nn.Linear) or shape == given)


def along_outputs(shape: tuple[int, ...], dtype: torch.dtype) -> _C.SpyreTensorLayout:
    return _C.SpyreTensorLayout(list(shape), [shape[1], 1], dtype, [1, 0])


def _as_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> _C.SpyreTensorLayout:
    return _C.SpyreTensorLayout([shape[0], prod(shape[1:])], dtype)


def _by_experts(shape: tuple[int, ...], dtype: torch.dtype) -> _C.SpyreTensorLayout:
    """[inputs in sticks, experts, outputs, a stick]: a core that takes some of the inputs reaches all experts."""
    experts, outputs, inputs = shape
    stick = _C.get_elem_in_stick(dtype)
    return _C.SpyreTensorLayout(
        [-(-inputs // stick), experts, outputs, stick],
        [stick, outputs * inputs, inputs, 1],
        _C.get_device_dtype(dtype),
    )


def _unique_parameters(model: nn.Module) -> list[tuple[nn.Parameter, Owners]]:
    found: dict[nn.Parameter, Owners] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found[parameter].append((module, name))
    return list(found.items())


def _sent_parameters(
    parameters: list[tuple[nn.Parameter, Owners]], dtype: torch.dtype | None, device: torch.device | str
) -> Iterator[nn.Parameter]:
    for parameter, owners in parameters:
        _place(parameter, parameter.data, owners, dtype, device)
        yield parameter


def _place(
    parameter: nn.Parameter, value: Tensor, owners: Owners, dtype: torch.dtype | None, device: torch.device | str
) -> None:
    kept = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
    layout = wanted_layout(tuple(value.shape), kept, owners)
    _C.set_data(parameter, _sent(value, layout, kept, device))


def _sent(value: Tensor, layout: _C.SpyreTensorLayout | None, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if value.device.type == "meta":
        if get_device_properties(device).mode != "timing":
            raise ValueError("this module has no values (it is on meta) and no weights were given")
        if layout is None:
            return torch.empty(value.shape, dtype=dtype, device=device)
        return torch.empty(value.shape, dtype=dtype, device=device, device_layout=layout)  # type: ignore[call-overload]
    value = value.to(dtype).contiguous()
    return value.to(device) if layout is None else value.to(device, device_layout=layout)  # type: ignore[call-overload]


# --- files


def _files(weights: Path) -> list[Path]:
    if weights.is_file():
        return [weights]
    if (weights / INDEX).is_file():
        files = indexed_files(weights)
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise FileNotFoundError(f"{weights} lacks {', '.join(missing)}, which its index names")
        return files
    files = [weights / SINGLE] if (weights / SINGLE).is_file() else sorted(weights.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{weights} has no safetensors files")
    return files


@contextmanager
def opened_tensors(file: Path) -> Iterator[Any]:
    """A safetensors file, whose header was checked."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError("reading weights needs the package safetensors") from None
    try:
        with safe_open(str(file), framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or not whole: {error}") from error


def _tensors(file: Path) -> Iterator[tuple[str, Callable[[Cut | None], Tensor]]]:
    """Names of tensors, and what reads one or its part. They lie in the mapped file: it is opened anew every so many
    bytes, to let go of the rest."""
    mapped = 0
    with opened_tensors(file) as tensors:
        names = deque(tensors.keys())

    def read(cut: Cut | None) -> Tensor:
        nonlocal mapped
        value: Tensor = tensors.get_tensor(name) if cut is None else cut(tensors.get_slice(name))
        mapped += value.nbytes
        return value

    while names:
        mapped = 0
        with opened_tensors(file) as tensors:
            while names and mapped < MAPPED:
                name = names.popleft()
                yield name, read


def _names(files: list[Path]) -> set[str]:
    names: set[str] = set()
    for file in files:
        with opened_tensors(file) as tensors:
            names |= set(tensors.keys())
    return names


def _in_model(model: nn.Module) -> dict[str, Tensor]:
    """Every name that a file may have for a parameter or buffer, tied ones under each of theirs."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found |= dict(model.named_buffers(remove_duplicate=False))
    prefix = getattr(model, "base_model_prefix", "") + "."
    return {name.removeprefix(prefix): value for name, value in found.items()} | found


class _Wanted:
    """What a model takes of a file, by the names in it."""

    def __init__(
        self,
        model: nn.Module,
        files: list[Path],
        cuts: Mapping[nn.Parameter, Cut],
        names: Mapping[str, Sequence[str]],
    ) -> None:
        self.model, self.files, self.cuts, self.names = model, files, cuts, names
        self.places = _in_model(model)
        self.translated = _translated(model, files)
        self.prefix = getattr(model, "base_model_prefix", "") + "."

    def targets(self, name: str) -> list[Tensor]:
        """The parameters of that name, or the buffer. Those that were one may each have a part of it."""
        name = self.translated.get(name, name)
        alike = self.names.get(name) or self.names.get(self.prefix + name) or [name]
        found = (self.places.get(each) for each in dict.fromkeys([name, *alike]))
        return list({id(each): each for each in found if each is not None}.values())

    def missing(self, placed: set[Tensor]) -> list[str]:
        return [name for name, parameter in self.model.named_parameters() if parameter not in placed]


def _streamed_parameters(
    wanted: _Wanted,
    owners: dict[nn.Parameter, Owners],
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> Iterator[nn.Parameter]:
    placed: set[Tensor] = set()
    for file in wanted.files:
        for name, read in _tensors(file):
            targets = wanted.targets(name)
            if not targets:
                raise ValueError(f"{file} has {name}, which {type(wanted.model).__name__} has not")
            for target in targets:
                value = read(wanted.cuts.get(target) if isinstance(target, nn.Parameter) else None)
                if value.shape != target.shape:
                    raise ValueError(f"{name} in {file} is {list(value.shape)}, not {list(target.shape)}")
                if value.is_floating_point() != target.is_floating_point():
                    raise ValueError(f"{name} in {file} has numbers of {value.dtype}, not of {target.dtype}")
                if isinstance(target, nn.Parameter):
                    _place(target, value, owners[target], dtype, device)
                    placed.add(target)
                    yield target
                else:
                    target.copy_(value)
    if missing := wanted.missing(placed):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"no weights for {', '.join(missing[:3])}{more}")


# --- Hugging Face's directories


def _from_directory(directory: Path, dtype: torch.dtype | None) -> tuple[nn.Module, Path | None]:
    """The model with no weights yet and where they are, or with weights where only transformers can read them."""
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} has no config.json: not a model in Hugging Face's form")
    try:
        import transformers
    except ImportError:
        raise ImportError("building a model from its directory needs the package transformers") from None
    check_directory(directory)
    check_configuration(directory / "config.json", read_json(directory / "config.json"))
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    kind = getattr(transformers, str((config.architectures or [""])[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"{directory}/config.json names no architecture that transformers has: {config.architectures}")
    dtype = dtype or config.dtype or torch.float16
    with parameters_on_meta():
        model = kind._from_config(config, dtype=dtype).eval()
    if not has_values_of(model, directory):
        warnings.warn(
            f"{directory} has its weights in another form than {kind.__name__}: transformers converts them, and the "
            "host holds the whole model meanwhile",
            stacklevel=3,
        )
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True, "use_safetensors": True}
        return kind.from_pretrained(directory, dtype=dtype, **options).eval(), None
    if (directory / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    return model, directory


def has_values_of(model: nn.Module, directory: Path) -> bool:
    """Whether the weights in a directory are those of the model as they are, though perhaps by other names."""
    files = _files(directory)
    translated = _translated(model, files)
    return {translated.get(name, name) for name in _names(files)} <= set(_in_model(model))


def _translated(model: nn.Module, files: list[Path]) -> dict[str, str]:
    """Names in files that are others in a model of transformers. Those whose values differ too are not among them."""
    names = _names(files) - set(_in_model(model))
    if not names or not hasattr(model, "config"):
        return {}
    from transformers import conversion_mapping, core_model_loading

    rules = conversion_mapping.get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [rule for rule in rules if isinstance(rule, core_model_loading.WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, core_model_loading.WeightConverter)]
    found = {name: core_model_loading.rename_source_key(name, renamings, converters) for name in names}
    return {name: translated for name, (translated, converter) in found.items() if converter is None}


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules made inside have no memory for parameters; buffers, which no file has, are as ever."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(self, name, parameter)
        if parameter is not None and parameter.device.type != "meta":  # one that is there already stays tied
            self._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    with patch.object(nn.Module, "register_parameter", on_meta):
        yield
