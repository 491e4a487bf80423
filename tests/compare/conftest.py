"""Bugs for ``compare`` to find."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from torch_spyre import compiler
from torch_spyre._inductor.lowerings import LOWERINGS
from torch_spyre._inductor.lowerings.registry import overloads


@pytest.fixture
def planted() -> Callable[..., Any]:
    """``with planted(op, lowering)``: inside, the op has this lowering, and its own again afterwards."""

    @contextmanager
    def plant(op: Any, lowering: Callable[..., Any]) -> Iterator[None]:
        own = {overload: LOWERINGS[overload] for overload in overloads(op) if overload in LOWERINGS}
        compiler.register_lowering(op)(lowering)
        try:
            yield
        finally:
            compiler.unregister(lowering)
            LOWERINGS.update(own)

    return plant
