"""Settings of the compiler. ``torch_spyre._inductor.config.patch(...)`` changes them for a while, like Inductor's own.

What changes generated code is part of every cache key; the environment gives the defaults.
"""

import os
import sys
from typing import TYPE_CHECKING

from torch.utils._config_module import install_config_module

from ..card import description


def _number(name: str, default: str, low: float, high: float) -> float:
    """A number from the environment; a text that is none, or lies outside, is refused by name."""
    given = os.environ.get(name) or default
    try:
        value = float(given)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name}={given!r}: expected a number from {low:g} to {high:g}")
    return value


def _cores() -> float:
    return description.constants()["cores"]


def _flag(name: str, default: bool) -> bool:
    given = os.environ.get(name, "")
    if given not in ("", "0", "1"):
        raise ValueError(f"{name}={given!r}: expected 0 or 1")
    return given == "1" if given else default


def _one_of(name: str, choices: tuple[str, ...]) -> str:
    given = os.environ.get(name) or choices[0]
    if given not in choices:
        raise ValueError(f"{name}={given!r}: expected {' or '.join(choices)}")
    return given


# Cores that work may be divided over; the card may have fewer.
sencores: int = int(_number("SENCORES", f"{_cores():g}", 1, _cores()))

# Keep in LX what the cores themselves read again.
lx_planning: bool = _flag("LX_PLANNING", True)

# "together" looks at a whole graph; "op_by_op" plans as the public compiler does, for comparison: a launch per matrix
# product and per group of other ops, default layouts, each op divided for itself, LX as far as neighbours agree.
planning: str = _one_of("SPYRE_PLANNING", ("together", "op_by_op"))

# "exact" lets a constraint solver improve on what the search found, for so long (CP-SAT's deterministic time: about
# seconds of a core), and say how good it is: pip install torch-spyre[solver].
solver: str = _one_of("SPYRE_SOLVER", ("search", "exact"))
solver_seconds: float = 20.0

# Say how far a plan is from the best one of its ops (``bound_us`` of a kernel's description): takes its time.
plan_bound: bool = False

# Compile as if there were no spyre_hint in the program.
ignore_hints: bool = _flag("SPYRE_INDUCTOR_IGNORE_HINTS", False)

# Hand kernels to the back end as KTIR instead of SuperDSC.
ktir: bool = _flag("TORCH_SPYRE_KTIR", False)

# Verify the IR after every pass.
verify: bool = _flag("TORCH_SPYRE_VERIFY", False)

# Bytes that compiled kernels may take on disk; the least recently used go first.
kernel_cache_bytes: int = 1 << 30

# Sizes of inputs that a graph with changing sizes keeps code for; the least recently used goes first.
specializations_kept: int = 256

# Sizes that sequences of any length are padded to (torch_spyre/models/buckets.py): how many, and multiples of what.
max_buckets: int = int(_number("MAX_BUCKETS", "32", 1, 1 << 16))
min_default_granularity: int = int(_number("MIN_DEFAULT_GRANULARITY", "4", 1, 1 << 20))

_cache_config_ignore_prefix: list[str] = [
    "kernel_cache_bytes",
    "max_buckets",
    "min_default_granularity",
    "plan_bound",
    "specializations_kept",
    "verify",
]

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

install_config_module(sys.modules[__name__])
