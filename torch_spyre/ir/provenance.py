"""The identity of a compiled kernel: a key of its OpSpecs, and the name that profiles and logs know it by."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence

from .op_spec import LoopSpec, OpSpec, to_json

PREFIX = "spyre_kernel_v1_"
KEY_CHARACTERS = 16
_KEY_BYTES = KEY_CHARACTERS * 5 // 8  # base 32 has five bits in a character
MOST_NAME = 128  # bytes of a row's name in a profile, "#" and the number of the step included
_MOST_OPS = MOST_NAME - len(PREFIX) - len("_") - KEY_CHARACTERS - len("#65535")
_NAME = re.compile(rf"{PREFIX}(?P<ops>\w*)_(?P<key>[A-Z2-7]{{{KEY_CHARACTERS}}})(?:#(?P<step>\d{{1,5}}))?")


def key_of(specs: Sequence[OpSpec | LoopSpec]) -> str:
    """The first 80 bits of SHA-256 over the OpSpec tree, in base 32."""
    digest = hashlib.sha256(json.dumps([_tree(spec) for spec in specs]).encode()).digest()
    return base64.b32encode(digest[:_KEY_BYTES]).decode()


def _tree(spec: OpSpec | LoopSpec) -> object:
    if isinstance(spec, LoopSpec):
        return [spec.count, [str(s) for s in spec.tiled_symbols], [_tree(each) for each in spec.body]]
    return to_json(spec)


def flat(specs: Sequence[OpSpec | LoopSpec]) -> Iterable[OpSpec]:
    """The OpSpecs in the order of their SuperDSC files."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from flat(spec.body)
        else:
            yield spec


def execution_order(specs: Sequence[OpSpec | LoopSpec]) -> list[int]:
    """The number of the OpSpec of every step, loops written out."""
    numbers = itertools.count()

    def order(spec: OpSpec | LoopSpec) -> list[int]:
        if isinstance(spec, LoopSpec):
            return [number for each in spec.body for number in order(each)] * spec.count
        return [next(numbers)]

    return [number for spec in specs for number in order(spec)]


def kernel_name(aten: Iterable[str], key: str) -> str:
    """``spyre_kernel_v1_mm_silu_<key>``: the ops of the program that are in it, as many as there is room for."""
    packets = dict.fromkeys(packet for name in aten if (packet := packet_of(name)))
    ops, length = [], 0
    for packet in packets:
        length += len(packet) + 1
        if length > _MOST_OPS + 1:
            break
        ops.append(packet)
    return f"{PREFIX}{'_'.join(ops)}_{key}"


def packet_of(aten: str) -> str:
    """``aten.softmax.int`` is an overload of ``softmax``."""
    parts = aten.split(".")
    return re.sub(r"\W", "_", parts[1] if len(parts) > 1 else parts[0])


def parse_name(name: str) -> tuple[str, int] | None:
    """The key and the step (-1 where there is none) in a row's name; None for other names."""
    found = _NAME.fullmatch(name)
    return (found["key"], int(found["step"] or -1)) if found else None
