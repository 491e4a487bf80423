"""A rank of ``test_hosts.py``: random collectives, compared with what one process computes, and their bits."""

from __future__ import annotations

import hashlib
import json
import sys

import torch
import torch.distributed as dist

from tests.distributed import faults, mixed
from tests.distributed.reference import on_card


def bits() -> str:
    """Of sums that are not exact."""
    digest = hashlib.sha256()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for shape in ((63,), (300, 129), (1000, 700)):
            value = on_card(shape, dtype, 3, dist.get_rank())
            dist.all_reduce(value)
            digest.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    differing = mixed.carry_out(5, 60, [(dist.group.WORLD, list(range(size)))])
    found = bits()
    with open("/proc/self/maps") as maps:
        shares = len({line.split()[4] for line in maps if "memfd:spyreccl" in line}) > 1  # its own, and those of others
    mismatch = faults.raised(lambda: dist.all_reduce(faults.ones(4 + rank)))
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps([differing, found, mismatch, shares]))


if __name__ == "__main__":
    sys.exit(main())
