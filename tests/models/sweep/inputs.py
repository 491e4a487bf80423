"""What a model of any architecture is given: by the names of its forward's arguments and the sizes of its parts.

Several sets are offered, the richest first: the first one that the model takes on the host is the one it is checked
with.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

LENGTH = 9
FIRST_TOKEN, LAST_TOKEN = 4, 100  # neither special nor an image's

_OPTIONAL = ("image_sizes", "pixel_attention_mask")


def offers(model: Any) -> Iterator[dict[str, Tensor]]:
    """The sets of inputs that may fit a model."""
    maker = _Maker(model)
    text = maker.text()
    seen: list[Any] = []
    everything = maker.all_modalities()
    images = {name: x for name, x in everything.items() if name not in _OPTIONAL}
    several = {name: x[None] if name == "pixel_values" else x for name, x in images.items()}  # of one prompt
    for extra in (everything, images, several, maker.main_modality(), {}):
        for base in ({**text}, {}):
            given = {**base, **extra}
            shapes = sorted((name, x.shape) for name, x in given.items())
            if not given or shapes in seen:
                continue
            seen.append(shapes)
            yield from maker.completed(given)


class _Maker:
    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.generator = torch.Generator().manual_seed(1)
        self.names = list(inspect.signature(model.forward).parameters)
        self.main = model.main_input_name

    def has(self, name: str) -> bool:
        return name in self.names

    def numbers(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator)

    def tokens(self, *size: int, vocabulary: int | None = None) -> Tensor:
        last = min(vocabulary or self.vocabulary, LAST_TOKEN)
        return torch.randint(min(FIRST_TOKEN, last - 1), last, size, generator=self.generator)

    def value(self, *names: str, default: Any = None) -> Any:
        """Of the configuration, or of the part of it that has it."""
        for config in self.configs():
            for name in names:
                found = getattr(config, name, None)
                if found is not None:
                    return found
        return default

    def configs(self) -> list[Any]:
        found, waiting = [], [self.config]
        while waiting:
            config = waiting.pop(0)
            found.append(config)
            for name in (*getattr(config, "sub_configs", {}), "encoder", "decoder", "backbone_config"):
                part = getattr(config, name, None)
                if part is not None and hasattr(part, "to_dict") and part not in found:
                    waiting.append(part)
        return found

    def part(self, *words: str) -> Any:
        """The configuration of a modality, or the whole."""
        for config in self.configs():
            if any(word in type(config).__name__.lower() for word in words):
                return config
        return self.config

    @property
    def vocabulary(self) -> int:
        return int(self.value("vocab_size", default=100))

    # ---- text

    def text(self) -> dict[str, Tensor]:
        found = {}
        if self.has("input_ids"):
            found["input_ids"] = self.tokens(2, LENGTH)
        if self.has("decoder_input_ids"):
            decoder = getattr(self.config, "decoder", None)
            found["decoder_input_ids"] = self.tokens(2, LENGTH - 2, vocabulary=getattr(decoder, "vocab_size", None))
        if self.has("bbox"):
            box = torch.randint(0, 50, (2, LENGTH, 4), generator=self.generator)
            found["bbox"] = torch.cat([box[..., :2], box[..., :2] + box[..., 2:]], -1)
        return found

    # ---- images, videos, sounds, numbers

    def all_modalities(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in self.names:
            found |= self.modality(name)
        return found

    def main_modality(self) -> dict[str, Tensor]:
        return self.modality(self.main)

    def modality(self, name: str) -> dict[str, Tensor]:
        maker = {
            "pixel_values": self.image,
            "pixel_values_videos": self.video,
            "input_features": self.features,
            "input_values": self.wave,
            "audio_values": self.wave,
            "past_values": self.series,
            "flattened_patches": self.patches,
            "inputs": self.bytes,
            "inputs_embeds": lambda name: {},
        }.get(name)
        return maker(name) if maker and self.has(name) else {}

    def image(self, name: str) -> dict[str, Tensor]:
        vision = self.part("vision", "vit", "image", "visual")
        channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
        channels = channels if isinstance(channels, int) else 3
        if self.has("image_grid_thw") or self.has("spatial_shapes") and not hasattr(vision, "image_size"):
            return self.grid(vision)
        height, width = self.sides(vision)
        found = {name: self.numbers(2, channels, height, width)}
        if self.has("image_sizes"):
            found["image_sizes"] = torch.tensor([[height, width]] * 2)
        if self.has("pixel_attention_mask"):
            found["pixel_attention_mask"] = torch.ones(2, height, width, dtype=torch.int64)
        return found

    def sides(self, vision: Any) -> tuple[int, int]:
        side = getattr(vision, "image_size", None) or self.value("image_size", "img_size", "input_size", default=64)
        if isinstance(side, (list, tuple)):
            return int(side[0]), int(side[-1])
        return int(side), int(side)

    def grid(self, vision: Any) -> dict[str, Tensor]:
        """Patches of images in a row, with the numbers of them in each direction."""
        patch, merge = getattr(vision, "patch_size", 14), getattr(vision, "spatial_merge_size", 2)
        channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", None) or 3
        side = 2 * (merge if isinstance(merge, int) else merge[0])
        size = channels * getattr(vision, "temporal_patch_size", 1) * patch * patch
        return {
            "pixel_values": self.numbers(2 * side * side, size),
            "image_grid_thw": torch.tensor([[1, side, side]] * 2),
        }

    def video(self, name: str) -> dict[str, Tensor]:
        if self.has("video_grid_thw") or self.has("pixel_values"):
            return {}
        vision = self.part("vision", "video")
        frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", None) or 4
        height, width = self.sides(vision)
        return {name: self.numbers(1, frames, getattr(vision, "num_channels", 3), height, width)}

    def features(self, name: str) -> dict[str, Tensor]:
        audio = self.part("audio", "speech", "encoder", "sound")
        bins = next(
            (
                found
                for part in (audio, self.config)
                for n in ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim",
                          "num_mel_filters", "n_mels", "input_feat_size", "feature_size", "mel_bins")
                if isinstance(found := getattr(part, n, None), int)
            ),
            80,
        )  # fmt: skip
        source = getattr(audio, "max_source_positions", None)
        frames = 2 * source if isinstance(source, int) and source <= 200 else 64
        found = {name: self.numbers(1, frames, bins)}
        for mask in ("feature_attention_mask", "input_features_mask"):
            if self.has(mask):
                found[mask] = torch.ones(1, frames, dtype=torch.int64)
        return found

    def wave(self, name: str) -> dict[str, Tensor]:
        if self.has("pixel_values"):
            return {}
        return {name: self.numbers(1, int(self.value("audio_samples", default=4000)))}

    def series(self, name: str) -> dict[str, Tensor]:
        length = int(self.value("context_length", default=32)) + max(self.value("lags_sequence", default=[0]))
        found = {name: self.numbers(2, length)}
        channels = self.value("num_input_channels", "input_size", default=1)
        if channels != 1:
            found[name] = self.numbers(2, length, channels)
        if self.has("past_time_features"):
            times = self.value("num_time_features", default=1)
            future = int(self.value("prediction_length", default=4) or 4)
            found["past_time_features"] = self.numbers(2, length, times)
            found["past_observed_mask"] = torch.ones(found[name].shape)
            found["future_values"] = self.numbers(2, future, *found[name].shape[2:])
            found["future_time_features"] = self.numbers(2, future, times)
            found["static_categorical_features"] = torch.zeros(2, 1, dtype=torch.int64)
        return found

    def patches(self, name: str) -> dict[str, Tensor]:
        size = self.value("patch_embed_hidden_size", default=768)
        rows = torch.arange(2 * 9).reshape(2, 9, 1) % 9
        position = torch.cat([1 + rows // 3, 1 + rows % 3], -1).float()
        return {name: torch.cat([position, self.numbers(2, 9, int(self.value("hidden_size", default=size)))], -1)}

    def bytes(self, name: str) -> dict[str, Tensor]:
        return {name: self.tokens(2, LENGTH)}

    # ---- what follows from the rest

    def completed(self, given: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Images in a prompt have places in it, as many as they make rows."""
        ids = given.get("input_ids")
        image = next((n for n in ("pixel_values", "input_features", "input_values") if n in given), None)
        if ids is not None and image is not None:
            for token, rows in self.places(given, image):
                batch = given[image].shape[0] if "image_grid_thw" not in given else 2
                ids = self.tokens(batch, LENGTH)
                prompt = torch.cat([ids[:, :2], torch.full((batch, rows), token), ids[:, 2:]], 1)
                yield {**given, "input_ids": prompt, **self.types(prompt, token)}
        yield given
        first = {name: x[:1] for name, x in given.items()}
        if any(len(x) != 1 for x in given.values()):
            yield first
        if "input_features" in given:  # bins, frames
            yield {**first, "input_features": first["input_features"].mT.contiguous()}

    def places(self, given: dict[str, Tensor], image: str) -> Iterator[tuple[int, int]]:
        names = (
            "image_token_id",
            "image_token_index",
            "audio_token_id",
            "audio_token_index",
            "media_placeholder_token_id",
        )
        token = self.value(*names)
        if token is None or token < 0:
            return
        for method in ("get_image_features", "get_audio_features", "get_speech_features"):
            owner = next((m for m in (self.model, getattr(self.model, "model", None)) if hasattr(m, method)), None)
            if owner is None:
                continue
            extra = {n: x for n, x in given.items() if n not in ("input_ids", "decoder_input_ids")}
            accepted = inspect.signature(getattr(owner, method)).parameters
            try:
                with torch.no_grad():
                    found = getattr(owner, method)(**{n: x for n, x in extra.items() if n in accepted})
            except Exception:
                continue
            found = getattr(found, "pooler_output", found)
            found = getattr(found, "last_hidden_state", found)
            parts = list(found) if isinstance(found, (tuple, list)) else [found]
            parts = [x for x in parts if isinstance(x, Tensor)]
            if not parts:
                continue
            rows = sum(math.prod(x.shape[:-1]) for x in parts)
            batch = 2 if "image_grid_thw" in given else given[image].shape[0]
            yield token, rows // batch

    def types(self, prompt: Tensor, token: int) -> dict[str, Tensor]:
        """Which tokens are an image's, where a model asks."""
        names = [name for name in ("mm_token_type_ids", "token_type_ids") if self.has(name)]
        return {name: (prompt == token).long() for name in names}
