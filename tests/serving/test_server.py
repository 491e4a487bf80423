"""A server process of ``spyre serve`` with the model in the box, by HTTP and OpenAI's client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PROMPT = "Upon the quarter-deck, Ahab"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
OPTIONS = {
    "--max-model-len": "256",
    "--max-num-seqs": "4",
    "--max-num-batched-tokens": "64",
    "--chat-template": TEMPLATE,
    "--tool-call-parser": "hermes",
    "--num-gpu-blocks-override": "10",
}


class Server:
    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        given = [each for pair in OPTIONS.items() for each in pair]
        command = [sys.executable, "-m", "torch_spyre.cli", "serve", "--port", str(self.port), *given]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [*command, "--enable-auto-tool-choice"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        for _ in range(2400):
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(self.log.read_text()[-4000:])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps({"model": "box", **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def complete(self, **body: Any) -> str:
        given = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **body}
        return self.post("/v1/completions", **given)["choices"][0]["text"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server") / "log")
    try:
        started.wait()
        yield started
    finally:
        started.process.terminate()
        started.process.wait(60)


def test_what_openais_client_asks_for(server: Server) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    plain = server.complete()
    stream = client.completions.create(model="box", prompt=PROMPT, max_tokens=12, temperature=0, stream=True)
    assert "".join(each.choices[0].text for each in stream) == plain
    chat = client.chat.completions.create(
        model="box", messages=[{"role": "user", "content": PROMPT}], max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert chat.choices[0].logprobs and len(chat.choices[0].logprobs.content or []) == 8
    properties = {"deck": {"type": "string", "enum": ["main", "lower"]}}
    parameters = {"type": "object", "properties": properties, "required": ["deck"], "additionalProperties": False}
    tool: Any = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    called = client.chat.completions.create(
        model="box",
        messages=[{"role": "user", "content": PROMPT}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "go"}},
        max_tokens=60,
        temperature=0,
    )
    (call,) = called.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["deck"] in ("main", "lower"), call  # type: ignore[union-attr]


def test_requests_that_are_none_and_clients_that_leave(server: Server) -> None:
    plain = server.complete()
    for body in ({"prompt": PROMPT, "max_tokens": -1}, {"prompt": [10**9]}, {"prompt": "a " * 2000}, {"prompt": 3}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/v1/completions", **body)
        assert 400 <= refused.value.code < 500
    body = json.dumps({"model": "box", "prompt": PROMPT, "max_tokens": 200, "stream": True, "ignore_eos": True})
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(f"{head}\r\n\r\n{body}".encode())
        client.recv(64)
    assert server.complete() == plain


def test_more_requests_than_the_cache_has_room_for(server: Server) -> None:
    prompts = [f"{PROMPT} {word}" for word in ("saw", "went", "stood", "cried", "heard", "took")]
    with ThreadPoolExecutor(6) as clients:
        together = list(
            clients.map(lambda each: server.complete(prompt=each, max_tokens=180, ignore_eos=True), prompts)
        )
    assert together[0] == server.complete(prompt=prompts[0], max_tokens=180, ignore_eos=True)
    assert all(together)


def test_metrics_have_modelled_times(server: Server) -> None:
    server.complete()
    found = server.get("/metrics")
    for name in ("step", "queue", "time_to_first_token", "inter_token_latency"):
        counted = [line for line in found.splitlines() if line.startswith(f"spyre:modelled_{name}_seconds_count")]
        assert counted and float(counted[0].split()[-1]) > 0, name
    spent = next(line for line in found.splitlines() if line.startswith("spyre:modelled_step_seconds_sum"))
    assert float(spent.split()[-1]) > 0


def test_the_end_lets_requests_finish(tmp_path: Path) -> None:
    server = Server(tmp_path / "log")
    server.wait()
    with ThreadPoolExecutor(1) as clients:
        last = clients.submit(server.complete, max_tokens=150, ignore_eos=True)
        while "vllm:num_requests_running" in (found := server.get("/metrics")) and not any(
            line.startswith("vllm:num_requests_running") and float(line.split()[-1]) for line in found.splitlines()
        ):
            time.sleep(0.02)
        os.kill(server.process.pid, signal.SIGTERM)
        assert len(last.result(60)) > 100
    assert server.process.wait(60) == 0
