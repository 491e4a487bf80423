"""Every architecture of the installed transformers, and a tiny model of it with inputs that it takes."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import inputs
from .configurations import BY_HAND, variants

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a configuration that would fetch something is not for here

LARGEST = 40_000_000  # parameters
MOST = 2 * 3 * 256 * 256  # numbers of an input
# The class of an architecture that is checked: one that writes if there is one, else the one that is made for most.
_ORDER = (
    "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM", "PRETRAINING", "MASKED_LM", "CTC", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "ZERO_SHOT_OBJECT_DETECTION", "MASK_GENERATION", "AUDIO_CLASSIFICATION",
    "TIME_SERIES_PREDICTION", "SEQUENCE_CLASSIFICATION", "KEYPOINT_DETECTION", "KEYPOINT_MATCHING",
)  # fmt: skip


class NotMade(Exception):
    """No tiny model of an architecture: why."""


@dataclass
class Made:
    """A tiny model on the host, in fp32, and what it is given."""

    name: str
    model: Any
    given: dict[str, Tensor]


def names() -> list[str]:
    """Every architecture that has a model class, by the name of its configuration."""
    return sorted(classes())


def classes() -> dict[str, list[str]]:
    """Model classes of each architecture, the one to check first."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, list[str]] = {}
    mappings = [getattr(auto, f"MODEL_FOR_{name}_MAPPING_NAMES") for name in _ORDER if name != "PRETRAINING"]
    mappings.insert(_ORDER.index("PRETRAINING"), auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES)
    for mapping in (*mappings, auto.MODEL_MAPPING_NAMES):
        for key, value in mapping.items():
            for one in value if isinstance(value, (tuple, list)) else [value]:
                if one not in found.setdefault(key, []):
                    found[key].append(one)
    return found


def make(name: str) -> Made:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    config_class = CONFIG_MAPPING[name]
    problems: list[str] = []
    options = [getattr(transformers, one, None) for one in classes()[name]]
    options = [one for one in options if one is not None]
    try:
        options = sorted(options, key=lambda one: not one.can_generate())[:2]
    except ImportError as problem:  # a class that only says what it would need
        raise NotMade(_line(problem)) from None
    for model_class in options:
        for config in variants(config_class, BY_HAND.get(name, {})):
            if isinstance(config, Exception):
                problems.append(f"configuration: {_line(config)}")
                continue
            try:
                model = _built(model_class, config)
            except Exception as problem:
                problems.append(f"{model_class.__name__}: {_line(problem)}")
                if isinstance(problem, ImportError):
                    raise NotMade(_line(problem)) from None
                continue
            for given in inputs.offers(model):
                if any(x.numel() > MOST for x in given.values()):
                    problems.append(f"{model_class.__name__}: images of {max(x.shape[-1] for x in given.values())}")
                    continue
                try:
                    with torch.no_grad():
                        model(**given)
                    return Made(name, model, given)
                except Exception as problem:
                    problems.append(f"{model_class.__name__}({', '.join(given)}): {_line(problem)}")
    raise NotMade(" | ".join(problems[:1] + problems[-2:]))


def _built(model_class: Any, config: Any) -> Any:
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=torch.float32).eval()
    _stir(model)
    return model


@torch.no_grad()
def _stir(model: nn.Module) -> None:
    """Weights of a size that makes every layer count: an initialisation of 0.02 would hide what attention does."""
    generator = torch.Generator().manual_seed(2)
    for name, value in model.named_parameters():
        if not value.is_floating_point() or not value.numel():
            continue
        deviation, mean = float(value.std(correction=0)), float(value.mean())
        if abs(mean) > 0.2 * deviation and deviation > 0 or abs(mean) > 1e-6 and deviation == 0:
            continue  # a constant with a meaning: scales, decays
        if value.dim() < 2:
            value.normal_(0, 0.1, generator=generator)
        else:
            value.normal_(0, _fan_in(name, value) ** -0.5, generator=generator)


def _fan_in(name: str, value: Tensor) -> float:
    if "embed" in name and value.dim() == 2:
        return 1.0
    return float(value.shape[-1] if value.dim() == 3 else value[0].numel())


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}"[:200]
