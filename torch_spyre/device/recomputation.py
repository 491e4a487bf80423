"""Random ops that a compiled backward pass runs again, from the state that the card's generator had before.

PyTorch has one op that saves the state and one that sets it, with an implementation for each device that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..constants import DEVICE_NAME


def add_card(rng_prims: ModuleType) -> None:
    """Makes the ops of ``torch._prims.rng_prims`` know the card."""
    from torch._C import DispatchKey
    from torch._higher_order_ops.utils import registered_hop_fake_fns
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree
    from torch.utils._pytree import tree_map

    save, again = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state
    known: dict[Any, Callable[..., Any]] = {op: op.py_kernels[DispatchKey.BackendSelect] for op in (save, again)}

    def on_card(args: Any, kwargs: Any) -> bool:
        return bool(rng_prims.get_device(args, kwargs) == DEVICE_NAME)

    def run_and_save(op: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_card(args, kwargs):
            return known[save](op, *args, **kwargs)
        from . import random

        return random.get_rng_state(), op(*args, **kwargs)

    def run_again(state: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_card(args, kwargs):
            return known[again](state, op, *args, **kwargs)
        from . import random

        before = random.get_rng_state()
        random.set_rng_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            random.set_rng_state(before)

    def trace(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        results = run_and_save(op, *args, **kwargs)
        given = tree_map(mode.tracer.unwrap_proxy, ((op, *args), kwargs))
        return track_tensor_tree(
            results, mode.tracer.create_proxy("call_function", save, *given), constant=None, tracer=mode.tracer
        )

    for op, kernel in ((save, run_and_save), (again, run_again)):
        op.py_kernels[DispatchKey.BackendSelect] = kernel
        op._dispatch_cache.clear()
    registered_hop_fake_fns[save] = run_and_save
    save.python_key_table[ProxyTorchDispatchMode] = trace
