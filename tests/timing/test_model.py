"""``spyre timing PRESET|MODEL``: a prompt and a token, by the modelled clock."""

import json

import pytest

from torch_spyre.cli import main

pytest.importorskip("transformers")

PROGRAM = """
    import sys
    from torch_spyre.cli import main
    sys.exit(main({arguments}))
"""


@pytest.fixture
def timed(python, tmp_path):
    """In a process of its own, since the card's mode is the process's. Gives what was printed, and the phases."""

    def run(*arguments: str):
        done = python(PROGRAM.format(arguments=["timing", *arguments, "--json", str(tmp_path / "found.json")]))
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "found.json").read_text())["phases"]

    return run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The configuration of a small model on disk; timing needs no weights."""
    from transformers import LlamaConfig

    path = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaConfig(
        vocab_size=500,
        num_hidden_layers=2,
        max_position_embeddings=256,
        architectures=["LlamaForCausalLM"],
        **sizes,
    ).save_pretrained(path)
    return str(path)


def test_prompt_and_token(timed, tiny):
    said, (prefill, decode) = timed(tiny, "--prefill", "96", "--decode", "--top", "3")
    assert "ms for 96 tokens, modelled" in said and "ms for 1 token after 96, modelled" in said
    for phase in (prefill, decode):
        assert phase["launches"] == 1 and phase["fallbacks"] == {}
        total = sum(row["us"] for row in phase["rows"])
        assert total == pytest.approx(phase["milliseconds"] * 1000, abs=1e-6 * len(phase["rows"]) * 10)
        assert 0 < phase["least_milliseconds"] < phase["milliseconds"]
        layers = [row for row in phase["rows"] if row["op"] == "matmul" and "down_proj" in row["line"]]
        assert sum(row["count"] for row in layers) == 6


@pytest.mark.slow
def test_a_longer_context_takes_longer(timed, tiny):
    said, (near,) = timed(tiny, "--decode", "--context", "32")
    assert "prefill" not in said
    _, (far,) = timed(tiny, "--decode", "--context", "250")
    assert far["milliseconds"] > near["milliseconds"]


@pytest.mark.slow
def test_batches(timed, tiny):
    said, (phase,) = timed(tiny, "--prefill", "32", "--batch", "2")
    assert "ms for 2 × 32 tokens" in said and phase["batch"] == 2
    assert any(64 in row["extents"] for row in phase["rows"] if row["op"] == "matmul")


@pytest.mark.slow
def test_presets(timed):
    _, phases = timed("granite-3.3-8b", "--layers", "1")
    assert [(phase["phase"], phase["tokens"], phase["context"]) for phase in phases] == [
        ("prefill", 512, 0),
        ("decode", 1, 512),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["granite-9"], "'granite-9' is neither a preset nor a directory; presets are llama-3.1-8b"),
        (["bert-base"], "bert-base is no causal language model"),
        (["granite-3.3-8b", "--prefill", "0"], "--prefill 0: it has to be at least 1"),
        (["granite-3.3-8b", "--context", "-3"], "--context -3: it has to be at least 1"),
        (["granite-3.3-8b", "--batch", "0"], "--batch 0: it has to be at least 1"),
        (["granite-3.3-8b", "--layers", "41"], "granite-3.3-8b has 40 layers: --layers 41 is not among them"),
        (["gpt2", "--prefill", "2000"], "gpt2 has a context of 1024 tokens, and --prefill needs 2000"),
        (["gpt2", "--decode", "--context", "1024"], "gpt2 has a context of 1024 tokens, and --context needs 1025"),
    ],
)
def test_what_cannot_be_timed(arguments, said, capsys, monkeypatch):
    from torch_spyre import _C

    monkeypatch.setenv("SPYRE_CARD", "timing")
    monkeypatch.setattr(_C, "card_mode", lambda: "timing")  # nothing is timed, and this card has started otherwise
    assert main(["timing", *arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"spyre: {said}")


def test_without_transformers(capsys, monkeypatch):
    from torch_spyre.models import command_line

    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    assert main(["timing", "granite-3.3-8b"]) == 2
    assert "spyre timing needs transformers: pip install" in capsys.readouterr().err


def test_checking_is_another_command(capsys):
    assert main(["timing", "check", "--family", "no such family"]) == 1
    assert "no rows to time; the families are pointwise" in capsys.readouterr().err
