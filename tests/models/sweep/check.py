"""One architecture on the card against the host: a forward, and ``generate`` where it has one, in fp32 and in fp16.

What is right is what the host computes in fp64. In fp32 the card may be off by as much as the host's own fp32 is, a few
times over. In fp16 it may be off by what bfloat16 is on the host: the card's format has two bits more.
"""

from __future__ import annotations

import copy
import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from .architectures import Made
from .choices import Noted, Replayed

NEW = 6  # tokens
UNIT = {torch.float32: 2.0**-23, torch.float16: 2.0**-10}  # the most that one rounding moves a number, relative to it
ROUNDINGS = 32  # one after the other, at the least: a model whose host is exact by chance may round as well
FACTOR = {torch.float32: 16, torch.float16: 1}
HOST = {torch.float32: torch.float32, torch.float16: torch.bfloat16}  # the dtype whose error is the card's measure
TIE = 8  # times the error: two values that may have changed places, each off by 4 standard deviations
BITS_MORE = 2.0**-16  # of fp32 than of bfloat16
DTYPES = (torch.float32, torch.float16)


def check(made: Made) -> dict[str, Any]:
    """In which a model that the host refuses to run in a dtype, the card may refuse as well."""
    torch.spyre.fallback("count")
    found: dict[str, Any] = {"class": type(made.model).__name__, "inputs": sorted(made.given)}
    reference = _Reference(made)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        torch.spyre.reset_fallback_counts()
        card = copy.deepcopy(made.model).to("spyre", dtype)
        for what, call, refuses in (
            ("forward", _forward, lambda dtype: reference.run(dtype) is None),
            ("generate", _generate, lambda dtype: reference.written(dtype, {}) is None),
        ):
            if what == "forward" or reference.generates:
                result = _outcome(partial(call, reference, card, dtype), partial(refuses, dtype))
                found[f"{what} {name}"] = result or {"right": True, "refused": True}
        found[f"fallback {name}"] = sorted(torch.spyre.fallback_counts())
    return found


