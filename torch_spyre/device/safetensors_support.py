"""safetensors files read straight to the card."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from ..constants import DEVICE_NAME
from .layout_arguments import is_fake


def open_to_card(safetensors: ModuleType) -> None:
    """safetensors does not know this device: map the file on the host, and copy each tensor to the card on demand."""
    original = safetensors.safe_open

    def is_card(device: Any) -> bool:
        return isinstance(device, (str, torch.device)) and torch.device(device).type == DEVICE_NAME

    class safe_open:  # noqa: N801 - the name users import
        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
            return object.__new__(cls) if is_card(device) else original(filename, framework, device, **kwargs)

        def __init__(self, filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> None:
            self._file, self._device = original(filename, framework, "cpu", **kwargs), device

        def __enter__(self) -> safe_open:
            self._file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._file.__exit__(*error)

        def keys(self) -> list[str]:
            return self._file.keys()

        def offset_keys(self) -> list[str]:
            return self._file.offset_keys()

        def metadata(self) -> dict[str, str] | None:
            return self._file.metadata()

        def get_tensor(self, name: str) -> torch.Tensor:
            return self._file.get_tensor(name).to(self._device)

        def get_tensors(self) -> dict[str, torch.Tensor]:
            return {name: self.get_tensor(name) for name in self.keys()}

        def get_slice(self, name: str) -> Slice:
            return Slice(self._file.get_slice(name), self._device)

    class Slice:
        def __init__(self, part: Any, device: Any) -> None:
            self._part, self._device = part, device

        def __getattr__(self, name: str) -> Any:
            return getattr(self._part, name)

        def __getitem__(self, index: Any) -> torch.Tensor:
            return self._part[index].to(self._device)

    safetensors.safe_open = safe_open  # type: ignore[attr-defined]


def ignore_padding(safetensors_torch: ModuleType) -> None:
    """safetensors asks whether a tensor covers its storage: padding on the card must not count."""
    original = safetensors_torch.storage_size

    @functools.wraps(original)
    def storage_size(tensor: torch.Tensor) -> int:
        if tensor.device.type != DEVICE_NAME or is_fake(tensor):
            return original(tensor)
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage()).nbytes

    safetensors_torch.storage_size = storage_size  # type: ignore[attr-defined]
