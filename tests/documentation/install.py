"""How long it takes from an empty folder to the first output: ``python tests/documentation/install.py``.

A new environment gets torch and this package, built from the checkout or as a wheel (``--wheel FILE``), and runs one
line on the card. pip takes packages from wherever it is configured to look.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST = 'import torch; x = torch.ones(2, 3, device="spyre"); print((x + 1).cpu().tolist())'
LIMIT = 300.0  # seconds, the promise of the documentation


def main() -> int:
    parser = argparse.ArgumentParser(description="Time an installation, from an empty folder to the first output.")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of building the checkout")
    parser.add_argument("--json", type=Path, help="where to write the seconds of each step")
    arguments = parser.parse_args()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="spyre-install-") as folder:
        python = Path(folder, "env/bin/python")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        torch = next(each for each in project["project"]["dependencies"] if each.startswith("torch=="))
        steps = {"environment": [sys.executable, "-m", "venv", str(Path(folder, "env"))], "torch": [*pip, torch]}
        if arguments.wheel:
            steps["torch_spyre"] = [*pip, str(arguments.wheel.resolve())]
        else:
            steps["what builds it"] = [*pip, *project["build-system"]["requires"]]
            steps["torch_spyre"] = [*pip, "--no-build-isolation", str(ROOT)]
        steps["first output"] = [str(python), "-c", FIRST]
        for name, command in steps.items():
            start = time.monotonic()
            done = subprocess.run(command, cwd=folder, env=_own_environment(folder), capture_output=True, text=True)
            seconds[name] = time.monotonic() - start
            print(f"{seconds[name]:7.1f} s  {name}", flush=True)
            if done.returncode:
                print(done.stdout + done.stderr, file=sys.stderr)
                return done.returncode
        print(f"{sum(seconds.values()):7.1f} s  in all; it prints {done.stdout.strip()}")
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds, indent=1) + "\n")
    return int(sum(seconds.values()) > LIMIT)


def _own_environment(folder: str) -> dict[str, str]:
    """Without what the caller's would lend, caches included."""
    lent = ("PYTHONPATH", "VIRTUAL_ENV", "TORCHINDUCTOR_CACHE_DIR", "SPYRE_KERNEL_CACHE")
    return {name: value for name, value in os.environ.items() if name not in lent} | {
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache"))
    }


if __name__ == "__main__":
    sys.exit(main())
