"""What if the card were another one? A transformer layer, timed on cards that differ from the real one in few lines.

A hardware description is a file; ``SPYRE_HARDWARE`` names it. It says only what differs from its base, and everything
follows: plans, programs, the clock. A process has one kind of card, so each runs in a process of its own, in ``timing``
mode: no values, no memory.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CARDS = {
    "the real card": "",
    "twice the LX": "lx_bytes = 4194304",
    "an eighth of the LX": "lx_bytes = 262144",
    "half the bandwidth": "dram_gb_per_s = 76.75",
    "16 cores": "cores = 16",
    "half of all of it": "lx_bytes = 1048576\ndram_gb_per_s = 76.75\ncores = 16",
}


def time_layer() -> None:
    """In the process of one card: microseconds of a layer, and the bytes that it moves from and to where."""
    import torch
    from torch import nn

    from torch_spyre import timing

    layer = nn.TransformerEncoderLayer(1024, 8, 4096, activation="gelu", batch_first=True, norm_first=True)
    layer = torch.compile(layer.half().eval().to("spyre"))
    x = torch.empty(1, 2048, 1024, dtype=torch.float16, device="spyre")
    with torch.no_grad(), torch.spyre.fallback("error"):
        layer(x)
        with timing.record() as recording:
            layer(x)
    rows = recording.rows()
    print(recording.milliseconds * 1000, sum(row.dram_bytes for row in rows), sum(row.lx_bytes for row in rows))


def main() -> None:
    print(f"{'card':<26} {'layer':>10} {'DRAM':>10} {'LX':>10}")
    times = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, differs in CARDS.items():
            description = Path(directory) / "card.toml"
            description.write_text(f'base = "spyre"\n{differs}\n')
            environment = {**os.environ, "SPYRE_HARDWARE": str(description), "SPYRE_CARD": "timing"}
            command = [sys.executable, __file__, "--time-layer"]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            us, dram, lx = map(float, done.stdout.split())
            times[name] = us
            print(f"{name:<26} {us:7.1f} us {dram / 1e6:7.1f} MB {lx / 1e6:7.1f} MB", flush=True)
    assert times["the real card"] < min(times["half the bandwidth"], times["16 cores"]) < times["half of all of it"]


if __name__ == "__main__":
    time_layer() if "--time-layer" in sys.argv else main()
