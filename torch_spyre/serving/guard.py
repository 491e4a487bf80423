"""What compiles after warm-up: serving should never wait for the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.logger import init_logger

from ..compile_time import watched

OPTION = "compiles_after_warm_up"  # of vLLM's additional_config
CHOICES = ("warn", "error")

logger = init_logger("vllm.spyre")


class Guard:
    """Counts steps that waited for the compiler; says so once, or raises."""

    def __init__(self, choice: str) -> None:
        if choice not in CHOICES:
            raise ValueError(f"additional_config: {OPTION} is {' or '.join(CHOICES)}, not {choice!r}")
        self.raises = choice == "error"
        self.armed = False
        self.steps = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        if not self.armed:
            yield
            return
        with watched() as spent:
            yield
        if spent.seconds:
            self.steps += 1
            said = f"{what} compiled for {spent.seconds:.2f} s after warm-up, which should have run its program"
            if self.raises:
                raise RuntimeError(said)
            if self.steps == 1:
                logger.warning("%s. Further steps that compile are not logged", said)
