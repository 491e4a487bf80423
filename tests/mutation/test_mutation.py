"""Damaged inputs of everything that is parsed, and whether the fuzzer would notice."""

import json
import random
from collections import Counter

import pytest

from tests.mutation import cases, driver, mutators, targets, worker
from tests.mutation.card import Differs, get, leave_traces, put, twice
from tests.mutation.driver import Failure, Pair
from tests.mutation.targets import Refused, refusals
from tests.workers import Lost

SEED = {"name": "k", "sizes": [128, 256], "steps": [{"op": "copy", "scale": 0.5, "checked": True}], "data": b"abcdef"}
EXTREMES = (0, -1, 2**31, 2**62, 2**63 - 1)


@pytest.mark.timeout(1800)
def test_cases():
    """The same ones every time; ``make nightly`` runs others."""
    pytest.importorskip("transformers")
    summary = driver.run(range(2000), seed=0)
    assert not summary.failures, "\n".join([str(summary), *driver.report(summary, driver.OUT)])
    assert summary.count == 2000
    for kind, outcomes in summary.outcomes.items():  # damage is small enough for some to run, and large enough
        assert outcomes["ok"] > 0, kind
        assert outcomes["refused"] > 0 or kind == "plans", kind


def test_kinds_have_their_shares():
    assert Counter(cases.kind_of(number) for number in range(300, 400)) == cases.SHARES
    assert cases.SHARES.keys() == targets.TARGETS.keys()


def test_a_case_follows_from_its_number():
    corpus = {"program": [SEED]}
    first = [cases.dumps(cases.make(corpus, "program", 0, number).input) for number in range(200)]
    assert first == [cases.dumps(cases.make(corpus, "program", 0, number).input) for number in range(200)]
    assert len(set(first)) > 100
    other = [cases.dumps(cases.make(corpus, "program", 1, number).input) for number in range(200)]
    assert first != other
    assert SEED["sizes"] == [128, 256]  # seeds are not touched


def test_damages_reach_everything():
    """Of every part of an input there is a case that has it otherwise."""
    found: set[str] = set()
    for number in range(2000):
        with cases.deep_stack():
            damaged = mutators.mutated(random.Random(number), SEED, [SEED])
        if not isinstance(damaged, dict):
            found.add("root")
            continue
        found |= {key for key in SEED if damaged.get(key) != SEED[key]}
        sizes = damaged.get("sizes")
        found |= {f"size {size}" for size in EXTREMES if isinstance(sizes, list) and size in sizes}
        if isinstance(sizes, list) and len(sizes) > 1000:
            found.add("many")
    assert found >= {"root", "many", *SEED, *(f"size {size}" for size in EXTREMES)}


def test_saved_cases_are_the_same(tmp_path):
    nested: list = []
    for _ in range(mutators.DEPTH):
        nested = [nested]
    case = cases.Case("program", 7, {"bytes": b"\0\xff", "nested": nested, "nan": float("inf")})
    cases.save(tmp_path / "out" / "case.json", case, "crash", "it died")
    with cases.deep_stack():
        assert cases.load(tmp_path / "out" / "case.json") == case


@pytest.fixture
def target(monkeypatch):
    """Puts a function in the place of a target and gives the outcome."""

    def outcome(function) -> dict:
        monkeypatch.setitem(targets.TARGETS, "program", function)
        return worker.run(cases.Case("program", 0, None))

    return outcome


def _raise(error: Exception):
    def function(_):
        raise error

    return function


def test_outcomes(target):
    assert target(lambda _: "bits") == {"outcome": "ok", "bits": "bits"}
    assert target(_raise(Refused("no"))) == {"outcome": "refused", "what": "no"}
    assert target(_raise(Differs("other bits"))) == {"outcome": "failure", "kind": "values", "what": "other bits"}


@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError("deep"), MemoryError(), AttributeError("y"), OSError()]
)
def test_errors_that_are_not_meant_for_it_are_failures(target, error):
    def function(_):
        with refusals(ValueError):
            raise error

    found = target(function)
    assert (found["outcome"], found["kind"]) == ("failure", "error") and type(error).__name__ in found["what"]


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ValueError("program 'k', step 0: extents are negative"), True),
        (ValueError("vector::_M_default_append"), False),
        (ValueError("basic_string::substr: __pos"), False),
        (ValueError(""), False),
        (json.JSONDecodeError("a kind of ValueError", "", 0), False),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "a kind of ValueError"), False),
    ],
)
def test_refusals_have_a_name_and_say_something(error, refused):
    with pytest.raises(Refused if refused else type(error)), refusals(ValueError):
        raise error


def test_memory_that_grows_is_a_failure(target, monkeypatch):
    peaks = iter([0, 2 << 30])
    monkeypatch.setattr(worker, "_peak", lambda: next(peaks))
    assert target(lambda _: "bits")["what"] == "took 2048 MiB"


def test_results_that_depend_on_what_ran_before_are_found():
    answers = iter(["1", "2"])
    with pytest.raises(Differs):
        twice(lambda: next(answers))
    assert twice(lambda: "1") == "1"


def test_bytes_on_the_card_are_those_that_were_put_there():
    leave_traces()
    assert get(put(b"abc" * 100)) == b"abc" * 100 + bytes(84)
    assert get(put(b"")) == b""


class FakeWorker:
    def __init__(self, answer):
        self.answer = answer

    def send(self, request):
        pass

    def receive(self, seconds):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self):
        pass


OK, REFUSED = {"outcome": "ok", "bits": "1"}, {"outcome": "refused", "what": "no"}


@pytest.mark.parametrize(
    ("run", "strict", "outcome", "kind"),
    [
        (OK, OK, "ok", None),
        (REFUSED, REFUSED, "refused", None),
        (OK, REFUSED, "refused by one mode", None),
        (OK, OK | {"bits": "2"}, "failure", "modes"),
        (OK, Lost("hang", "no answer"), "failure", "hang"),
        (Lost("crash", "SIGSEGV"), REFUSED, "failure", "crash"),
        (REFUSED, {"outcome": "failure", "kind": "error", "what": "KeyError"}, "failure", "error"),
    ],
)
def test_modes_are_compared(tmp_path, run, strict, outcome, kind):
    pair = Pair(tmp_path, None)
    pair._workers = {"run": FakeWorker(run), "strict": FakeWorker(strict)}
    found, failure = pair.run({"kind": "program", "number": 3, "input": '{"x": 1}'})
    assert found == outcome and (failure.kind if failure else None) == kind
    if failure:
        assert failure.case == cases.Case("program", 3, {"x": 1})


def test_few_of_each_cause_are_saved(tmp_path):
    summary = driver.Summary({"program": Counter(failure=6, ok=4)})
    for number in range(5):
        what = f"KeyError: 'name {number}' at line {number}"
        summary.failures.append(Failure(cases.Case("program", number, []), "error", what, "run"))
    summary.failures.append(Failure(cases.Case("program", 9, []), "crash", "SIGSEGV", "run"))
    assert len({failure.cause() for failure in summary.failures}) == 2
    lines = driver.report(summary, tmp_path)
    assert len(lines) == 4 and "--replay" in lines[0]
    assert "5 x program, run: error: KeyError: # at line #" in str(summary)
    assert json.loads(summary.to_json()) == {"passed": 4, "failed": 6, "skipped": 0}
