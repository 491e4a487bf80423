"""Scripts as users write them for accelerators, started by torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
device = torch.device(f"{torch.accelerator.current_accelerator().type}:{rank}")
torch.accelerator.set_device_index(rank)
dist.init_process_group(device_id=device)
x = torch.full((65,), float(rank + 1), device=device)
dist.all_reduce(x)
dist.barrier(device_ids=[rank])
halves = dist.split_group(None, [[2, 0], [1, 3]])
y = torch.full((65,), float(rank + 1), device=device)
dist.all_reduce(y, group=halves)
quarter = dist.split_group(halves, [[0], [1]])
z = torch.full((65,), float(rank + 1), device=device)
dist.all_reduce(z, group=quarter)
line = [dist.get_backend(), torch.spyre.device_count(), str(x.device)]
line += [tensor.unique().tolist() for tensor in (x, y, z)] + [dist.get_process_group_ranks(halves)]
lines = [None] * 4
dist.all_gather_object(lines, line)
if rank == 0:
    print(*lines, sep="\\n")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(script)]
    environment = {**os.environ, "TORCH_SPYRE_DOWNCAST_WARN": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert [eval(line) for line in done.stdout.splitlines()] == [
        ["spyreccl", 4, "spyre:0", [10.0], [4.0], [1.0], [0, 2]],
        ["spyreccl", 4, "spyre:1", [10.0], [6.0], [2.0], [1, 3]],
        ["spyreccl", 4, "spyre:2", [10.0], [4.0], [3.0], [0, 2]],
        ["spyreccl", 4, "spyre:3", [10.0], [6.0], [4.0], [1, 3]],
    ]
