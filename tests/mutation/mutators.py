"""Ways to damage an input: by its structure (dictionaries, lists, numbers, texts) and by its bytes."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from typing import Any

INTEGERS = (0, 1, -1, 2, 3, 63, 64, 65, 127, 128, 129, 255, 1024, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**34)
INTEGERS += (2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**31), -(2**62), -(2**63), -(2**63) - 1)
FLOATS = (0.0, -0.0, 0.5, -1.5, 7.5, 1e-45, 65504.0, 1e30, 1e300, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "%0",
    "%1",
    "%65535",
    "%",
    "copy",
    "..",
    "/",
    "\0",
    "é",
    "\ud7ff",
    "x" * 5000,
)
PIECES = ("0", "9", "-", "%", "{", "}", "(", '"', ",", " ", "\n", "é", "1e9")
DEPTH = 3000  # of what is nested: deeper than an interpreter's stack

Path = list[Any]


def mutated(rng: random.Random, seed: Any, others: list[Any]) -> Any:
    """A copy of an input with one to four damages; rarely none, which must be fine."""
    value = [copy.deepcopy(seed)]  # in a list: the root, too, has a place that it is in
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 4))):
        path = _place(rng, value)
        parent, key = _follow(value, path[:-1]), path[-1]
        damage = _damage(rng, parent[key])
        damage(rng, parent, key, rng.choice([value[0], *others[:50]]) if rng.random() < 0.3 else value[0])
        if not value:
            return None
    return value[0]


def _place(rng: random.Random, root: list[Any]) -> Path:
    """Where to: numbers are a part of most structures, and texts are few, so kinds are drawn first."""
    places: dict[type, list[Path]] = {}

    def walk(value: Any, path: Path) -> None:
        places.setdefault(type(value), []).append(path)
        if isinstance(value, dict):
            for key, each in value.items():
                walk(each, [*path, key])
        elif isinstance(value, list):
            for i, each in enumerate(value[:64]):
                walk(each, [*path, i])

    walk(root[0], [0])
    weights = {int: 8, list: 4, dict: 3, str: 2, float: 2, bytes: 1, bool: 1}
    kinds = list(places)
    kind = rng.choices(kinds, [weights.get(kind, 1) for kind in kinds])[0]
    return rng.choice(places[kind])


def _follow(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


Damage = Callable[[random.Random, Any, Any, Any], None]


def _damage(rng: random.Random, value: Any) -> Damage:
    if rng.random() < 0.15:
        return rng.choice((_drop, _other_type, _borrow, _nest, _rename))
    if isinstance(value, bool):
        return _flip
    if isinstance(value, int):
        return _integer
    if isinstance(value, float):
        return _float
    if isinstance(value, str):
        return rng.choice((_text, _text, _edit))
    if isinstance(value, bytes):
        return _edit
    if isinstance(value, list):
        return rng.choice((_drop_one, _repeat_one, _swap, _shuffle, _many))
    if isinstance(value, dict):
        return rng.choice((_drop_one, _swap, _add_key, _rename))
    return _other_type


def _integer(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    """Another number: far off, near, or one that the same input has elsewhere."""
    value = parent[key]
    near = (value + 1, value - 1, value * 2, value // 2, -value, value + 128, value - 128, value * 64, value ^ 1)
    parent[key] = rng.choice((rng.choice(INTEGERS), rng.choice(near), _some(rng, root, int, 1), rng.getrandbits(63)))


def _float(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    parent[key] = rng.choice((*FLOATS, parent[key] * 2, -parent[key], rng.gauss(0, 1)))


def _flip(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    parent[key] = not parent[key]


def _text(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    parent[key] = rng.choice((rng.choice(TEXTS), _some(rng, root, str, "")))


def _edit(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    """Bytes flipped, cut off, inserted, spliced; a text by its characters."""
    value = parent[key]
    if not value:
        parent[key] = b"\0" if isinstance(value, bytes) else "\0"
        return
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at, to = sorted((rng.randrange(len(value) + 1), rng.randrange(len(value) + 1)))
        how = rng.randrange(6)
        if how == 0:
            value = value[:at]
        elif how == 1:
            value = value[:at] + value[to:]
        elif how == 2:
            value = value[:to] + value[at:]
        elif how == 3 and isinstance(value, str):
            value = value[:at] + rng.choice(PIECES) + value[at:]
        elif how == 4 and isinstance(value, str):
            value = _other_digits(rng, value)
        else:
            one = chr(rng.randrange(32, 127)) if isinstance(value, str) else bytes([rng.randrange(256)])
            value = value[:at] + one + value[at + 1 :]
        if not value:
            break
    parent[key] = value


def _other_digits(rng: random.Random, text: str) -> str:
    """One of the numbers in a text by another."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + str(rng.choice((*INTEGERS, int(one[0][:18]) + 1))) + text[one.end() :]


