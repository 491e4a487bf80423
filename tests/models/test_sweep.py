"""The sweep over every architecture: a sample of it, and that it tells right from wrong."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.models.sweep import __main__ as sweep
from tests.models.sweep import architectures, check, page

QUICK = ("gpt_neo", "git", "llava", "xlnet", "wav2vec2")
MORE = ("bloom", "blip", "prophetnet", "recurrent_gemma", "openai-gpt", "granitemoe", "qwen2_vl", "florence2", "d_fine")
MORE += ("bart", "whisper", "vit", "clip", "mamba", "mobilenet_v2")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_architecture(name: str) -> None:
    result = check.check(architectures.make(name))
    assert page.is_right(result), page.outcome(result | {"seconds": 0})


def test_there_are_enough() -> None:
    assert len(architectures.names()) > 500


def test_a_wrong_layer_is_seen() -> None:
    made = architectures.make("vit")
    reference, card = check._Reference(made), made.model.to("spyre")
    assert check._forward(reference, card, torch.float32)["right"]
    with torch.no_grad():
        next(p for name, p in card.named_parameters() if "layer" in name and p.dim() == 2).mul_(1.001)
    assert not check._forward(reference, card, torch.float32)["right"]


def _result(right: bool, **more: Any) -> dict[str, Any]:
    checked = {"right": right, "error": 0.5, "allowed": 0.1}
    return {"class": "A", "inputs": ["input_ids"], "forward float32": checked, "seconds": 1.0, **more}


def test_results_are_kept_and_not_run_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ran = tmp_path / "sweep.jsonl", []
    path.write_text(json.dumps({"name": "bert", **_result(True)}) + "\n" + '{"name": "cut off')

    class Worker:
        lives = True

        def check(self, name: str) -> dict[str, Any]:
            ran.append(name)
            return _result(name != "vit")

        def close(self) -> None:
            pass

    monkeypatch.setattr(sweep, "_Worker", Worker)
    monkeypatch.setattr(sys, "argv", ["sweep", "bert", "vit", "t5", "--jobs", "1", "--json", str(path)])
    assert sweep.main() == 1  # two of three are right
    assert ran == ["vit", "t5"]
    assert sweep.main() == 1
    assert ran == ["vit", "t5"]


def test_page(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "models.md"
    path.write_text("# Models\n\nBy hand.\n")
    monkeypatch.setattr(page, "PATH", path)
    found = {"bert": _result(True), "vit": _result(False), "x": {"not made": "no | sizes"}, "y": {"raised": "killed"}}
    for _ in range(2):
        page.write(found)
    text = path.read_text()
    assert text.startswith("# Models\n\nBy hand.\n") and text.count("## Every architecture") == 1
    assert text.endswith(page.kept()) and page.kept().startswith(f"\n{page.BEGIN}\n")
    assert "1 of 3 architectures are right (33.3 %)" in text
    assert "- `vit`: forward float32: off by 0.5, at most 0.1" in text
    assert "- `y`: killed" in text and "- `x`: sizes" in text
