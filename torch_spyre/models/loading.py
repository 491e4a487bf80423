"""Models from a directory, from the box or from a preset, checked before anything is read into memory.

transformers says what is wrong with a model in a traceback through its own files, or not at all: weights that a
checkpoint lacks are filled with random numbers. Here each is one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from .. import device
from ..model_utils import load_model_to_spyre
from . import presets
from .errors import ModelError

BOX = Path(__file__).parent / "box"

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """Where a model comes from: its configuration, and for a directory the files with its weights."""

    name: str
    configuration: Any
    directory: Path | None = None
    weights: tuple[Path, ...] = ()

    @property
    def vocabulary(self) -> int:
        return int(self.configuration.get_text_config(decoder=True).vocab_size)

    @property
    def context(self) -> int:
        """Positions that the model knows; a model that says none takes any number."""
        text = self.configuration.get_text_config(decoder=True)
        return int(getattr(text, "max_position_embeddings", None) or 2**31)


def from_directory(directory: Path, weights_wanted: bool = True) -> Source:
    """A Hugging Face directory. Without ``weights_wanted`` its configuration is enough."""
    from transformers import AutoConfig

    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory with a model")
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json: it is not a Hugging Face model")
    try:
        architecture = json.loads((directory / "config.json").read_text()).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{directory / 'config.json'} is not a configuration: {error}") from error
    try:
        configuration = AutoConfig.from_pretrained(directory)
    except KeyError as error:
        raise ModelError(f"{directory}: transformers does not know the architecture {architecture!r}") from error
    except Exception as error:  # its fields are checked by whatever their class uses
        raise ModelError(_unknown(str(directory), architecture, error)) from error
    _check_causal(directory, configuration)
    weights = _weight_files(directory) if weights_wanted else ()
    for file in weights:
        _elements(file)
    return Source("the model in the box" if directory == BOX else str(directory), configuration, directory, weights)


_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def _check_causal(directory: Path, configuration: Any) -> None:
    """Refuses what was saved as something else than a causal language model, and what no model can be built from."""
    from transformers import AutoModelForCausalLM

    saved = getattr(configuration, "architectures", None) or []
    if saved and not any(name.endswith(_CAUSAL) for name in saved):
        raise ModelError(f"{directory} holds a {saved[0]}, which is no causal language model")
    try:
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(configuration)
    except Exception as error:  # wrong numbers and names fail wherever they are used first
        raise ModelError(_unknown(str(directory), configuration.model_type, error)) from error


def from_preset(name: str, layers: int | None) -> Source:
    configuration = presets.causal_configuration(name, layers)
    return Source(name if layers is None else f"{name}, its first {layers} layers", configuration)


def load(source: Source, dtype: torch.dtype, seed: int) -> Any:
    """The model on the host. Weights of a preset are random."""
    from transformers import AutoModelForCausalLM

    try:
        if source.directory is None:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(source.configuration, dtype=dtype)
        else:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source.directory,
                dtype=dtype,
                output_loading_info=True,
                local_files_only=True,
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


def conjure(source: Source, dtype: torch.dtype) -> Any:
    """The model straight on the card, its weights whatever lies there: for a card that computes no values.

    It is built on the meta device, so that no weight ever takes memory of the host.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(source.configuration, dtype=dtype)
    except ValueError as error:
        raise ModelError(_unknown(source.name, source.configuration.model_type, error)) from error
    _check_card(source.name, sum(p.numel() for p in model.parameters()) * dtype.itemsize)
    return _ready(load_model_to_spyre(model, dtype=dtype))


def check_size(source: Source, on_card: int, on_host: int) -> None:
    """Refuses what would not fit the card or this machine's memory, given the bytes of one weight on either."""
    if source.directory is not None:
        count = sum(_elements(file) for file in source.weights)
    else:
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(source.configuration)
        count = sum(parameter.numel() for parameter in model.parameters())
    _check_card(source.name, count * on_card)
    available = _available_memory()
    if available is not None and count * on_host > available:
        raise ModelError(
            f"{source.name} takes {count * on_host / 1e9:.1f} GB of this machine's memory, of which "
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

    try:
        return AutoTokenizer.from_pretrained(source.directory, local_files_only=True)
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ModelError(f"the tokenizer of {source.name} cannot be read: {_first_line(error)}") from error


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


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


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _weight_files(directory: Path) -> tuple[Path, ...]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        single = directory / "model.safetensors"
        if not single.is_file():
            raise ModelError(f"{directory} has no model.safetensors: its weights are missing")
        return (single,)
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights: {error}") from error
    for name in names:
        if not (directory / name).is_file():
            raise ModelError(f"{directory} has no {name}, where {index.name} says that weights are")
    return tuple(directory / name for name in names)


def _elements(file: Path) -> int:
    """How many numbers a safetensors file holds, by its header; refuses one whose length is not what that says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > size - 8:
            raise ModelError(f"{file} is truncated: its header alone should take {length} bytes of {size}")
        try:
            header = json.loads(opened.read(length))
            tensors = [entry for key, entry in header.items() if key != "__metadata__"]
            end = max((entry["data_offsets"][1] for entry in tensors), default=0)
            count = sum(prod(entry["shape"]) for entry in tensors)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"{file} is not a safetensors file: {_first_line(error)}") from error
    if 8 + length + end != size:
        raise ModelError(f"{file} is truncated: it has {size} bytes and should have {8 + length + end}")
    return count
