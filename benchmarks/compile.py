"""Compile time of a 2-layer Llama (hidden 512): the card against Inductor on the CPU.

Cold: empty caches. Warm: a new process with the caches of a former one. Every measurement is a process of its own, the
two sides alternate, the best of several counts.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 3
HERE = Path(__file__).resolve().parent

ONE = """
import sys, time
sys.path.insert(0, {here!r})
import torch
from _llama import Llama

torch.manual_seed(0)
model = Llama().to(torch.float16).eval().to({device!r})
ids = torch.arange(64).view(1, 64).to({device!r})
begin = time.perf_counter()
with torch.no_grad():
    torch.compile(model, fullgraph=True)(ids).cpu()
print(time.perf_counter() - begin)
"""


def seconds(device: str, caches: str) -> float:
    """The first call of a compiled model in a process of its own."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches}
    code = ONE.format(here=str(HERE), device=device)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    cold: dict[str, list[float]] = {"cpu": [], "spyre": []}
    warm: dict[str, list[float]] = {"cpu": [], "spyre": []}
    for _ in range(ROUNDS):
        for device in cold:
            with tempfile.TemporaryDirectory() as caches:
                cold[device].append(seconds(device, caches))
                warm[device].append(seconds(device, caches))
    for name, times, limit in (("cold", cold, 0.6), ("warm", warm, 1.1)):
        spyre, cpu = min(times["spyre"]), min(times["cpu"])
        print(f"{name}: spyre {spyre:.2f} s, Inductor-CPU {cpu:.2f} s, ratio {spyre / cpu:.2f} (asked: <= {limit})")


if __name__ == "__main__":
    main()
