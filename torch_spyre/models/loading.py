"""Models from a directory, from the box or from a preset, checked before anything is read into memory.

transformers says what is wrong with a model in a traceback through its own files, or not at all: weights that a
checkpoint lacks are filled with random numbers. Here each is one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from .. import device
from ..model_utils import has_values_of, load_model_to_spyre, opened_tensors, parameters_on_meta
from . import files, host_memory, limits, presets
from .command_line import check_there
from .errors import ModelError
from .files import BOX
from .tensor_parallel import Place, shard

_GENERATION = "generation_config.json"

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """Where a model comes from: its configuration, and for a directory the files with its weights.

    ``trusted``: code of the directory may be executed.
    """

    name: str
    configuration: Any
    numbers: int  # of all its parameters and buffers
    directory: Path | None = None
    weights: tuple[Path, ...] = ()
    trusted: bool = False

    @property
    def vocabulary(self) -> int:
        return int(self.configuration.get_text_config(decoder=True).vocab_size)

    @property
    def context(self) -> int:
        """Positions that the model knows; a model that says none takes any number."""
        text = self.configuration.get_text_config(decoder=True)
        return int(getattr(text, "max_position_embeddings", None) or 2**31)


def from_directory(directory: Path, weights_wanted: bool = True, trusted: bool = False) -> Source:
    """A Hugging Face directory. Without ``weights_wanted`` its configuration is enough.

    Whatever is in it, this ends within limits of time and memory, and executes nothing of it that is not ``trusted``.
    """
    check_there(directory)
    files.check_directory(directory)
    fields = files.read_json(directory / "config.json")
    limits.check_configuration(directory / "config.json", fields, trusted)
    if (directory / _GENERATION).is_file():
        files.read_json(directory / _GENERATION)  # transformers goes on without a damaged one
    with limits.bounded(f"building {directory} from its config.json"):
        configuration = _configuration(directory, fields, trusted)
        skeleton = _skeleton(str(directory), configuration, trusted)
    weights = _weight_files(directory) if weights_wanted else ()
    shapes = {name: shape for file in weights for name, shape in _shapes(file).items()}
    for name, parameter in sorted(skeleton.named_parameters(), key=itemgetter(0)):
        if list(parameter.shape) != shapes.get(name, list(parameter.shape)):
            raise ModelError(
                f"{directory}: {name} has the shape {shapes[name]}, its config.json says {list(parameter.shape)}"
            )
    source = Source(
        "the model in the box" if directory == BOX else str(directory),
        configuration,
        max(_numbers(skeleton), sum(map(prod, shapes.values()))),
        directory,
        weights,
        trusted,
    )
    _check_tokens(source)
    return source


_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def _configuration(directory: Path, fields: dict[str, Any], trusted: bool) -> Any:
    from transformers import AutoConfig

    architecture = fields.get("model_type")
    try:
        found = AutoConfig.from_pretrained(directory, trust_remote_code=trusted, local_files_only=True)
    except KeyError as error:
        raise ModelError(f"{directory}: transformers does not know the architecture {architecture!r}") from error
    except Exception as error:  # its fields are checked by whatever their class uses
        if fields.get("auto_map") and not trusted:
            raise ModelError(
                f"{directory} needs code of its own for the architecture {architecture!r}, which is executed only with "
                "--trust-remote-code"
            ) from error
        raise ModelError(_unknown(str(directory), architecture, error)) from error
    saved = getattr(found, "architectures", None) or []
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise ModelError(f"{directory}: its architectures are {saved!r}, which are no names")
    if saved and not any(name.endswith(_CAUSAL) for name in saved):
        raise ModelError(f"{directory} holds a {saved[0]}, which is no causal language model")
    return found


def _skeleton(name: str, configuration: Any, trusted: bool = False, dtype: torch.dtype | None = None) -> Any:
    """The model without memory. Wrong numbers and names fail wherever they are used first."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(configuration, trust_remote_code=trusted, dtype=dtype)
    except Exception as error:
        raise ModelError(_unknown(name, configuration.model_type, error)) from error


