"""A wheel has what the package reads at run time, not only its modules."""

import tomllib
from pathlib import Path

import pytest

pathutil = pytest.importorskip("scikit_build_core.build._pathutil")

ROOT = Path(__file__).parents[1]


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
    assert names >= box | {"torch_spyre/models/presets.toml", "torch_spyre/card/spyre.toml", "torch_spyre/py.typed"}
