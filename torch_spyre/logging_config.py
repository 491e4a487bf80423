"""What is logged, from Python: levels, and the passes after which the IR is printed.

From outside, ``TORCH_LOGS`` has these names beside the modules of the package: ``torch_spyre``;
``torch_spyre.inductor``, the compiler; ``spyre_kernels``, a line for every kernel; ``spyre_passes``, the IR after every
pass; and ``spyre_divide_work`` for one pass, and so on.
"""

from __future__ import annotations

import logging as standard
import os
from collections.abc import Iterable

from . import logging

# Names of TORCH_LOGS, and the loggers that they turn on.
LOGS = {
    "torch_spyre": ["torch_spyre"],
    "torch_spyre.inductor": ["torch_spyre._inductor", "torch_spyre.execution", "torch_spyre.caching"],
    "spyre_kernels": ["torch_spyre.execution.kernel"],
}

# The passes of torch_spyre._inductor.pipeline, which takes too long to import only to name them.
PASSES = (
    *("lowered", "resolve_aliases", "dead_code", "elide_copies", "cast_gathered", "forward_copies"),
    *(
        "separate_overlaps",
        "name_dims",
        "coarse_tile",
        "tile_products",
        "propagate_layouts",
        "keep_fold_orders",
        "insert_restickify",
        "lift_ops",
    ),
    *("divide_work", "plan_scratchpad", "plan_memory", "build_specs"),
)


def set_log_level(level: int | str, name: str = "torch_spyre") -> None:
    """Log lines of this level and above: of the package, or of one of its parts (a name of ``TORCH_LOGS``, a module).

    ``DEBUG`` prints the IR after every pass, ``INFO`` a line for every kernel, ``WARNING`` is the default.
    """
    number = standard.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"level {level!r}: expected DEBUG, INFO, WARNING or ERROR")
    if name not in LOGS and name.split(".")[0] != "torch_spyre":
        raise ValueError(f"{name!r} is no logger of torch_spyre; there are {', '.join(LOGS)}, and its modules")
    _print_lines()
    for logger in LOGS.get(name, [name]):
        standard.getLogger(logger).setLevel(number)


def set_log_passes(passes: str | Iterable[str] | None = "all") -> None:
    """Print the IR after these passes: ``"all"``, names, or None for no pass. Files of passes are restricted alike."""
    names = _names(passes)
    known = {*PASSES, *_registered()}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"the pipeline has no pass {unknown[0]!r}; it has {', '.join(sorted(known))}")
    logging.select_passes(names)
    if names is None or names:
        _print_lines()
    standard.getLogger("torch_spyre._inductor.passes").setLevel(
        standard.DEBUG if names is None or names else standard.NOTSET
    )


def _names(passes: str | Iterable[str] | None) -> frozenset[str] | None:
    """None: every pass."""
    if passes is None:
        return frozenset()
    given = passes.replace(",", " ").split() if isinstance(passes, str) else list(passes)
    return None if given == ["all"] else frozenset(given)


def _registered() -> set[str]:
    """Passes that other packages have added."""
    from ._inductor import pipeline

    return {stage.name for _, stage in pipeline.walk()}


def _print_lines() -> None:
    """To standard error, unless something takes the lines already."""
    if not logging.PACKAGE.hasHandlers():
        logging.add_handler(standard.StreamHandler())


def register() -> None:
    """Makes the names known to ``TORCH_LOGS``, which PyTorch reads after it has loaded its devices."""
    if "TORCH_LOGS" not in os.environ:
        return  # loggers that PyTorch knows no longer reach a program's own handlers
    from torch._logging._internal import register_artifact, register_log

    for name, loggers in LOGS.items():
        register_log(name, loggers)
    register_artifact("spyre_passes", "The IR of kernels of the card after every pass.", True, off_by_default=True)
    for name in PASSES:
        register_artifact(
            f"spyre_{name}", f"The IR of a kernel after the pass {name}.", visible=False, off_by_default=True
        )
    logging.ARTIFACTS.update({"spyre_passes", *(f"spyre_{name}" for name in PASSES)})