def _outcome(call: Any, refused: Any) -> dict[str, Any] | None:
    try:
        return call()
    except Exception as problem:
        if refused():
            return None
        return {"right": False, "raised": f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"}


class _Reference:
    """What the host says, asked once."""

    def __init__(self, made: Made) -> None:
        self.model, self.given = made.model, made.given
        exact = self.run(torch.float64)
        self.is_exact = exact is not None
        self.dtype = torch.float64 if self.is_exact else torch.float32
        self.batch = len(self.given.get("input_ids", next(iter(self.given.values()))))
        self.exact = exact or self.run(torch.float32)
        assert self.exact is not None
        self.errors = {dtype: self._error(dtype) for dtype in DTYPES}
        self.tokens: Tensor | None = None
        self.generates = self.model.can_generate() and self._write()

    @torch.no_grad()
    def run(self, dtype: torch.dtype) -> dict[str, Tensor] | None:
        try:
            return leaves(_deterministic(_host(self.model, dtype), _as(self.given, dtype)))
        except Exception:
            return None

    def _error(self, dtype: torch.dtype) -> dict[str, float]:
        """How far the host is off. Where it has no fp64 to compare with, fp32 is as much better as it has more bits."""
        scale = 1.0 if self.is_exact or dtype != torch.float32 else BITS_MORE
        found = self.run(HOST[dtype] if scale == 1.0 else torch.bfloat16)
        return {} if found is None else {n: scale * error(found.get(n), want) for n, want in self.exact.items()}

    def bounds(self, dtype: torch.dtype) -> list[float]:
        return [allowed(self.errors[dtype].get(name, 0.0), dtype) for name in self.exact]

    def written(self, dtype: torch.dtype, more: dict[str, Any], choices: Any = nullcontext) -> Any:
        try:
            with choices():
                return _write(_host(self.model, dtype), _as(self.given, dtype), more)
        except Exception:
            return None

    def _write(self) -> bool:
        try:
            self.tokens = _write(self.model, _as(self.given, torch.float32), {}).sequences
            return True
        except Exception as problem:
            logging.getLogger(__name__).info("no generate: %s", problem)
            return False


def _host(model: Any, dtype: torch.dtype) -> Any:
    model = copy.deepcopy(model).to(dtype)
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the default has no fp64
    return model


def _deterministic(model: Any, given: dict[str, Tensor]) -> Any:
    torch.manual_seed(7)
    return model(**given)


def _as(given: dict[str, Tensor], dtype: torch.dtype, device: str = "cpu") -> dict[str, Tensor]:
    """Copies: some models write into what they are given."""
    return {name: x.to(device, dtype if x.is_floating_point() else None, copy=True) for name, x in given.items()}


def leaves(output: Any) -> dict[str, Tensor]:
    """Tensors of numbers that a model returns, by where they are; a cache is none of the results."""
    if isinstance(output, dict):
        output = {name: x for name, x in output.items() if name not in ("past_key_values", "cache_params", "loss")}
    found, _ = tree_flatten_with_path(output)
    return {
        keystr(path): x.cpu().double()
        for path, x in found
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
    }


def error(found: Tensor | None, want: Tensor) -> float:
    """The norm of the difference as a share of the norm of what is wanted. What is not finite has to be the same."""
    if found is None or found.shape != want.shape:
        return float("inf")
    finite = want.isfinite()
    if not torch.equal(finite, found.isfinite()):
        # The lowest number of a dtype, and minus infinity, mean the same in a mask.
        finite &= (want.abs() < 1e30) & (found.abs() < 1e30)
    want, found = want[finite], found[finite]
    small = want.abs() < 1e30
    want, found = want[small], found[small]
    norm = float(want.norm())
    difference = float((found - want).norm())
    return difference / norm if norm else difference


def allowed(host: float, dtype: torch.dtype) -> float:
    return max(FACTOR[dtype] * host if host == host and host != float("inf") else 0.0, UNIT[dtype] * ROUNDINGS**0.5)


@torch.no_grad()
def _forward(reference: _Reference, card: Any, dtype: torch.dtype) -> dict[str, Any]:
    with Noted() as noted:
        found = leaves(_deterministic(card, _as(reference.given, dtype, "spyre")))
    worst: dict[str, Any] = {"right": True, "error": 0.0, "allowed": allowed(0.0, dtype)}
    exact = reference.exact
    if noted.indices:
        with Replayed(noted, TIE * max(reference.bounds(dtype)), reference.batch):
            exact = reference.run(reference.dtype) or exact
    for name, want in exact.items():
        off, bound = error(found.get(name), want), allowed(reference.errors[dtype].get(name, 0.0), dtype)
        if not off / bound <= worst["error"] / worst["allowed"]:
            worst = {"right": bool(off <= bound), "error": off, "allowed": bound, "where": name}
    return worst


# ---- generate


class _Forced:
    """Takes the given tokens, whatever the logits say: one step's difference is not the next one's."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        at = ids.shape[1]
        wanted = self.tokens.to(ids.device)[:, at]
        return torch.full_like(scores, -1e4).scatter_(1, wanted[:, None], 0.0)


def _write(model: Any, given: dict[str, Tensor], more: dict[str, Any]) -> Any:
    given = {name: x for name, x in given.items() if name != "decoder_input_ids"}
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    torch.manual_seed(7)
    with torch.no_grad():
        return model.generate(**given, **options, **more)


def _generate(reference: _Reference, card: Any, dtype: torch.dtype) -> dict[str, Any]:
    tokens = reference.tokens
    forced = {"logits_processor": [_Forced(tokens)]}
    given = _as(reference.given, dtype, "spyre")
    got = _write(card, given, forced)  # and the cache is chosen, for which the model is asked more than below
    with Noted() as noted:
        got = _write(card, given, forced)
    choices = partial(Replayed, noted, TIE * max(reference.bounds(dtype)), reference.batch)
    want = reference.written(torch.float64, forced, choices)
    scale = 1.0 if want is not None or dtype != torch.float32 else BITS_MORE
    want = want or reference.written(torch.float32, forced, choices)
    measure = reference.written(HOST[dtype] if scale == 1.0 else torch.bfloat16, forced)
    if not torch.equal(got.sequences.cpu(), tokens):
        return {"right": False, "raised": "it did not take the tokens that it was given"}
    rows, exact = (torch.stack([x.cpu().double() for x in way.logits]) for way in (got, want))
    other = 0.0 if measure is None else scale * error(torch.stack([x.double() for x in measure.logits]), exact)
    off, bound = error(rows, exact), allowed(other, dtype)
    picked, best = rows.argmax(-1), exact.argmax(-1)
    gap = exact.amax(-1) - exact.gather(-1, picked[..., None])[..., 0]
    tie = TIE * bound * exact.square().mean(-1).sqrt()
    apart = int(((picked != best) & (gap > tie)).sum())
    cache = getattr(got, "past_key_values", None)
    return {
        "right": bool(off <= bound) and not apart,
        "error": off,
        "allowed": bound,
        "equal": int((picked == best).sum()),
        "of": best.numel(),
        "apart": apart,
        "cache": type(getattr(cache, "self_attention_cache", cache)).__name__,
    }
