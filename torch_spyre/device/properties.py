"""Properties of a card: its size, its mode, its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _C
from ..card import description


@dataclass(frozen=True)
class SpyreDeviceProperties:
    """Facts about one card, as :func:`get_device_properties` gives them."""

    name: str
    index: int
    physical_index: int
    total_memory: int
    multi_processor_count: int
    lx_bytes: int
    stick_bytes: int
    mode: str
    flex_device: str
    simd: str
    type: str = "spyre"
    major: int = 1
    minor: int = 0


def get_device_properties(device: Any = None) -> SpyreDeviceProperties:
    """Facts about a card. Starts the runtime."""
    from . import _index_of

    index = _index_of(device)
    constants = description.constants()
    return SpyreDeviceProperties(
        name=get_device_name(index),
        index=index,
        physical_index=_C.physical_index(index),
        total_memory=_C.card_memory(index),
        multi_processor_count=_C.card_cores(index),
        lx_bytes=int(constants["lx_bytes"]),
        stick_bytes=int(constants["stick_bytes"]),
        mode=_C.card_mode(),
        flex_device=_C.flex_device(),
        simd=_C.simd_level(),
    )


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Major and minor number of a card's kind, as :func:`get_device_properties` gives them."""
    from . import _index_of

    _index_of(device)
    return SpyreDeviceProperties.major, SpyreDeviceProperties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors can be used: in the card's own 16-bit format, so not if emulation does not count."""
    return including_emulation


def is_tf32_supported() -> bool:
    """Whether products may round fp32 numbers to tf32: they never do."""
    return False


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether two cards copy to each other without the host; all do."""
    from . import _index_of

    return _index_of(device) != _index_of(peer_device)


def get_device_name(device: Any = None) -> str:
    """Name of a card."""
    from . import _index_of

    _index_of(device)
    return "Spyre software card"
