"""Whole models have no finding: forward, compiled and training."""

import pytest
import torch

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

from tests.models.architectures import ORDER, load  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("way", ["eager", "compiled", "training"])
@pytest.mark.parametrize("key", [key for key in ORDER if key not in ("gpt_oss", "granite_hybrid")])
def test_a_model_has_no_finding(key, way, dtype):
    torch.manual_seed(0)
    architecture = load(key)
    model = architecture.build("tiny", dtype).to("spyre")
    given = architecture.inputs(model.config, 9)
    given = {name: (x.to(dtype) if x.is_floating_point() else x).to("spyre") for name, x in given.items()}
    run = torch.compile(model) if way == "compiled" else model

    def step(**inputs):
        result = run(**inputs)[0]
        if way == "training":
            result.float().square().mean().backward()
        return result

    with torch.set_grad_enabled(way == "training"):
        report = torch.spyre.compare(step, **given)
    assert report.ok, str(report)
    assert "unchecked" not in {row.verdict for row in report.rows}, str(report)
