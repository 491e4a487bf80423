"""A process that runs cases, in one mode of the card: see :mod:`tests.workers`."""

from __future__ import annotations

import resource
import traceback
from pathlib import Path
from typing import Any

from tests.workers import Requests

SPACE = 4 << 30  # bytes of address space that a case may ask for
GROWTH = 1 << 30  # bytes of memory that a case may take


def main() -> None:
    requests = Requests()
    import torch

    from tests.mutation import caches, cases, seeds

    torch.set_num_threads(1)
    torch.spyre.set_downcast_warning(False)
    torch.empty(1, device="spyre")  # the card reserves its address space
    corpus: dict[str, list[Any]] = {}
    for request in requests:
        if "corpus" in request:
            Path(request["corpus"]).write_text(cases.dumps(seeds.corpus()))
            requests.answer({})
            continue
        if "seeds" in request:
            corpus = cases.loads(Path(request["seeds"]).read_text())
            caches.texts.update(corpus.pop("texts")[0])
            _limit()
            requests.answer({})
            continue
        if "input" in request:
            case = cases.Case(request["kind"], request["number"], cases.loads(request["input"]))
        else:
            case = cases.make(corpus, request["kind"], request["seed"], request["number"])
        answer = run(case)
        if answer["outcome"] == "failure":
            answer["input"] = cases.dumps(case.input)
        requests.answer(answer)


def run(case: Any) -> dict[str, Any]:
    """The outcome of a case: ok with bits, refused, or failure with its kind and what was seen."""
    import torch

    from tests.mutation.card import Differs
    from tests.mutation.targets import TARGETS, Refused

    before = _peak()
    try:
        answer = {"outcome": "ok", "bits": TARGETS[case.kind](case.input)}
    except Refused as error:
        answer = {"outcome": "refused", "what": str(error)[:300]}
    except Differs as error:
        answer = _failure("values", str(error))
    except Exception as error:
        answer = _failure("error", f"{type(error).__name__}: {str(error)[:300]} ({_where(error)})")
    try:
        torch.spyre.synchronize()
    except Exception as error:
        answer = _failure("error", f"left behind: {type(error).__name__}: {str(error)[:300]}")
    if (grown := _peak() - before) > GROWTH:
        answer = _failure("memory", f"took {grown >> 20} MiB")
    return answer


def _failure(kind: str, what: str) -> dict[str, Any]:
    return {"outcome": "failure", "kind": kind, "what": what}


def _where(error: Exception) -> str:
    """The last line of the package, or of the tests where it called into C++."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "torch_spyre" in frame.filename or "tests" in frame.filename]
    last = ours[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


def _limit() -> None:
    """The card has reserved its address space; from here on there is little more."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
