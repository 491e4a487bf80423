"""The tracker: a model that fails is a line of the page, and the page says what is not right."""

import math

import pytest
import torch

from tests.models import page, tracker
from tests.models.architectures import ORDER, error_of, load

RUN = {
    "modules": {"right": 31, "of": 31, "wrong": []},
    "ops": {"native": 48, "fallback": []},
    "whole": {"error": 0.002, "allowed": 0.007},
    "tokens": {"equal": 63, "tied": 1, "apart": 0, "rerouted": None, "misrouted": 0},
    "compiled": {"error": 0.002, "graphs": 1, "breaks": 0},
}


@pytest.mark.parametrize("key", ORDER)
def test_tiny_models_keep_the_ratios(key):
    """Of query heads to key heads and of the MLP to the width, and the size of a head."""
    pytest.importorskip("transformers")
    full, tiny = (ratios(load(key).configuration(size)) for size in ("full", "tiny"))
    assert tiny == pytest.approx(full)
    assert load(key).roundings.keys() == {"layer", "around"}


def ratios(config):
    heads, width = config.num_attention_heads, config.hidden_size
    head = getattr(config, "head_dim", None) or width // heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "encoder_ffn_dim", None) or 4 * width
    return heads // getattr(config, "num_key_value_heads", heads), head, inner / width


def test_tolerance_is_what_roundings_of_the_format_give():
    """Numbers that the card rounds again and again, on a random walk: within, and not by far."""
    torch.manual_seed(0)
    exact = torch.randn(4096, dtype=torch.float64)
    rounded, steps = exact.clone(), 16
    for _ in range(steps):
        factor = 1 + torch.rand(4096, dtype=torch.float64)
        exact = exact * factor
        rounded = (rounded * factor).float().to(torch.bfloat16).double()  # 7 fraction bits: 4 times the card's error
    error = ((rounded - exact).norm() / exact.norm()).item() / 4
    assert 0.25 * error_of(steps) < error < error_of(steps)
    assert math.isclose(error_of(3), 2**-9)


def test_page():
    timing = {
        "parameters": 8e9,
        "memory": 2**34,
        "fallback": [],
        "prefill": {"ms": 3.0, "by_bytes": 1.0, "by_flops": 2.0},
        "decode": {"ms": 4.0, "by_bytes": 3.2, "by_flops": 0.1},
    }
    text = page.text({"llama": {"run": RUN, "timing": timing}, "gpt2": {"run": {"failed": "killed by signal 11"}}})
    assert "| Llama | `llama-3.1-8b` | on the card | 63 of 64, 1 tied | 3.0 (1.5×) | 4.0 (1.2×) | 250.0 |" in text
    assert "| GPT-2 | `gpt2` | see below |  |  |  |  |" in text
    assert "| Llama | 31 of 31 | 48 | none | 0.0020 | 0.0020 | 0.0070 | 63 / 1 / 0 |" in text
    assert "| Llama | 8.00 B | 3.0 | 2.0 | 1.5× | 4.0 | 3.2 | 1.2× | 16.0 | none |" in text
    assert "- **GPT-2**: run: killed by signal 11" in text and "- **Llama**" not in text


@pytest.mark.parametrize("what", [RUN | {"ops": {"native": 1, "fallback": ["aten::mm"]}}, {"fallback": ["aten::mm"]}])
def test_page_counts_fallbacks(what):
    assert page.outcome("llama", {"run": RUN, "timing": what}) == "fallbacks: 1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"modules": {"right": 30, "of": 31, "wrong": ["model.norm: off by 1"]}}, "model.norm: off by 1"),
        ({"whole": {"error": 0.1, "allowed": 0.007}}, "eager: off by 0.1, at most 0.007"),
        ({"whole": {"error": math.nan, "allowed": 0.007}}, "eager: off by nan"),
        ({"compiled": {"error": 0.1, "graphs": 1, "breaks": 0}}, "compiled: off by 0.1"),
        ({"tokens": {"equal": 60, "tied": 0, "apart": 4}}, "4 tokens differ"),
        ({"tokens": {"equal": 64, "tied": 0, "apart": 0, "misrouted": 2}}, "2 tokens went to experts"),
    ],
)
def test_problems(change, says):
    assert page.problems("llama", {"run": RUN}) == []
    assert any(says in line for line in page.problems("llama", {"run": RUN | change}))


@pytest.mark.slow
def test_a_failure_is_a_line():
    assert "FileNotFoundError" in tracker.measure("no such model", "run")["failed"]


@pytest.mark.slow
def test_llama():
    pytest.importorskip("transformers")
    found = tracker.measure("llama", "run")
    assert page.problems("llama", {"run": found}) == [] and found["ops"]["fallback"] == []
