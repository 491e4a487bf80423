"""Worker processes: answers, and how they are lost."""

import os

import pytest

from tests.workers import Lost, Worker

FAKE = """\
import os, time
from tests.workers import Requests
requests = Requests()
print("what it prints goes nowhere")
for request in requests:
    if request["do"] == "end": os._exit(3)
    if request["do"] == "die": os.abort()
    if request["do"] == "hang": time.sleep(600)
    if request["do"] == "read": request["found"] = os.read(0, 10).decode()
    requests.answer(request | {"process": os.getpid()})
"""


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "fake.py").write_text(FAKE)
    found = Worker("fake", environment={"PYTHONPATH": f"{tmp_path}:{os.getcwd()}"})
    yield found
    found.close()


def test_answers_come_from_one_process(worker):
    first, second = (worker.ask({"do": text}, 60) for text in ("a", "é\n"))
    assert second["do"] == "é\n" and first["process"] == second["process"]


def test_requests_are_not_standard_input(worker):
    assert worker.ask({"do": "read"}, 60)["found"] == ""


@pytest.mark.parametrize(
    ("do", "seconds", "kind", "what"),
    [
        ("end", 60, "crash", "the process ended with code 3"),
        ("die", 60, "crash", "the process died of SIGABRT"),
        ("hang", 1, "hang", "no answer in 1 seconds"),
    ],
)
def test_a_lost_process_is_named_and_another_started(worker, do, seconds, kind, what):
    before = worker.ask({"do": "a"}, 60)["process"]
    with pytest.raises(Lost, match=what) as lost:
        worker.ask({"do": do}, seconds)
    assert lost.value.kind == kind
    assert worker.ask({"do": "a"}, 60)["process"] != before
