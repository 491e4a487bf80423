"""How far results of a model may lie from fp32's because the card's numbers have 9 fraction bits: by simulation.

The card rounds weights and inputs into its format and each op's result once, to the nearest: an error that is spread
evenly over half a unit in the last place to either side, for every value of every op, independent of the others. Here
the host computes the model in fp16, whose own roundings are finer, with the card's weights and with
such an error added to what each op computes. Fp32 inside norms stays fp32, as on the card; ops that only move or choose
values round nothing.

The errors of results over many such runs are their distribution on the card. The last rounding is known: half a unit of
the result. The rest is a sum of very many small parts, thus close to normal: a value in 10^9 lies six standard
deviations out, and the root mean square over some thousand results is known to a few percent, so a quarter more is
beyond it as well. A layer that computes something else misses both by far: its error is a part of the results, and
format error is a hundredth of that.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FRACTION_BITS = 9

# Ops whose results are values that were there before.
_EXACT = {
    "_unsafe_view", "abs", "alias", "amax", "arange", "as_strided", "bitwise_not", "cat", "clone", "constant_pad_nd",
    "copy", "copy_", "detach", "embedding", "empty", "empty_like", "expand", "fill_", "flip", "full", "full_like",
    "gather", "index", "index_copy_", "index_put_", "index_select", "lift_fresh", "masked_fill", "masked_fill_",
    "max", "neg", "new_empty", "new_zeros", "ones", "permute", "relu", "repeat", "repeat_interleave", "roll",
    "scatter", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "tile", "topk", "transpose",
    "tril", "unbind", "unfold", "unsqueeze", "view", "where", "zero_", "zeros", "zeros_like",
}  # fmt: skip


def _unit(x: torch.Tensor) -> torch.Tensor:
    """The distance of neighbouring numbers of the format at the magnitude of ``x``."""
    return torch.exp2(torch.frexp(x.float()).exponent.float() - 1 - FRACTION_BITS)


def rounded(x: torch.Tensor) -> torch.Tensor:
    unit = _unit(x)
    return ((x.float() / unit).round() * unit).to(x.dtype)


class _Roundings(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EXACT:
            return found
        if isinstance(found, torch.Tensor) and found.dtype == torch.float16 and found.device.type == "cpu":
            error = (torch.rand(found.shape) - 0.5) * _unit(found)
            found.copy_(found.float() + error)
        return found


@dataclasses.dataclass
class Allowed:
    """What results are in fp32, and per row of them the root mean square of the card's errors."""

    expected: torch.Tensor
    deviation: torch.Tensor

    @property
    def largest(self) -> torch.Tensor:
        return 6 * self.deviation[..., None] + _unit(self.expected) / 2

    def check(self, found: torch.Tensor) -> None:
        error = (found.float() - self.expected).abs()
        assert bool(torch.isfinite(error).all())
        assert bool((error <= self.largest).all()), float((error / self.largest).max())
        assert float(error.square().mean().sqrt()) <= 1.25 * float(self.deviation.square().mean().sqrt())

    def check_choice(self, chosen: torch.Tensor) -> None:
        """The chosen of each row is the largest, or may be, given the errors of both."""
        best, chosen = self.expected.argmax(-1, keepdim=True), chosen[..., None]
        gap = self.expected.gather(-1, best) - self.expected.gather(-1, chosen)
        error = self.largest.gather(-1, best) + self.largest.gather(-1, chosen)
        assert bool(((gap <= error) | (best == chosen)).all())


def check_tokens(model: Any, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Greedy tokens of the card: the host's, or another way taken where its first choices tie within format error."""
    different = (found != expected).any(0).nonzero()
    if len(different) == 0:
        return
    before = expected[:, : int(different[0])]
    rows = (found[:, before.shape[1]] != expected[:, before.shape[1]]).nonzero().flatten()
    allowed = derive(model, lambda model: model(before[rows]).logits[:, -1])
    allowed.check_choice(found[rows, before.shape[1]])


def derive(model: Any, run: Callable[[Any], torch.Tensor], trials: int = 6) -> Allowed:
    """The error of ``run(model)`` on the card, against the host in fp32; rows are along the last dimension."""
    with torch.no_grad():
        expected = run(model)
        card = copy.deepcopy(model).half()
        card.set_attn_implementation("eager")  # attention as the ops it is made of
        for tensor in (*card.parameters(), *card.buffers()):
            if tensor.dtype == torch.float16:
                tensor.copy_(rounded(tensor))
        errors = []
        for seed in range(trials):
            torch.manual_seed(seed)
            with _Roundings():
                errors.append(run(card).float() - expected)
    return Allowed(expected, torch.stack(errors).square().mean(-1).mean(0).sqrt())