def _numbers(model: Any) -> int:
    return sum(each.numel() for each in (*model.parameters(), *model.buffers()))


def _check_tokens(source: Source) -> None:
    try:
        vocabulary, _ = source.vocabulary, source.context
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ModelError(_unknown(source.name, source.configuration.model_type, error)) from error
    if vocabulary < 1:
        raise ModelError(f"{source.name} has a vocabulary of {vocabulary} tokens")


def from_preset(name: str, layers: int | None) -> Source:
    configuration = presets.causal_configuration(name, layers)
    numbers = _numbers(_skeleton(name, configuration))
    return Source(name if layers is None else f"{name}, its first {layers} layers", configuration, numbers)


def load(source: Source, dtype: torch.dtype, seed: int) -> Any:
    """The model on the host. Weights of a preset are random."""
    from transformers import AutoModelForCausalLM

    try:
        if source.directory is None:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(source.configuration, trust_remote_code=False, dtype=dtype)
        else:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source.directory,
                dtype=dtype,
                output_loading_info=True,
                local_files_only=True,
                use_safetensors=True,  # others are pickled code
                trust_remote_code=source.trusted,
                ignore_mismatched_sizes=True,  # to say which
            )
            model, found = loaded
            if missing := sorted(found["missing_keys"]):
                raise ModelError(f"{source.name} lacks {len(missing)} of its weights, among them {missing[0]}")
            if other := sorted(found["mismatched_keys"]):
                name, has, wants = other[0]
                raise ModelError(f"{source.name}: {name} has the shape {list(has)}, its config.json says {list(wants)}")
            if foreign := sorted(found["unexpected_keys"]):
                raise ModelError(
                    f"{source.name} has {len(foreign)} weights that its config.json has no place for, among them "
                    f"{foreign[0]}"
                )
    except ModelError:
        raise
    except ValueError as error:  # of a configuration that has no causal language model
        raise ModelError(_unknown(source.name, source.configuration.model_type, error)) from error
    except Exception as error:  # SafetensorError is an Exception and nothing more
        raise ModelError(f"the weights of {source.name} cannot be read: {_first_line(error)}") from error
    return _ready(model)


