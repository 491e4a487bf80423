from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Few and small programs: what they compute does not depend on their sizes.
SMALL = {
    "dtype": "float16",
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "additional_config": {"compiles_after_warm_up": "error"},
}


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Requests to a model, through vLLM in a process of its own."""

    def run(model: Any, prompts: list[list[int]], sampling: Any = None, **options: Any) -> dict[str, Any]:
        if isinstance(model, str):
            options = {"disable_log_stats": False, **options}  # which counts preemptions
        else:
            model.save_pretrained(directory := str(tmp_path / "model"))
            model, options = directory, {"skip_tokenizer_init": True, **options}
        greedy = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, "detokenize": False, "logprobs": 0}
        given = sampling if isinstance(sampling, list) else [sampling or {}] * len(prompts)
        asked = {
            "model": model,
            "prompts": prompts,
            "sampling": [{**greedy, **each} for each in given],
            "options": {**SMALL, **options},
        }
        command = [sys.executable, "-m", "tests.serving.generate"]
        environment = {**os.environ, "VLLM_LOGGING_STREAM": "ext://sys.stderr"}  # the result is all of stdout
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, cwd=ROOT, timeout=900, env=environment
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run