def _drop(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    del parent[key]


def _other_type(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    parent[key] = rng.choice((None, True, 1, -1, 1.5, "x", [], {}, [1], {"x": 1}, [[]], [None], b"x"))


def _borrow(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    """Something from elsewhere."""
    parent[key] = copy.deepcopy(_some(rng, root, rng.choice((dict, list, int, str)), None))


def _nest(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    value = parent[key]
    for _ in range(rng.choice((1, 1, 2, DEPTH))):
        value = [value] if rng.random() < 0.7 else {"x": value}
    parent[key] = value


def _rename(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    if isinstance(parent, dict):
        names = _keys(root)
        value = parent.pop(key)
        parent[rng.choice(("", "x", f"{key}_", *names))] = value
    else:
        _repeat(rng, parent, key)


def _drop_one(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    value = parent[key]
    if value:
        del value[rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))]


def _repeat_one(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    value = parent[key]
    if value:
        _repeat(rng, value, rng.randrange(len(value)))


def _repeat(rng: random.Random, values: list[Any], at: int) -> None:
    values.insert(rng.randrange(len(values) + 1), copy.deepcopy(values[at]))


def _swap(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    value = parent[key]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if len(keys) > 1:
        one, other = rng.sample(keys, 2)
        value[one], value[other] = value[other], value[one]


def _shuffle(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    rng.shuffle(parent[key])


def _many(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    """The same many times over: most lists have a length that something else must agree with."""
    value = parent[key]
    if value and len(value) < 100:
        times = rng.choice((2, 3, 64, 1000, 20000 if not isinstance(value[0], dict | list) else 300))
        parent[key] = [copy.deepcopy(each) for _ in range(times) for each in value][:100_000]


def _add_key(rng: random.Random, parent: Any, key: Any, root: Any) -> None:
    names = _keys(root)
    parent[key][rng.choice(("x", *names))] = copy.deepcopy(_some(rng, root, rng.choice((dict, list, int, str)), 0))


def _some(rng: random.Random, root: Any, kind: type, otherwise: Any) -> Any:
    """A value of a type anywhere in an input, by a random walk."""
    for _ in range(8):
        at = root
        for _ in range(12):
            if isinstance(at, dict) and at and (kind is not dict or rng.random() < 0.6):
                at = at[rng.choice(list(at))]
            elif isinstance(at, list) and at and (kind is not list or rng.random() < 0.6):
                at = rng.choice(at)
            else:
                break
        if type(at) is kind:
            return at
    return otherwise


def _keys(root: Any) -> list[str]:
    """Some names that an input uses."""
    found: dict[str, None] = {}

    def walk(value: Any, depth: int) -> None:
        if len(found) > 100 or depth > 8:
            return
        if isinstance(value, dict):
            found.update(dict.fromkeys(key for key in value if isinstance(key, str)))
            for each in list(value.values())[:20]:
                walk(each, depth + 1)
        elif isinstance(value, list):
            for each in value[:4]:
                walk(each, depth + 1)

    walk(root, 0)
    return list(found)
