"""Modelled times in vLLM's metrics endpoint: histograms ``spyre:modelled_*_seconds``."""

from __future__ import annotations

import json
from typing import Any

import prometheus_client
from vllm.v1.metrics.loggers import StatLoggerBase

from .scheduler import FIRST, NEXT, QUEUE, STEP

NAMES = {
    STEP: ("spyre:modelled_step_seconds", "a step of the engine on the real card"),
    QUEUE: ("spyre:modelled_queue_seconds", "what a request waits until it is scheduled"),
    FIRST: ("spyre:modelled_time_to_first_token_seconds", "from a request's arrival to its first token"),
    NEXT: ("spyre:modelled_inter_token_latency_seconds", "between two tokens of a request"),
}
BUCKETS = [base * 10.0**exponent for exponent in range(-5, 2) for base in (1, 2, 5)]


def told(scheduler_stats: Any) -> dict[str, list[float]]:
    """What the scheduler tells of a step, by what it is; nothing where it is not ours."""
    stats = getattr(scheduler_stats, "cudagraph_stats", None)
    return json.loads(stats.runtime_mode) if stats is not None and stats.runtime_mode.startswith("{") else {}


class ModelledTimes(StatLoggerBase):
    """A logger of statistics, which vLLM finds through the entry point ``vllm.stat_logger_plugins``."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.labels = {"model_name": str(vllm_config.model_config.served_model_name), "engine": str(engine_index)}

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        for what, values in told(scheduler_stats).items():
            for value in values:
                _histogram(what).labels(**self.labels).observe(value)

    def log_engine_initialized(self) -> None:
        pass


_made: dict[str, Any] = {}


def _histogram(what: str) -> Any:
    """One for all engines: when one starts, vLLM drops the metrics that it takes for its own, and these are not."""
    if what not in _made:
        name, said = NAMES[what]
        labels = ["model_name", "engine"]
        _made[what] = prometheus_client.Histogram(name, said + ", by the model of the card", labels, buckets=BUCKETS)
    return _made[what]
