"""What is packed, and that it installs: an sdist, a wheel made from it, and an environment with nothing else."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torch_spyre.explain import explorer

pathutil = pytest.importorskip("scikit_build_core.build._pathutil")

ROOT = Path(__file__).parents[1]

USE = """
import torch
import torch_spyre

x = torch.arange(320, dtype=torch.float16).reshape(5, 64)
card = x.to("spyre")
with torch.spyre.fallback("error"):
    assert torch.equal((card + card).cpu(), x + x)
    compiled = torch.compile(lambda x: (x * 0.01).softmax(-1), fullgraph=True)(card)
torch.testing.assert_close(compiled.cpu(), (x * 0.01).softmax(-1), rtol=0.02, atol=0.001)
assert "SpyreTensorLayout" in str(torch.spyre.SpyreTensorLayout([5, 64], [64, 1], torch.float16, [0, 1]))
print(torch_spyre.__file__, torch_spyre._C.__file__)
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """Without what the tests' own environment would lend."""
    lent = ("PYTHONPATH", "VIRTUAL_ENV", "TORCHINDUCTOR_CACHE_DIR", "SPYRE_KERNEL_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in lent}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(cwd / "cache")
    return subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)


def succeed(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_the_data_files(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]
    packed = pathutil.packages_to_file_mapping(
        packages={name: name for name in settings["packages"]},
        platlib_dir=tmp_path,
        include=[],
        src_exclude=[],
        target_exclude=settings["exclude"],
        build_dir="build",
        mode="default",
    )
    names = {str(Path(target).relative_to(tmp_path)) for target in packed.values()}
    box = {f"torch_spyre/models/box/{file.name}" for file in Path("torch_spyre/models/box").iterdir()}
    assert "torch_spyre/models/box/model.safetensors" in box
    page = {f"torch_spyre/explain/explorer/{name}" for name in ("page.html", "style.css", *explorer.SCRIPTS)}
    assert names >= box | page | {
        "torch_spyre/models/presets.toml",
        "torch_spyre/card/spyre.toml",
        "torch_spyre/py.typed",
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sdist_and_wheel_install_into_an_empty_environment(tmp_path):
    """The wheel is built from the sdist alone, and used away from the sources.

    ``SPYRE_PACKAGING_PYTHON`` names another interpreter than the tests' own: it needs torch and the build requirements.
    """
    builder = os.environ.get("SPYRE_PACKAGING_PYTHON", sys.executable)
    pack = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    succeed(sys.executable, "-c", pack, cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    pip = ("-m", "pip", "--disable-pip-version-check")
    wheels = tmp_path / "wheels"
    succeed(builder, *pip, "wheel", "--no-build-isolation", "--no-deps", "-w", wheels, sdist, cwd=tmp_path)
    (wheel,) = wheels.glob("*.whl")

    empty = tmp_path / "empty"
    succeed(builder, "-m", "venv", empty, cwd=tmp_path)
    installed = run(empty / "bin/python", *pip, "install", wheel, cwd=tmp_path)
    if "No matching distribution found for torch" in installed.stderr:
        pytest.skip("pip finds no torch here: an empty environment cannot be filled")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    package, extension = succeed(empty / "bin/python", "-c", USE, cwd=tmp_path).split()
    assert empty in Path(package).parents and empty in Path(extension).parents
    assert "run" in succeed(empty / "bin/spyre", "--help", cwd=tmp_path)
