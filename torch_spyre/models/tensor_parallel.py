"""A model's part on one of several cards: tensor parallelism by the plan that transformers has for the model.

transformers applies its plans to models that it loads, as DTensors, and refuses a vocabulary that does not divide.
Here a plan is applied to any model, on the meta device too, and what is left of a parameter is an ordinary tensor.
What a plan's styles mean is the same: ``colwise`` cuts a product's outputs, ``rowwise`` its inputs and sums the parts,
``colwise_gather_output`` collects them. Where transformers has no plan for the layers of an architecture, there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

from .errors import ModelError


@dataclass(frozen=True)
class Place:
    """Which of the cards of a group this is."""

    rank: int
    size: int
    group: Any  # of torch.distributed: its name


def place_in_world() -> Place:
    """That of this process among all."""
    world: Any = dist.group.WORLD
    return Place(dist.get_rank(), dist.get_world_size(), world.group_name)


@dataclass(frozen=True)
class Sharding(Place):
    """What was done to a model for this place, so that its weights can be read in parts.

    ``cuts`` has for a parameter that the card does not have as a whole what makes its part of the whole one, which is a
    tensor, or a tensor of a file that is read where it is indexed. ``names`` has for each name of a parameter all that
    it had in the whole model, where tied ones have several.
    """

    cuts: dict[nn.Parameter, Callable[[Any], torch.Tensor]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)


# Which parts of a dimension are cut: (length, whether) of each. The parts of a cut length are those of torch.chunk,
# with zeros behind the last ones: all cards do the same, and none waits for another that has to pad.
Sections = Sequence[tuple[int, bool]]


def _cut(full: Any, dim: int, sections: Sections, place: Place) -> torch.Tensor:
    kept, first = [], 0
    for length, is_cut in sections:
        each = -(-length // place.size) if is_cut else length
        start = min(place.rank * each, length) if is_cut else 0
        kept.append(_padded(_narrowed(full, dim, first + start, min(each, length - start)), dim, each))
        first += length
    return torch.cat(kept, dim) if len(kept) > 1 else kept[0].contiguous()


def _narrowed(full: Any, dim: int, start: int, length: int) -> torch.Tensor:
    """Of a tensor, or of one in a file, which gives no part without elements."""
    first = min(start, start + length - 1)
    part: torch.Tensor = full[(slice(None),) * dim + (slice(first, start + length),)]
    return part if length else part.narrow(dim, 0, 0)


def _padded(x: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    missing = length - x.shape[dim]
    return nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing)) if missing else x


def _keep(module: nn.Module, name: str, dim: int, place: Sharding, sections: Sections | None = None) -> None:
    """Leaves a module this card's part of a parameter, if it has that parameter."""
    full = getattr(module, name, None)
    if full is not None:
        _replace(
            module, name, partial(_cut, dim=dim, sections=sections or [(full.shape[dim], True)], place=place), place
        )


def _replace(module: nn.Module, name: str, cut: Callable[[Any], torch.Tensor], place: Sharding) -> None:
    full = getattr(module, name)
    kept = nn.Parameter(cut(full.detach()), requires_grad=full.requires_grad)
    place.cuts[kept] = cut
    setattr(module, name, kept)


def _sum(x: torch.Tensor, place: Place) -> torch.Tensor:
    return funcol.all_reduce(x, "sum", place.group)


def _cut_outputs(module: Any, name: str, place: Sharding) -> None:
    _check_divides(module.weight.shape[0], name, place)
    for each in ("weight", "bias"):
        _keep(module, each, 0, place)


def _cut_inputs(module: Any, name: str, place: Sharding) -> None:
    _check_divides(module.weight.shape[1], name, place)
    _keep(module, "weight", 1, place)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = _sum(nn.functional.linear(x, module.weight), place)
        return y if module.bias is None else y + module.bias  # once, not by every card

    module.forward = forward


def _cut_and_gather_outputs(module: Any, name: str, place: Sharding) -> None:
    outputs = module.weight.shape[0]
    for each in ("weight", "bias"):
        _keep(module, each, 0, place)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, module.weight, module.bias)
        whole = funcol.all_gather_single(y, y.dim() - 1, place.group)
        return funcol.wait_tensor(whole)[..., :outputs]  # it may be what nobody looks at

    module.forward = forward


