"""vLLM's scheduler, with a second clock: how long requests would wait on the real card."""

from __future__ import annotations

import json
from typing import Any

from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.v1.core.sched.scheduler import Scheduler

STEP, QUEUE, FIRST, NEXT = "step", "queue", "first_token", "inter_token"


class SpyreScheduler(Scheduler):
    """The clock goes on while the card works, by the time that the model of the card gives each step. Requests are
    stamped with it: when they come, when they are scheduled first, and with each of their tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = 0.0
        self.came: dict[str, float] = {}
        self.told: dict[str, list[float]] | None = None  # all that was told, where somebody wants it
        self._last: dict[str, float] = {}
        self._waits: list[float] = []

    def add_request(self, request: Any) -> Any:
        self.came.setdefault(request.request_id, self.now)
        return super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        self._waits += [self.now - self.came.get(each.req_id, self.now) for each in output.scheduled_new_reqs]
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        seconds = getattr(model_runner_output, "modelled_seconds", 0.0)
        self.now += seconds
        told: dict[str, list[float]] = {STEP: [seconds], QUEUE: self._waits, FIRST: [], NEXT: []}
        self._waits = []
        for request, tokens in zip(model_runner_output.req_ids, model_runner_output.sampled_token_ids, strict=False):
            if not tokens:
                continue
            if request in self._last:
                told[NEXT] += [(self.now - self._last[request]) / len(tokens)] * len(tokens)
            else:
                told[FIRST].append(self.now - self.came.get(request, self.now))
            self._last[request] = self.now
        if self.told is not None:
            for what, values in told.items():
                self.told.setdefault(what, []).extend(values)
        if seconds:
            # The one field of vLLM's statistics that a runner fills and that nothing else here uses.
            model_runner_output.cudagraph_stats = CUDAGraphStat(0, 0, 0, json.dumps(told))
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.came.pop(request.request_id, None)
        self._last.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)
