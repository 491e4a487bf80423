"""One op of the card against the same op on the host, in float64 from the numbers that the card had.

The error of a result is measured in what the roundings of its op explain: beyond 1, something else is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from .._inductor.fx.decompositions import DECOMPOSITIONS
from . import parts
from .error_bounds import FORMATS, Format, format_of, inside, rounding, smallest
from .values import is_real, on_host

aten = torch.ops.aten

# Two fp8 formats have fewer bits than the theory's table, in which they are what the host computes.
_FP8 = {
    torch.float8_e4m3fn: Format(2**-3, 0.0, 2**-3, 4, 2**-9, 448.0),
    torch.float8_e5m2: Format(2**-2, 0.0, 2**-2, 3, 2**-16, 57344.0),
}

_KNOWN = ("aten", "prims", "spyre")  # namespaces of ops whose roundings are known

# Memory that nothing was written to, and changes of a tensor's shape or memory alone.
NO_VALUES = {
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided),
    *(aten.resize_, aten.set_, aten._local_scalar_dense, aten.equal, aten.is_same_size, aten.record_stream),
    *(aten.lift_fresh, aten.is_pinned, aten._pin_memory, aten._unsafe_view, aten.is_set_to),
}

# Only the first result is compared: PyTorch defines the others, statistics for the backward pass, for each device.
_FIRST_ONLY = {
    *(aten.native_layer_norm, aten.native_batch_norm, aten._native_batch_norm_legit, aten._batch_norm_with_update),
    *(aten._fused_rms_norm, aten._native_batch_norm_legit_no_training, aten._native_batch_norm_legit_functional),
    *(aten._scaled_dot_product_fused_attention_overrideable, aten._scaled_dot_product_flash_attention),
    *(aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_flash_attention_for_cpu, aten._ctc_loss),
}

# Ops that choose or cut numbers, and round nothing.
EXACT = {
    *(aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.adaptive_max_pool2d, aten.adaptive_max_pool3d),
    *(aten.sort, aten.topk, aten.kthvalue, aten.median, aten.nanmedian, aten.mode, aten.cummax, aten.cummin),
    *(aten.floor, aten.ceil, aten.trunc, aten.aminmax, aten.take, aten.index_fill, aten.masked_scatter),
}

# Values and their positions, where equal values may come in any order.
_ORDERED = {aten.sort, aten.topk, aten.kthvalue, aten.median, aten.nanmedian, aten.mode}


@dataclass(frozen=True)
class Judgement:
    """``units`` is the error in what the roundings explain, ``verdict`` one of

    - ``ok``: explained by roundings;
    - ``beyond``: not explained;
    - ``range``: a result, or something on the way to it, is larger than the format can hold;
    - ``unchecked``: nothing to compare with, ``note`` says why.
    """

    verdict: str
    error: float = 0.0
    units: float = 0.0
    note: str = ""

    @property
    def is_finding(self) -> bool:
        return self.verdict in ("beyond", "range")


_RANK = {"unchecked": 0, "ok": 1, "range": 2, "beyond": 3}


def worst(judgements: list[Judgement]) -> Judgement:
    return max(judgements, key=lambda each: (_RANK[each.verdict], each.units))


@dataclass(frozen=True)
class Expected:
    """Results in float64, and how far each may be off; None is not at all."""

    results: list[Any]
    errors: list[Tensor | None]


Call = tuple[tuple[Any, ...], dict[str, Any]]


def written(op: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a call that the op writes into."""
    given = _arguments(op, args, kwargs)
    marked = [given.get(each.name) for each in op._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [leaf for leaf in tree_leaves(marked) if isinstance(leaf, Tensor)]


def _arguments(op: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [each.name for each in op._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def results_of(op: OpOverload, call: Call, returned: Any) -> list[Any]:
    """What a call made: the tensors it wrote into, then those it returned."""
    changed = written(op, *call)
    fresh = [leaf for leaf in tree_leaves(returned) if not any(leaf is each for each in changed)]
    if op.overloadpacket in _FIRST_ONLY:
        fresh = fresh[:1]
    return [*changed, *fresh]


def expect(op: OpOverload, call: Call, like: torch.dtype) -> Expected:
    """What the host computes in float64; ``call`` is in float64, and ``like`` the real dtype of the results."""
    args, kwargs = call
    with _float64():

        def run() -> list[Any]:
            return results_of(op, call, op(*args, **kwargs))

        if op.overloadpacket in EXACT:
            exact = run()
            return Expected(exact, [torch.zeros_like(x) if is_real(x) else None for x in exact])
        results, errors = parts.bounded(run, _format(like))
        if op.namespace == "spyre":
            errors = _errors_inside(op, call, like)
        if op in DECOMPOSITIONS and op.overloadpacket not in parts.TERMS:
            errors = _errors_of_parts(op, call, like) or errors
    if not op._schema.returns:  # its parts are not seen
        errors = [None] * len(errors)
    return Expected(results, errors)


def _errors_of_parts(op: OpOverload, call: Call, like: torch.dtype) -> list[Any]:
    """How far an op may be off that the card's compiler takes apart, and PyTorch does not; the reference stays the op
    itself. Empty where this call is left whole."""
    args, kwargs = map_call(lambda x: x.clone() if isinstance(x, Tensor) else x, call)

    def run() -> list[Any]:
        made = DECOMPOSITIONS[op](*args, **kwargs)
        return [] if made is NotImplemented else results_of(op, call, made)

    return parts.bounded(run, _format(like))[1]


def _errors_inside(op: OpOverload, call: Call, like: torch.dtype) -> list[Any]:
    """How far an op of the card may be off, which is fp32 inside and rounds once at its end."""
    args, kwargs = map_call(lambda x: x.clone() if isinstance(x, Tensor) else x, call)
    meaning = functools.partial(op._op_dk, torch._C.DispatchKey.CPU, *args, **kwargs)
    results, errors = parts.bounded(lambda: results_of(op, call, meaning()), FORMATS[torch.float32])
    unit = _format(like).unit
    return [e + unit * r.abs() if is_real(r) else None for r, e in zip(results, errors, strict=True)]


def expect_in_dtype(op: OpOverload, call: Call) -> Expected:
    """What the host computes in the dtypes of the call, of which the card has a rounded copy."""
    args, kwargs = call
    results = results_of(op, call, op(*args, **kwargs))
    errors = [_once(each) for each in results]
    if op.overloadpacket is aten.normal and errors[0] is not None:  # numbers around 0, scaled, and moved
        mean = args[0] if not isinstance(args[0], Tensor) or is_real(args[0]) else 0.0
        errors[0] = errors[0] + 2 * rounding(results[0] - mean, results[0].dtype)
    return Expected(results, errors)


def expect_dropout(call: Call, wide: Call) -> Expected:
    """The mask that the host draws, applied to what the card holds."""
    mask = aten.native_dropout(*call[0])[1]
    dropped = dropout(wide, mask)
    return Expected([dropped, mask], [2 * FORMATS[call[0][0].dtype].unit * dropped.abs(), None])


def dropout(call: Call, mask: Tensor) -> Tensor:
    """What ``native_dropout`` gives with this mask."""
    x, p = call[0][:2]
    return x * mask * (1 / (1 - p) if p < 1 else 0.0)


def _once(want: Any) -> Tensor | None:
    if not is_real(want):
        return None
    return rounding(want.nan_to_num(0, 0, 0), want.dtype) if want.dtype in FORMATS else torch.zeros_like(want).double()


@contextmanager
def _float64() -> Iterator[None]:
    """Inside, what integers become is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def judge(
    op: OpOverload, call: Call, found: list[Any], dtypes: list[Any], expected: Expected, converts: bool
) -> Judgement:
    """The worst of a call's results.

    ``found`` is what the card holds, ``dtypes`` what its tensors say it is; ``converts`` says that numbers came in with
    another format than that of the results, so that even an op that only moves them rounds.
    """
    pairs = [
        (f, d, w, e)
        for f, d, w, e in zip(found, dtypes, expected.results, expected.errors, strict=False)
        if isinstance(f, Tensor) and isinstance(w, Tensor)
    ]
    if op.overloadpacket in _ORDERED and len(pairs) == 2:
        return _judge_ordered(op, call, *pairs)
    numbers = {leaf for leaf in tree_leaves(call) if isinstance(leaf, float)}
    each = [_judge_one(f, d, w, _entering(w, e, d, numbers), converts) for f, d, w, e in pairs]
    judged = worst(each) if each else Judgement("unchecked", note="it gives no tensor")
    if judged.is_finding and op.namespace not in _KNOWN:
        return Judgement("unchecked", judged.error, 0.0, "how far an op of another library may be off is not known")
    return judged


def _entering(want: Tensor, error: Tensor | None, dtype: torch.dtype, numbers: set[float]) -> Tensor | None:
    """Numbers given in Python round where they become elements."""
    if error is None or not is_real(want) or not numbers:
        return error
    entered = torch.isin(want.double(), torch.tensor(sorted(numbers), dtype=torch.float64))
    return error + entered * _format(dtype).entering * want.double().nan_to_num(0, 0, 0).abs()


def _judge_one(found: Tensor, dtype: torch.dtype, want: Tensor, error: Tensor | None, converts: bool) -> Judgement:
    if tuple(found.shape) != tuple(want.shape):
        return Judgement("beyond", math.inf, math.inf, f"shape {list(found.shape)}, not {list(want.shape)}")
    if not found.numel():
        return Judgement("ok")
    if not is_real(want):
        return _judge_exact(found, want)
    if error is None:
        return Judgement("unchecked", note="how far it may be off is not known")
    format = _format(dtype)
    bound = error.double().expand(want.shape)
    if converts:
        bound = bound + format.unit * want.double().abs()
    finite = want.isfinite()
    bound = torch.where(finite, bound, 0.0) + (smallest(dtype) if dtype in FORMATS else format.smallest)
    got = found.float() if dtype in _FP8 else found
    right = inside(got, want, bound)
    off = (got.double() - want.double()).abs().masked_fill(_same(got, want), 0.0)
    too_large = finite & ((want.abs() > format.largest) | (bound == math.inf))
    if dtype == torch.float32:  # the host would overflow, too
        too_large = torch.zeros_like(finite)
    units = (off / bound).masked_fill(right & (off > bound), 1.0).nan_to_num(math.inf, math.inf)
    worst_error = float(off.nan_to_num(math.inf).amax())
    if not bool((right | too_large).all()):
        beyond = units.masked_fill(right | too_large, 0.0)
        return Judgement("beyond", worst_error, float(beyond.amax()), _place(got, want, bound, beyond))
    overflow = too_large & (~got.isfinite() | (got.double().abs() < want.abs() * 0.99))
    if bool(overflow.any()):
        limit = f"the largest number of {_name(dtype)} on the card is {format.largest:.3g}"
        return Judgement("range", worst_error, math.inf, f"{_element(got, want, overflow)}; {limit}")
    return Judgement("ok", worst_error, float(units.masked_fill(too_large, 0.0).amax()))


def _same(got: Tensor, want: Tensor) -> Tensor:
    return (got.double() == want.double()) | (got.isnan() & want.isnan())


def _judge_exact(found: Tensor, want: Tensor) -> Judgement:
    want = want.to(found.dtype)
    if torch.equal(found, want):
        return Judgement("ok")
    if found.is_complex():
        return Judgement("unchecked", note="complex numbers are not compared")
    off = (found.double() - want.double()).abs()
    wrong = found != want
    return Judgement("beyond", float(off.amax()), math.inf, f"{_element(found, want, wrong)}; {_share(wrong)} differ")


def _judge_ordered(op: OpOverload, call: Call, values: Any, positions: Any) -> Judgement:
    """Positions are right if they are distinct and hold the values."""
    found, dtype, want, error = values
    judged = _judge_one(found, dtype, want, error, False)
    given = _arguments(op, *call)
    index, source = positions[0], given["self"]
    dim = given.get("dim", -1)
    if judged.is_finding or not index.numel() or not source.dim():
        return judged
    held = source.gather(dim, index if index.dim() == source.dim() else index.unsqueeze(dim))
    if not bool(_same(held, found.double().reshape(held.shape)).all()):
        return Judgement("beyond", math.inf, math.inf, "positions that hold other values")
    twice = index.dim() == source.dim() and (index.sort(dim).values.diff(dim=dim) == 0).any()
    return Judgement("beyond", math.inf, math.inf, "a position twice") if twice else judged


def _place(got: Tensor, want: Tensor, bound: Tensor, units: Tensor) -> str:
    at = int(units.argmax())
    g, w, b = (float(x.flatten()[at]) for x in (got, want, bound))
    return f"at {_index(at, got)}: {g:.6g}, not {w:.6g} ± {b:.2g}; {_share(units > 0)} are beyond"


def _element(got: Tensor, want: Tensor, where: Tensor) -> str:
    at = int(where.flatten().int().argmax())
    g, w = (x.flatten()[at].item() for x in (got, want))
    both = f"{g:.6g}, not {w:.6g}" if isinstance(g, float) else f"{g}, not {w}"
    return f"at {_index(at, got)}: {both}"


def _index(at: int, tensor: Tensor) -> list[int]:
    return [int(i) for i in torch.unravel_index(torch.tensor(at), tensor.shape)] if tensor.dim() else []


def _share(wrong: Tensor) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} elements"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _format(dtype: torch.dtype) -> Format:
    return _FP8.get(dtype) or format_of(dtype)


def map_call(change: Callable[[Any], Any], call: Call) -> Call:
    """A call with its leaves changed; a tensor that it has twice stays one."""
    seen: dict[int, Any] = {}

    def once(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return change(value)
        if id(value) not in seen:
            seen[id(value)] = change(value)
        return seen[id(value)]

    args, kwargs = tree_map(once, call)
    return args, kwargs


def host_call(call: Call) -> Call:
    """A call on the host in its own dtypes."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return on_host(value)

    return map_call(moved, call)
