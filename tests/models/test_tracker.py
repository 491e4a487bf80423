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
    "tokens": {"equal": 63, "tied": 1, "apart": 0, "rerouted": 0, "misrouted": 0},
    "compiled": {"error": 0.002, "graphs": 1, "breaks": 0},
}


def test_descriptors():
    """Each has what it needs, and the tiny model keeps the ratio of heads to key heads."""
    for key in ORDER:
        architecture = load(key)
        assert architecture.roundings.keys() == {"layer", "around"}
        both = architecture.full | architecture.tiny
        if "num_key_value_heads" in architecture.full:
            heads, kept = (v["num_attention_heads"] // v["num_key_value_heads"] for v in (architecture.full, both))
            assert heads == kept, key


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
    }
    text = page.text({"llama": {"run": RUN, "timing": timing}, "gpt2": {"run": {"failed": "killed by signal 11"}}})
    assert "| Llama | 31 of 31 | 48 | none | 0.0020 | 0.0020 | 0.0070 | 63 / 1 / 0 |" in text
    assert "| Llama 3.1 8B | 8.00 B | 3.0 | 2.0 | 1.50× |" in text
    assert "- **GPT-2**: run: killed by signal 11" in text and "- **Llama**" not in text


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
