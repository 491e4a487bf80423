"""A tiny configuration of any architecture, from its default one.

Sizes shrink by the names that the package gives them, alike in every architecture, so that their ops have the same
shapes and kernels are shared. Layers stay one of each kind. Where that breaks what an architecture asks of its sizes,
less is changed (``VARIANTS``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WIDTH, HEADS, HEAD, INNER = 64, 4, 16, 128
VOCABULARY = 160
POSITIONS = 128
TOKENS = range(100, VOCABULARY)  # of images, sounds ...: what a prompt does not have by chance


@dataclass(frozen=True)
class Rules:
    """What of a configuration is changed."""

    widths: bool = True
    heads: bool = True
    images: bool = True
    stages: bool = True
    layers: int = 2
    positions: bool = True


VARIANTS = (
    Rules(),
    Rules(images=False),
    Rules(stages=False),
    Rules(images=False, stages=False),
    Rules(images=False, stages=False, positions=False),
    Rules(widths=False, images=False, stages=False, heads=False, positions=False),
    Rules(widths=False, images=False, stages=False, heads=False, positions=False, layers=100),
)

_SIZES = yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text())
_NAMES = {role: frozenset(names.split()) for role, names in _SIZES.items() if isinstance(names, str)}
_LAYERS = _SIZES["layers"].split()  # in order: the first that a configuration has counts its layers
_HEADS = _SIZES["heads"].split()
_SMALL = _SIZES["small"]
BY_HAND = _SIZES["by_hand"]
_STAGES = re.compile(r"(hidden_sizes|embed_dims?|dims|channels|conv_dim|tdnn_dim|embed_dim_per_stage)$")
_DEPTHS = re.compile(r"(depths?|stage_num_blocks|num_block_repeats|blocks_per_stage|layers_per_stage|block_sizes)$")
_TOKEN = re.compile(r"_token_(id|index|ids)$")


def tiny(config_class: Any, rules: Rules, changes: dict[str, Any]) -> Any:
    """With ``changes`` by hand on top: ``{"text_config.num_hidden_layers": 3}``."""
    given = config_class().to_dict()
    fresh = iter(TOKENS)
    given = _shrunk(given, rules, fresh)
    for path, value in changes.items():
        *way, name = path.split(".")
        target = given
        for part in way:
            target = target.setdefault(part, {})
        target[name] = value
    config = config_class(**{name: value for name, value in given.items() if name not in _DROPPED})
    return config


_DROPPED = ("transformers_version", "architectures", "dtype", "_attn_implementation", "auto_map", "stage_names")
_DROPPED += ("out_features", "_out_features")  # they follow from out_indices


def _shrunk(given: dict[str, Any], rules: Rules, fresh: Any) -> dict[str, Any]:
    found = {name: value for name, value in given.items() if name not in _DROPPED}
    kept = _kept_layers(given, rules)
    count_before = _count(given)
    for name, value in list(found.items()):
        if name == "per_layer_config" and isinstance(value, dict):
            found[name] = {kept.index(int(i)): one for i, one in value.items() if int(i) in kept}
        elif isinstance(value, dict):
            if name not in ("id2label", "label2id"):
                found[name] = _shrunk(value, rules, fresh)
        elif value is None and rules.widths and name in ("head_dim", "num_key_value_heads"):
            found[name] = HEAD if name == "head_dim" else HEADS
        elif isinstance(value, bool) or value is None:
            pass
        elif isinstance(value, int):
            found[name] = _number(name, value, rules, len(kept), fresh, given)
        elif isinstance(value, list) and value:
            found[name] = _list(name, value, rules, kept, count_before, given)
    return found


def _count(given: dict[str, Any]) -> int:
    return next((given[name] for name in _LAYERS if isinstance(given.get(name), int)), 0)


def _kept_layers(given: dict[str, Any], rules: Rules) -> list[int]:
    """One layer of each kind, and at least ``rules.layers``: of a list that names kinds, or of all."""
    count = _count(given)
    kinds = [value for value in given.values() if isinstance(value, list) and count > 1 and len(value) == count]
    if not kinds:
        stages = given.get("out_indices") if len(given.get("stage_names") or ()) == count + 1 else None
        return list(range(min(count, max(rules.layers, len(stages or ())))))
    rows = list(zip(*[[str(one) for one in kind] for kind in kinds], strict=True))
    first: dict[Any, int] = {}
    for i, row in enumerate(rows):
        first.setdefault(row, i)
    kept = sorted(first.values())[: max(4, rules.layers)]
    for i in range(count):
        if len(kept) >= min(rules.layers, count):
            break
        if i not in kept:
            kept.append(i)
    return sorted(kept)


def _number(name: str, value: int, rules: Rules, layers: int, fresh: Any, given: dict[str, Any]) -> int:
    if _TOKEN.search(name):
        usual = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
        return value if value < 0 else usual.get(name, value if value < 4 else next(fresh))
    if name == "vocab_size" or name.endswith("_vocab_size") or name == "num_embeddings":
        return min(value, VOCABULARY)
    if name in _LAYERS:
        return min(value, layers or rules.layers)
    if name in _NAMES["experts"]:
        return min(value, 4)
    if name in _NAMES["positions"]:
        return min(value, POSITIONS) if rules.positions else value
    if name in _HEADS and rules.heads:
        return min(value, HEADS)
    if name in _NAMES["key_heads"] and rules.heads:
        heads = next((given[n] for n in _HEADS if isinstance(given.get(n), int)), value)
        return min(value, HEADS if value == heads else 2)
    if rules.widths:
        if name in _NAMES["widths"] and value > 8:
            return min(value, WIDTH)
        if name in _NAMES["inners"]:
            return min(value, INNER)
        if name in _NAMES["head_dims"]:
            return min(value, HEAD)
        if name in _NAMES["ranks"]:
            return min(value, 16)
        if name in _SMALL and not (name.startswith("window") and value <= 16):
            return min(value, _SMALL[name])
    if rules.images and name == "image_size" or name == "pretrain_image_size":
        return _image_side(value, given)
    return value


def _image_side(value: int, given: dict[str, Any]) -> int:
    patch = given.get("patch_size", 16)
    patch = patch if isinstance(patch, int) else patch[-1]
    return min(value, max(4 * patch, 32))


def _list(name: str, value: list[Any], rules: Rules, kept: list[int], count: int, given: dict[str, Any]) -> list[Any]:
    if _TOKEN.search(name):
        return [2 for _ in value]
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if name == "image_size" and rules.images:
        return [_image_side(one, given) for one in value]
    if numbers and rules.stages and _DEPTHS.search(name):
        return [min(one, 1) for one in value]
    if numbers and rules.stages and rules.widths and _STAGES.search(name):
        return [one // 4 if one % 16 == 0 and one >= 32 else one for one in value]
    if name == "out_indices" and len(given.get("stage_names") or ()) == count + 1:
        return list(range(len(kept) - len(value) + 1, len(kept) + 1))
    if name == "mrope_section" and rules.widths and numbers and sum(value) > 8:
        return [4, 2, 2] if len(value) == 3 else [2, 2, 2, 2]
    if count > 1 and len(value) == count and name != "out_indices":
        return [value[i] for i in kept]
    if numbers and (name.endswith("indexes") or name.endswith("indices")) and kept:
        return [one for one in value if one in range(-len(kept), len(kept))] or [len(kept) - 1]
    return value


def variants(config_class: Any, changes: dict[str, Any]) -> Any:
    for rules in VARIANTS:
        try:
            yield tiny(config_class, rules, changes)
        except Exception as problem:  # sizes that do not go together: the next variant changes less
            yield problem
