"""Runtime scalars: numbers that a launch gives, so that one kernel serves all their values.

``x * 0.1`` and ``x * 0.2`` share a kernel. The lowering gets a stand-in for the number, which may become an operand or
a parameter of an op. A stand-in knows whether it is an integer, can change its sign and can be rounded to a dtype. A
lowering that asks for its value gets :class:`ValueNeeded`, and the kernel is compiled for this one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ... import _C
from .ir import RuntimeScalar

# Which number of the call, whether its sign is changed, and the dtype that it is then rounded to as a tensor would be.
Recipe = tuple[int, bool, torch.dtype | None]


class ValueNeeded(Exception):
    """A lowering asks for the value of a runtime scalar."""


class ScalarStandIn:
    """Stands for a number of the call. To ``isinstance`` it is that int or float."""

    def __init__(self, kind: type, default: Any, recipe: Recipe, recipes: list[Recipe]) -> None:
        self._kind, self._default = kind, default
        self._recipe, self._recipes = recipe, recipes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def given(self) -> RuntimeScalar:
        """The scalar in loop IR; from now on launches have to give it."""
        if self._recipe not in self._recipes:
            self._recipes.append(self._recipe)
        return RuntimeScalar(self._recipes.index(self._recipe))

    def kept_as(self, dtype: torch.dtype) -> ScalarStandIn:
        index, negated, kept = self._recipe
        if kept not in (None, dtype) or (self._kind is float and not (dtype.is_floating_point or dtype == torch.bool)):
            raise ValueNeeded
        return ScalarStandIn(float, None, (index, negated, dtype), self._recipes)

    def real(self) -> ScalarStandIn:
        return ScalarStandIn(float, self._default, self._recipe, self._recipes)

    def whole(self) -> ScalarStandIn:
        return self if self._kind is int else self._unknown()

    def __neg__(self) -> ScalarStandIn:
        index, negated, kept = self._recipe
        if kept:
            raise ValueNeeded
        whole = torch.int64 if self._kind is int else None  # an integer has no other zero
        return ScalarStandIn(self._kind, None, (index, not negated, whole), self._recipes)

    def __eq__(self, other: object) -> bool:
        """A number that is its argument's default is never left to the launch."""
        return False if self._default is not None and other == self._default else self._unknown()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _unknown(self, *_: Any) -> NoReturn:
        raise ValueNeeded

    __hash__ = __bool__ = __float__ = __int__ = __index__ = __complex__ = __abs__ = __round__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _unknown
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _unknown
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _unknown
    __trunc__ = __floor__ = __ceil__ = __format__ = __str__ = _unknown


def is_open(number: Any) -> bool:
    """Whether its value is not known yet."""
    return type(number) is ScalarStandIn


def real(number: Any) -> Any:
    """``float(number)``."""
    return number.real() if is_open(number) else float(number)


def whole(number: Any) -> Any:
    """``int(number)``."""
    return number.whole() if is_open(number) else int(number)


def in_loop_ir(number: Any) -> float | RuntimeScalar:
    """A number as an operand or parameter of a loop op."""
    return number.given() if is_open(number) else float(number)


def stand_ins(numbers: Sequence[Any], defaults: Sequence[Any]) -> tuple[list[ScalarStandIn], list[Recipe]]:
    """Stand-ins for the numbers of a call, which differ from these defaults; and what launches have to give, a list
    that grows as lowerings use them."""
    recipes: list[Recipe] = []
    pairs = enumerate(zip(numbers, defaults, strict=True))
    return [ScalarStandIn(type(n), default, (i, False, None), recipes) for i, (n, default) in pairs], recipes


def given_to_launch(numbers: Sequence[Any], recipes: Sequence[Recipe]) -> list[float]:
    """What a launch takes of the numbers of a call: as the runtime computes it for every call."""

    def one(recipe: Recipe) -> float:
        index, negated, dtype = recipe
        value = -float(numbers[index]) if negated else float(numbers[index])
        return value if dtype is None else _C.round_to_device(value, dtype)

    return [one(recipe) for recipe in recipes]
