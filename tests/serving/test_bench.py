"""``spyre serve`` and ``spyre serve-bench`` without vLLM, as far as they need none."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from torch_spyre.cli import main
from torch_spyre.models.files import BOX
from torch_spyre.serving import bench, command_line, plot


def test_options_go_on_and_defaults_are_added() -> None:
    command = command_line.command_for([str(BOX), "--port", "1", "--max-num-seqs=2"])
    assert command[:2] == ["serve", str(BOX)] and command[-3:] == ["--port", "1", "--max-num-seqs=2"]
    assert "--max-num-seqs" not in command and command[command.index("--max-num-batched-tokens") + 1] == "512"
    assert command_line.command_for(["--simulate"])[1] == str(BOX)
    assert "dummy" in command_line.command_for(["--simulate"])


def test_without_vllm_one_line_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise command_line.PackageNotFoundError(name)

    monkeypatch.setattr(command_line, "version", missing)
    assert main(["serve", "--port", "1"]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "spyre: spyre serve needs vLLM 0.32.*, built for no device: run make serve-setup, or see docs/serving.md\n"
    )


def test_what_is_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(command_line.ModelError, match="no config.json"):
        command_line.command_for([str(tmp_path)])


def test_percentiles_are_values_that_were_there() -> None:
    assert [bench.percentile([3.0, 1.0, 2.0], percent) for percent in (1, 50, 99)] == [1.0, 2.0, 3.0]
    assert bench.percentile([], 50) == 0


def test_the_picture_has_a_line_for_each_series() -> None:
    outcomes = [bench.Outcome(rate, 2.0, 100, [0.01 * rate, 0.02], [0.001, 0.002]) for rate in (1.0, 4.0)]
    drawn = ElementTree.fromstring(plot.latency_against_load(outcomes))
    assert len(drawn.findall("{*}polyline")) == len(plot.SERIES)
    assert outcomes[0].line().split()[:2] == ["1.00", "50.0"]
