"""Values of the card against the CPU's: what is computed, and how far the card may be off.

The CPU computes in float64 from the inputs as they lie on the card. Ops are within roundings of the result's format
(``unit`` of the op tests), or give what the CPU gives in the inputs' own dtype, overflows included. Where that is not
enough, two measures of the computation itself say more: how far results move when every input moves by one unit (a sum
with cancelling terms cannot be more precise than its terms are), and how far the CPU is off in the inputs' own dtype,
whose unit is a quarter of the card's. Where parts round too (``roundings`` above one), small elements carry the
roundings of large ones: the largest element counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torch_spyre.compare.error_bounds import FORMATS, difference, displacement, inside, rounding, smallest, unit

CARD_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64}
)
DRAWS = 6

Call = Callable[[Any], Any]  # a computation of some inputs: tensors anywhere in lists, tuples and dictionaries


def map_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    return pytree.tree_map(lambda x: change(x) if isinstance(x, Tensor) else x, values)


def tensors_of(values: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, Tensor)]


def to_host(values: Any) -> Any:
    """The tensors' copies on the host; where the card is named, the host is."""

    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.detach().cpu()
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return "cpu" if x == "spyre" else x

    return pytree.tree_map(move, values)


def widened(x: Tensor) -> Tensor:
    return x.double() if x.dtype in FORMATS else x


def moved_by_units(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every element of a floating-point tensor a unit up or down."""
    if x.dtype not in FORMATS:
        return x
    signs = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return x.double() * (1 + unit(x.dtype) * signs)


class Expected:
    """What the CPU gives for ``inputs``, tensors on the host with the card's values.

    ``narrow``: the CPU computes in the inputs' own dtypes, where another precision is another question (random numbers,
    results that are about the format).
    """

    def __init__(self, call: Call, inputs: Any, roundings: int = 1, narrow: bool = False) -> None:
        self.call, self.inputs, self.roundings = call, inputs, roundings
        self.plain = pytree.tree_leaves(self._run(lambda x: x))
        self.wide = None if narrow else self._widely(widened)

    def check(self, got: Any) -> None:
        """Raises AssertionError where the card's results are others."""
        leaves = pytree.tree_leaves(got)
        assert len(leaves) == len(self.plain), f"{len(leaves)} results, not {len(self.plain)}"
        for i, (g, p) in enumerate(zip(leaves, self.plain, strict=True)):
            if isinstance(p, Tensor):
                assert isinstance(g, Tensor), f"result {i} is {type(g).__name__}, not a tensor"
                self._check_tensor(i, g, p)
            else:
                self._check_number(i, g, p)

    def _run(self, change: Callable[[Tensor], Tensor]) -> Any:
        torch.manual_seed(0)
        return map_tensors(lambda x: x.detach(), self.call(map_tensors(lambda x: change(x).clone(), self.inputs)))

    def _widely(self, change: Callable[[Tensor], Tensor]) -> list[Any] | None:
        """The results in float64; None where the op does not take it, or gives something else for it."""
        try:
            results = pytree.tree_leaves(self._run(change))
        except Exception:
            return None
        alike = len(results) == len(self.plain) and all(
            not isinstance(p, Tensor) or (isinstance(w, Tensor) and w.shape == p.shape)
            for w, p in zip(results, self.plain, strict=True)
        )
        return results if alike else None

    def _check_number(self, i: int, got: Any, plain: Any) -> None:
        assert type(got) is type(plain), f"result {i} is a {type(got).__name__}, not a {type(plain).__name__}"
        if isinstance(plain, float):
            want = self.wide[i] if self.wide is not None else plain
            torch.testing.assert_close(got, want, rtol=self.roundings * unit(torch.float32), atol=0, equal_nan=True)
        else:
            assert got == plain, f"result {i} is {got}, not {plain}"

    def _check_tensor(self, i: int, got: Tensor, plain: Tensor) -> None:
        assert got.dtype == plain.dtype, f"result {i} is of {got.dtype}, not {plain.dtype}"
        assert got.shape == plain.shape, f"result {i} has shape {tuple(got.shape)}, not {tuple(plain.shape)}"
        if plain.dtype in CARD_DTYPES and plain.layout == torch.strided:
            assert got.device.type == "spyre", f"result {i} is on {got.device}"
        if plain.layout != torch.strided:
            got, plain = got.to_dense(), plain.to_dense()
        found = got.detach().cpu()
        wide = self.wide[i] if self.wide is not None else plain
        if plain.dtype not in FORMATS:
            close = plain.is_floating_point() or plain.is_complex()
            torch.testing.assert_close(found, plain, equal_nan=True, **({} if close else {"rtol": 0, "atol": 0}))
            return
        want = wide.double()
        if same_bits([found], [plain]):
            return
        bound = _finite(rounding(want, plain.dtype, self.roundings) + smallest(plain.dtype))
        if not inside(found, want, bound).all():
            error = 4 * _finite(displacement(want, plain.double()))
            bound = bound + error + self.roundings * self._spread(i, want)
            if self.roundings > 1:
                bound = bound + rounding(largest(want), plain.dtype, self.roundings) + largest(error)
            bound = _finite(bound)
        assert inside(found, want, bound).all(), f"result {i}: {difference(found, want, bound)}"

    def _spread(self, i: int, want: Tensor) -> Tensor:
        """How far a result moves when the inputs move by a unit each, at most over some draws."""
        generator = torch.Generator().manual_seed(0)
        spread = torch.zeros_like(want)
        for _ in range(DRAWS):
            moved = self._widely(lambda x: moved_by_units(x, generator))
            if moved is not None:
                spread = spread.maximum(_finite(displacement(want, moved[i].double())))
        return spread


def largest(x: Tensor) -> Tensor:
    """Of the finite elements' magnitudes."""
    return x[x.isfinite()].abs().max() if x.isfinite().any() else torch.zeros(())


def _finite(bound: Tensor) -> Tensor:
    """Where a reference is not finite, the result must be the same: it has no bound."""
    return bound.nan_to_num(0, 0, 0)


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Equal values, and NaN in the same places."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x.cpu().nan_to_num(nan=7), y.cpu().nan_to_num(nan=7))
        if x.is_floating_point()
        else x.dtype == y.dtype and torch.equal(x.cpu(), y.cpu())
        for x, y in zip(a, b, strict=True)
    )


def raised(function: Callable[[], Any]) -> Exception | None:
    """What a call raises, or the card after it."""
    try:
        function()
        torch.spyre.synchronize()
    except Exception as error:
        return error
    return None


def seed_like(x: Tensor) -> Tensor:
    """A gradient for a result, the same on every device."""
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(x.shape, generator=generator) + 0.5).to(x.dtype).to(x.device)
