"""Take one kernel out of a program, as a file, and run it alone: on other cores, in strict mode, to the same bits."""

import tempfile
from pathlib import Path

import torch

from torch_spyre.diagnostics import captures
from torch_spyre.diagnostics.replay import Options, replay


def main() -> None:
    layer = torch.compile(lambda x, w: torch.nn.functional.silu(x @ w.t()))
    x, w = (torch.randn(64, 256).half().to("spyre") for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "silu.capture")
        with torch.spyre.capture(file):
            layer(x, w)
        capture = captures.load(file)  # or, in a terminal: spyre replay silu.capture --cores 8
    for cores in (1, 8, 32):
        found = replay(capture, Options(cores=cores))
        print(f"{cores:2} cores: {found.microseconds:7.2f} us, {len(found.differences)} differences")
        assert found.differences == []


if __name__ == "__main__":
    main()
