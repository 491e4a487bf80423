"""The interface through which Dynamo and Inductor ask about the device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from ..constants import DEVICE_NAME
from . import properties, streams
from .properties import SpyreDeviceProperties

__all__ = ["SpyreDeviceProperties", "SpyreInterface"]


class SpyreInterface(DeviceInterface):
    """``torch.spyre`` in the form that Dynamo and Inductor expect."""

    device = torch.spyre.device  # type: ignore[attr-defined]
    Event = streams.Event
    Stream = streams.Stream

    class Worker(DeviceInterface.Worker):
        """Answers for compile workers, which are other processes."""

        @staticmethod
        def set_device(device: int) -> None:
            torch.spyre.set_device(device)  # type: ignore[attr-defined]

        @staticmethod
        def current_device() -> int:
            return torch.spyre.current_device()  # type: ignore[attr-defined]

        @staticmethod
        def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
            return properties.get_device_properties(device)

    current_device = staticmethod(torch.spyre.current_device)  # type: ignore[attr-defined]
    set_device = staticmethod(torch.spyre.set_device)  # type: ignore[attr-defined]
    device_count = staticmethod(torch.spyre.device_count)  # type: ignore[attr-defined]
    is_available = staticmethod(torch.spyre.is_available)  # type: ignore[attr-defined]
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(streams.synchronize)
    get_device_properties = staticmethod(properties.get_device_properties)

    @staticmethod
    def exchange_device(device: int) -> int:
        return torch._C._accelerator_exchangeDevice(device)

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return torch._C._accelerator_maybeExchangeDevice(device)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return streams.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: Any = None) -> int:
        return 0

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype in torch.accelerator.get_device_capability()["supported_dtypes"]

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return torch.spyre.memory_allocated(device)  # type: ignore[attr-defined]


register_interface_for_device(DEVICE_NAME, SpyreInterface)