def load_part(source: Source, dtype: torch.dtype, place: Place, tick: Tick) -> Any:
    """One card's part of a model in a directory, on the card; it reads nothing else of the files."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    assert source.directory is not None
    with parameters_on_meta():
        model = AutoModelForCausalLM.from_config(source.configuration, trust_remote_code=source.trusted, dtype=dtype)
    done = shard(model, place)
    if (source.directory / _GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(source.directory, local_files_only=True)
    try:
        load_model_to_spyre(model, source.directory, dtype=dtype, progress=tick, cuts=done.cuts, names=done.names)
    except ValueError as error:
        raise ModelError(f"the weights of {source.name} cannot be read: {_first_line(error)}") from error
    return _ready(model)


def is_read_in_parts(source: Source) -> bool:
    """Whether each of several cards can read its part alone: else transformers has to translate the whole first."""
    return source.directory is not None and has_values_of(outline(source), source.directory)


def conjure(source: Source, dtype: torch.dtype, place: Place | None = None) -> Any:
    """The model straight on the card, its weights whatever lies there: for a card that computes no values.

    It is built on the meta device, so that no weight ever takes memory of the host. With a ``place`` the card has its
    part of the model.
    """
    model = _skeleton(source.name, source.configuration, source.trusted, dtype)
    if place:
        shard(model, place)
    _check_card(source.name, _numbers(model) * dtype.itemsize)
    return _ready(load_model_to_spyre(model, dtype=dtype))


def outline(source: Source) -> Any:
    """The whole model on the meta device: its sizes and nothing else."""
    return _skeleton(source.name, source.configuration, source.trusted)


def check_size(source: Source, on_card: int, on_host: int, cards: int = 1) -> None:
    """Refuses what would not fit the card or this machine's memory, given the bytes of one weight on either."""
    _check_card(source.name, source.numbers * on_card // cards)
    available = host_memory.available()
    if available is not None and source.numbers * on_host > available:
        raise ModelError(
            f"{source.name} takes {source.numbers * on_host / 1e9:.1f} GB of this machine's memory, of which "
            f"{available / 1e9:.1f} GB are free: --mode timing needs none of it"
        )


def to_card(model: Any, dtype: torch.dtype, tick: Tick) -> Any:
    """Moves a model, each weight in the layout that products want."""
    return load_model_to_spyre(model, dtype=dtype, progress=tick)


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The layers that follow each other, whatever a model calls their list."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    return list(next((found for found in lists if len(found) == count), ()))


def load_tokenizer(source: Source) -> Any | None:
    """The tokenizer of a directory, if it has one."""
    if source.directory is None or not any((source.directory / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    _check_tokenizer_config(source.directory)
    if (source.directory / "tokenizer.json").is_file():
        limits.check_tokenizer(
            source.directory / "tokenizer.json", files.read_json(source.directory / "tokenizer.json")
        )
    try:
        with limits.bounded(f"reading the tokenizer of {source.name}"):
            return AutoTokenizer.from_pretrained(
                source.directory, local_files_only=True, trust_remote_code=source.trusted
            )
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ModelError(f"the tokenizer of {source.name} cannot be read: {_first_line(error)}") from error


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def _check_tokenizer_config(directory: Path) -> None:
    """Files that it names are in the directory. Where there is none, the name was left over on the way here."""
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return
    for field, value in files.read_json(file).items():
        named = value if isinstance(value, list) else [value]
        if field.endswith(("_file", "_files")):
            for name in (name for name in named if isinstance(name, str)):
                if (directory / name).exists():
                    files.check_inside(directory, directory / name)


def _ready(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def _unknown(name: str, architecture: str | None, error: Exception) -> str:
    return f"{name}: the architecture {architecture!r} cannot be run as a causal language model: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_card(name: str, needed: int) -> None:
    free, total = device.mem_get_info()
    if needed > free:
        raise ModelError(
            f"{name} has {_size(needed)} of weights and the card {_size(total)} of memory, of which {_size(free)} are "
            "free"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _weight_files(directory: Path) -> tuple[Path, ...]:
    if (directory / files.INDEX).is_file():
        found = tuple(files.indexed_files(directory))
        if missing := [file for file in found if not file.is_file()]:
            raise ModelError(
                f"{directory} has no {missing[0].relative_to(directory)}, where {files.INDEX} says that weights are"
            )
        return found
    if not (directory / files.SINGLE).is_file():
        raise ModelError(f"{directory} has no {files.SINGLE}: its weights are missing")
    return (directory / files.SINGLE,)


_HEADER_BYTES = 100_000_000  # as the package safetensors has it


def _shapes(file: Path) -> dict[str, list[int]]:
    """The tensors of a safetensors file, by its header; refuses one whose length is not what that says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > size - 8:
            raise ModelError(f"{file} is truncated: its header alone should take {length} bytes of {size}")
        if length > _HEADER_BYTES:
            raise ModelError(f"{file} is not a safetensors file: its header takes {length} bytes")
        try:
            header = json.loads(opened.read(length))
            tensors = {key: entry for key, entry in header.items() if key != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise ModelError(f"{file} is not a safetensors file: {_first_line(error)}") from error
    if 8 + length + end != size:
        raise ModelError(f"{file} is truncated: it has {size} bytes and should have {8 + length + end}")
    try:
        with opened_tensors(file) as found:  # which checks types, shapes and that nothing overlaps
            return {name: list(found.get_slice(name).get_shape()) for name in found.keys()}  # noqa: SIM118
    except ValueError as error:
        raise ModelError(str(error)) from error
