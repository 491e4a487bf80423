"""``spyre serve-bench``: a model of full size behind vLLM's scheduler, in virtual time.

The card is in timing mode: it has no values, and tokens are random. The clock of :class:`~.scheduler.SpyreScheduler`
goes on by what each step would take; requests come by it, and an idle engine waits until the next one comes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..models import presets
from ..models.errors import ModelError

PERCENTS = (50, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="a real architecture, as of spyre timing")
    parser.add_argument(
        "--rate", type=float, nargs="+", default=[1.0], help="requests per second; several are compared"
    )
    parser.add_argument("--requests", type=int, default=32, help="how many of them (default: 32)")
    parser.add_argument("--input-len", type=int, default=512, metavar="N", help="tokens of a prompt (default: 512)")
    parser.add_argument("--output-len", type=int, default=64, metavar="N", help="tokens to write (default: 64)")
    parser.add_argument("--cards", type=int, default=1, metavar="N", help="that share the model")
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N layers")
    parser.add_argument("--max-num-seqs", type=int, default=16, help="requests in a step (default: 16)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, help="tokens in a step (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="of when requests come")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="latency against load, as SVG")
    parser.set_defaults(command=_bench)


@dataclasses.dataclass
class Outcome:
    """What a load showed, in seconds of the real card."""

    rate: float
    duration: float
    tokens: int
    first: list[float]  # from a request's arrival to its first token
    between: list[float]  # tokens of a request

    def line(self) -> str:
        columns = [f"{self.rate:8.2f}", f"{self.tokens / self.duration:9.1f}"]
        columns += [f"{1000 * percentile(self.first, p):9.1f}" for p in PERCENTS]
        columns += [f"{1000 * percentile(self.between, p):9.2f}" for p in PERCENTS]
        return " ".join(columns)


HEAD = " ".join(
    [
        f"{'req/s':>8}",
        f"{'tok/s':>9}",
        *(f"{f'TTFT p{p}':>9}" for p in PERCENTS),
        *(f"{f'ITL p{p}':>9}" for p in PERCENTS),
    ]
)


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that so many percent of all are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] if ordered else 0.0


def _bench(arguments: argparse.Namespace) -> None:
    from .command_line import check_vllm

    check_vllm()
    presets.check_causal(arguments.preset)
    if min(arguments.rate) <= 0 or min(arguments.requests, arguments.input_len, arguments.output_len) < 1:
        raise ModelError("rates, requests and lengths are above 0")
    os.environ |= {"SPYRE_CARD": "timing", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="spyre-serve-bench-") as name:
        engine = Engine(Path(name), arguments)
        print(f"{arguments.preset} on {arguments.cards} card(s), times in milliseconds of the real card\n{HEAD}")
        for rate in arguments.rate:
            outcomes.append(engine.run(rate))
            print(outcomes[-1].line(), flush=True)
    if arguments.plot:
        from .plot import latency_against_load

        arguments.plot.write_text(latency_against_load(outcomes))


class Engine:
    """vLLM's engine in this process, and requests that come by its scheduler's clock."""

    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        presets.causal_configuration(arguments.preset, arguments.layers).save_pretrained(directory)
        from vllm import EngineArgs, LLMEngine

        self.arguments = arguments
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(directory),
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype="float16",
                seed=arguments.seed,
                tensor_parallel_size=arguments.cards,
                max_model_len=arguments.input_len + arguments.output_len,
                max_num_seqs=arguments.max_num_seqs,
                max_num_batched_tokens=arguments.max_num_batched_tokens,
                enable_prefix_caching=False,
            )
        )
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler

    def run(self, rate: float) -> Outcome:
        """Requests that come at random, so many in a second."""
        from vllm import SamplingParams

        arguments, clock = self.arguments, self.scheduler
        start, tokens = clock.now, 0
        chance = random.Random(arguments.seed)
        sampling = SamplingParams(max_tokens=arguments.output_len, ignore_eos=True, detokenize=False)
        waiting = self._arrivals(rate, start, chance)
        coming = next(waiting, None)
        told: dict[str, list[float]] = {}
        clock.told = told
        while coming is not None or self.engine.has_unfinished_requests():
            if coming is not None and not self.engine.has_unfinished_requests():
                clock.now = max(clock.now, coming[0])
            while coming is not None and coming[0] <= clock.now:
                at, name, prompt = coming
                clock.came[name] = at
                self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
                coming = next(waiting, None)
            tokens += sum(len(each.outputs[0].token_ids) for each in self.engine.step() if each.finished)
        from .scheduler import FIRST, NEXT

        return Outcome(rate, clock.now - start, tokens, told.get(FIRST, []), told.get(NEXT, []))

    def _arrivals(self, rate: float, start: float, chance: random.Random) -> Iterator[tuple[float, str, list[int]]]:
        at = start
        for number in range(self.arguments.requests):
            at += chance.expovariate(rate)
            yield at, f"{rate}-{number}", [chance.randrange(1, 1000) for _ in range(self.arguments.input_len)]
