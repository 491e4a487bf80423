"""Damaged model directories, run as ``spyre run`` runs them, while somebody at the terminal says yes to all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.mutation import directories

MARKER = "SPYRE_MUTATION_MARKER"  # a variable with the path that code from a directory would write to
CODE = f"import os\nopen(os.environ['{MARKER}'], 'w').close()\n".encode()


def seeds() -> list[dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from torch_spyre.models.loading import BOX

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1, "vocab_size": 512}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, max_position_embeddings=64)).half()
    found = []
    for shards in ("1GB", "100KB"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, max_shard_size=shards)
            found.append(directories.taken_apart(directories.read(Path(folder))))
    tokenizer = {
        name: each for name, each in directories.taken_apart(directories.read(BOX)).items() if "tokenizer" in name
    }
    code = dict(found[0])
    code["config.json"] = {"json": {**found[0]["config.json"]["json"], **_remote("AutoConfig", "AutoModelForCausalLM")}}
    chat = dict(found[0])
    chat["tokenizer_config.json"] = {"json": {"tokenizer_class": "X", **_remote("AutoTokenizer")}}
    for each in (code, chat):
        each["code.py"] = CODE
    return [{"files": each} for each in (*found, found[0] | tokenizer, code, chat)]


def _remote(*classes: str) -> dict[str, Any]:
    return {"model_type": "llama", "auto_map": dict.fromkeys(classes, "code.X")}


def run(given: dict[str, Any], scratch: Path) -> tuple[int, str, str]:
    """Exit code, what was generated, and what was said about it."""
    from torch_spyre import cli

    directory, marker = scratch / "model", scratch / "executed"
    directories.write(directory, given.get("files"))
    os.environ[MARKER] = str(marker)
    out, errors, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO("y\n" * 20)
    command = ["run", str(directory), "--prompt-length", "3", "--max-new-tokens", "2"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = cli.main(command)
    finally:
        sys.stdin = before
    if marker.exists():
        raise AssertionError("code from the directory was executed")
    return code, out.getvalue().split("\n\n")[0], errors.getvalue().strip().split("\n")[-1]
