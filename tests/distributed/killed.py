"""Ranks of which one is killed, at a moment that nobody knows."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import torch.distributed as dist

from . import faults, mixed


def run(seed: int, victim: int) -> tuple[str, float]:
    """What a survivor's collectives raise, and how long after the victim's end at the most."""
    rank, size = dist.get_rank(), dist.get_world_size()
    delay = random.Random(seed).uniform(0, 1.5)
    if rank == victim:
        threading.Timer(delay, os.kill, [os.getpid(), signal.SIGKILL]).start()
    began = time.monotonic()
    world = [(dist.group.WORLD, list(range(size)))]
    text = ""
    while not text:
        text = faults.raised(lambda: mixed.carry_out(seed, 1000, world))
    return text, time.monotonic() - began - delay