def _cut_rows(module: Any, name: str, place: Sharding) -> None:
    """Of a table: what a card has no row of is zero there."""
    first = place.rank * -(-module.weight.shape[0] // place.size)
    _keep(module, "weight", 0, place)
    rows = module.weight.shape[0]

    def forward(ids: torch.Tensor) -> torch.Tensor:
        local = ids - first
        here = (local >= 0) & (local < rows)
        found = nn.functional.embedding(torch.where(here, local, 0), module.weight)
        return _sum(torch.where(here.unsqueeze(-1), found, 0), place)

    module.forward = forward


def _cut_packed_outputs(module: Any, name: str, place: Sharding) -> None:
    """Two products, one behind the other."""
    half = module.weight.shape[0] // 2
    _check_divides(half, name, place)
    for each in ("weight", "bias"):
        _keep(module, each, 0, place, [(half, True), (half, True)])


def _cut_heads_of(module: Any, name: str, place: Sharding) -> None:
    _keep(module, "sinks", 0, place)


def _cut_experts(module: Any, name: str, place: Sharding) -> None:
    """Every card has a part of each expert, and a part of each result."""
    inputs = 1 if module.is_transposed else 2  # of the second product
    hidden = module.down_proj.shape[inputs]
    _check_divides(hidden, name, place)
    packed = [(hidden, True), (hidden, True)] if module.is_concatenated else [(2 * hidden, True)]
    _keep(module, "gate_up_proj", 3 - inputs, place, packed)
    _keep(module, "gate_up_proj_bias", 1, place, packed)
    _keep(module, "down_proj", inputs, place)
    if getattr(module, "down_proj_bias", None) is not None:
        _replace(module, "down_proj_bias", lambda full: full[:] / place.size, place)
    whole = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _sum(whole(*args, **kwargs), place)

    module.forward = forward


def _cut_state_space(module: Any, name: str, place: Sharding) -> None:
    """Heads of a Mamba layer. What all heads of a group share, every card has."""
    heads, inner = module.num_heads, module.intermediate_size
    _check_divides(heads, name, place)
    shared = (2 * module.n_groups * module.ssm_state_size, False)
    for each in ("weight", "bias"):
        _keep(module.in_proj, each, 0, place, [(inner, True), (inner, True), shared, (heads, True)])
        _keep(module.conv1d, each, 0, place, [(inner, True), shared])
    for each in ("dt_bias", "A_log", "D"):
        _keep(module, each, 0, place)
    module.num_heads, module.intermediate_size = heads // place.size, inner // place.size
    module.conv_dim = module.intermediate_size + shared[0]
    module.conv1d.in_channels = module.conv1d.out_channels = module.conv1d.groups = module.conv_dim
    _cut_inputs(module.out_proj, f"{name}.out_proj", place)
    _norm_over_cards(module.norm, inner, place)


def _norm_over_cards(norm: Any, width: int, place: Sharding) -> None:
    """A gated norm over values of which every card has a part."""
    _keep(norm, "weight", 0, place)

    def forward(x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        dtype, x = x.dtype, x.to(torch.float32)
        if gate is not None:
            x = x * nn.functional.silu(gate.to(torch.float32))
        variance = _sum(x.pow(2).sum(-1, keepdim=True), place) / width
        return norm.weight * (x * torch.rsqrt(variance + norm.variance_epsilon)).to(dtype)

    norm.forward = forward


_STYLES: dict[str, Callable[[Any, str, Sharding], None]] = {
    # of transformers
    "colwise": _cut_outputs,
    "rowwise": _cut_inputs,
    "colwise_gather_output": _cut_and_gather_outputs,
    "colwise_rep": _cut_and_gather_outputs,
    "embedding_rowwise": _cut_rows,
    # ours
    "packed outputs": _cut_packed_outputs,
    "heads": _cut_heads_of,
    "experts": _cut_experts,
    "state space": _cut_state_space,
}

_ATTENTION = {
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
}

# Of architectures for whose layers transformers has none.
_PLANS: dict[str, dict[str, str]] = {
    "gpt_oss": _ATTENTION | {"model.layers.*.self_attn": "heads", "model.layers.*.mlp.experts": "experts"},
    "granitemoehybrid": _ATTENTION
    | {
        "model.layers.*.mamba": "state space",
        "model.layers.*.block_sparse_moe.experts": "experts",
        "model.layers.*.shared_mlp.input_linear": "packed outputs",
        "model.layers.*.shared_mlp.output_linear": "rowwise",
    },
}


def plan_of(model: Any) -> Mapping[str, str]:
    """Styles by the names of modules, where numbers are ``*``."""
    return {**_PLANS.get(model.config.model_type, {}), **model.tp_plan}


def shard(model: Any, place: Place) -> Sharding:
    """Leaves a model this card's part, and lets it exchange with the others what it needs of theirs."""
    done = Sharding(place.rank, place.size, place.group, names=_names(model))
    if place.size == 1:
        return done
    plan = plan_of(model)
    _check(model, plan, place)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = table is not None and head is not None and table.weight is head.weight
    for name, module in list(model.named_modules()):
        if style := plan.get(_pattern(name)):
            _STYLES[style](module, name, done)
    if tied and table.weight.shape == head.weight.shape:  # both are cut, or none is
        head.weight = table.weight
    return done


def _names(model: nn.Module) -> dict[str, list[str]]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {name: alike for alike in names.values() for name in alike}


def _check(model: Any, plan: Mapping[str, str], place: Place) -> None:
    kind = model.config.model_type
    patterns = {_pattern(name) for name, _ in model.named_modules()}
    if not any(".layers." in f".{name}" and name in patterns for name in plan):
        raise ModelError(f"there is no plan for parts of a {kind} on several cards")
    if unknown := {style for name, style in plan.items() if name in patterns} - _STYLES.keys():
        raise ModelError(f"the plan for parts of a {kind} has styles that are not known here: {', '.join(unknown)}")
    text = model.config.get_text_config(decoder=True)
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, what, None)
        if heads:
            _check_divides(heads, what, place)


def _check_divides(count: int, name: str, place: Place) -> None:
    if count % place.size:
        raise ModelError(f"the model cannot be divided among {place.size} cards: {name} has {count}, not a multiple")


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
