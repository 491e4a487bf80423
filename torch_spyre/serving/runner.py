"""The model runner: vLLM's, whose batch, tables and sampling stay on the host, with a model that runs on the card."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from vllm.forward_context import get_forward_context, override_forward_context
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from .. import device as device_module
from ..constants import DEVICE_NAME
from ..progress import Progress
from .attention import CardAttention, HostTables, Step
from .blocks import compile_blocks
from .guard import OPTION, Guard
from .loading import load
from .lora import CardAdapters, adapters_of, restrict
from .mamba import CardMamba, StateStep
from .segments import Ladder, Segment, fitting


class SpyreModelRunner(CPUModelRunner):
    def __init__(self, vllm_config: Any) -> None:
        accelerator = torch.accelerator
        kept = accelerator.synchronize, accelerator.empty_cache
        super().__init__(vllm_config, torch.device("cpu"))
        accelerator.synchronize, accelerator.empty_cache = kept
        self.card = torch.device(DEVICE_NAME, device_module.current_device())
        self.guard = Guard((vllm_config.additional_config or {}).get(OPTION, "warn"))
        self.ladder = Ladder.of(self.max_num_reqs, self.max_num_tokens, self.num_spec_tokens)

    def load_model(self, load_dummy_weights: bool = False) -> None:
        self.model = load(self.vllm_config, self.card)
        self.adapters: CardAdapters | None = None
        if self.lora_config:
            restrict(self.model, self.lora_config)
            self.model = self.load_lora_model(self.model, self.vllm_config, self.device)
            self.adapters = adapters_of(self.model)
        self.layers: dict[str, CardAttention | CardMamba] = {
            name: layer
            for name, layer in self.compilation_config.static_forward_context.items()
            if isinstance(layer, CardAttention | CardMamba)
        }
        if self.is_pooling_model:
            self.model.pooler.to(self.device)  # hidden states are back on the host by then
        else:
            self._card_logits = self.model.compute_logits
            self.model.compute_logits = self.compute_logits
        if not self.model_config.enforce_eager:
            compile_blocks(self.model)

    def initialize_kv_cache_tensors(
        self, kv_cache_config: Any, kernel_block_sizes: list[int], kv_cache_allocation_context: Any = None
    ) -> dict[str, Any]:
        for group, size in zip(kv_cache_config.kv_cache_groups, kernel_block_sizes, strict=True):
            spec = group.kv_cache_spec
            blocks = kv_cache_config.num_blocks * spec.block_size // size
            for name in group.layer_names:
                if isinstance(spec, MambaSpec):
                    shapes, dtypes = spec.shapes, spec.dtypes
                else:
                    shapes, dtypes = [(size, spec.num_kv_heads, spec.head_size)] * 2, [spec.dtype] * 2
                caches = [
                    torch.zeros((blocks, *shape), dtype=dtype, device=self.card)
                    for shape, dtype in zip(shapes, dtypes, strict=True)
                ]
                self.layers[name].bind_kv_cache(caches)
                self.kv_caches.extend(caches)
        return {}

    def _init_kv_zero_meta(self) -> None:
        """vLLM zeroes blocks that had a state of another format. Here each layer has memory of its own."""

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """The same."""

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs every program that a step can need, so that serving compiles none. All tokens are padding."""
        self.threads = torch.get_num_threads()
        progress, shapes = Progress(), self.ladder.shapes()
        blocks = self.input_batch.block_table
        nothing = HostTables(torch.zeros(1), torch.zeros(0), torch.zeros(0))
        tables = {
            name: dataclasses.replace(nothing, table=torch.zeros(0, blocks[group].max_num_blocks_per_req).int())
            for group, members in enumerate(self.kv_cache_config.kv_cache_groups)
            for name in members.layer_names
        }
        none = np.zeros(0, np.int64)
        with progress.stage(f"warm-up: {len(shapes)} programs"):
            for done, (rows, queries) in enumerate(shapes):
                progress.tick(done, len(shapes))
                self._run(Segment((), rows, queries), tables, none, none, none, none)
            for rows in () if self.is_pooling_model else self.ladder.rows:
                self.compute_logits(torch.zeros(rows, self.model_config.get_hidden_size(), dtype=self.dtype))
        self.guard.armed = True

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        self._began = device_module.Event(enable_timing=True)
        self._began.record()
        return self._timed(super().execute_model(scheduler_output, intermediate_tensors))

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self._timed(super().sample_tokens(grammar_output))

    def _timed(self, output: Any) -> Any:
        """With how long the step would take on the real card, if it is over."""
        if output is not None and output is not EMPTY_MODEL_RUNNER_OUTPUT:
            ended = device_module.Event(enable_timing=True)
            ended.record()
            ended.synchronize()
            output.modelled_seconds = self._began.elapsed_time(ended) / 1000
        return output

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        assert input_ids is not None and positions is not None
        tables: dict[str, HostTables] = get_forward_context().attn_metadata
        starts = next(iter(tables.values())).starts.numpy()
        ids, where = input_ids.numpy(), positions.numpy()
        hidden = torch.zeros(len(ids), self.model_config.get_hidden_size(), dtype=self.dtype)
        for segment in self.ladder.split(np.diff(starts)):
            at, places = _places(segment, starts)
            with self.guard.step(f"A step of {segment.rows} x {segment.queries} tokens"):
                hidden[places] = self._run(segment, tables, at, places, ids[places], where[places])[at]
        return hidden

    def _run(
        self,
        segment: Segment,
        tables: dict[str, HostTables],
        at: np.ndarray,
        places: np.ndarray,
        ids: np.ndarray,
        positions: np.ndarray,
    ) -> torch.Tensor:
        """Hidden states of a segment, whose tokens lie ``at`` in it and at ``places`` in the step."""
        padded, where = (np.zeros(segment.rows * segment.queries, np.int32) for _ in range(2))
        padded[at], where[at] = ids, positions
        self._begin(segment, tables, at, places, where)
        if torch.get_num_threads() != self.threads:  # drafts change it, and programs are for one number
            torch.set_num_threads(self.threads)
        with override_forward_context(None):  # blocks would be programs for its contents
            return self.model(self._sent(padded), self._sent(where), None, None).cpu()

    def _begin(
        self, segment: Segment, tables: dict[str, HostTables], at: np.ndarray, places: np.ndarray, where: np.ndarray
    ) -> None:
        """Gives every layer what it needs of the step."""
        if self.adapters is not None:
            adapters = np.full(len(where), -1, np.int32)
            adapters[at] = self.adapters.token_lora_indices.numpy()[places]
            self.adapters.tokens = self._sent(adapters)
        steps: dict[tuple[int, Any], Step | StateStep] = {}
        for name, layer in self.layers.items():
            given = tables[name]
            if isinstance(layer, CardMamba):
                key = id(given), layer.conv_kernel_size
                if key not in steps:
                    steps[key] = self._state_step(segment, given, where, at, layer.conv_kernel_size)
            else:
                key = id(given), layer.impl.sliding_window
                if key not in steps:
                    steps[key] = self._attention_step(segment, given, where, at, places, layer)
            layer.step = steps[key]

    def _attention_step(
        self,
        segment: Segment,
        given: HostTables,
        where: np.ndarray,
        at: np.ndarray,
        places: np.ndarray,
        layer: CardAttention,
    ) -> Step:
        size, window = layer.keys.size(1), layer.impl.sliding_window
        # Padding is written to block 0, which vLLM gives to nobody.
        slots = np.arange(segment.rows * segment.queries) % size
        slots[at] = given.slots.numpy()[places]
        table = np.zeros((segment.rows, given.table.size(1)), np.int32)
        table[: len(segment.requests)] = given.table.numpy()[list(segment.requests)]
        last = where.reshape(segment.rows, 1, segment.queries, 1)
        keys = np.arange(table.shape[1] * size)
        visible = keys <= last
        if window is not None:
            visible &= keys > last - window
        return Step(
            self._sent((slots // size).astype(np.int32)),
            self._sent((slots % size).astype(np.int32)),
            self._sent(table),
            self._sent(visible),
        )

    def _state_step(
        self, segment: Segment, given: HostTables, where: np.ndarray, at: np.ndarray, width: int
    ) -> StateStep:
        counts = np.zeros((segment.rows, segment.queries, 1), np.float32)
        counts.reshape(-1)[at] = 1
        tokens = counts.sum((1, 2)).astype(np.int64)
        states = np.zeros(segment.rows, np.int32)
        states[: len(segment.requests)] = given.table.numpy()[list(segment.requests), 0]
        ends = np.arange(segment.rows) * (segment.queries + width - 1) + tokens
        return StateStep(
            self._sent(states),
            self._sent(where.reshape(segment.rows, segment.queries)[:, 0, None, None] == 0),
            self._sent(counts),
            self._sent((ends[:, None] + np.arange(width - 1)).astype(np.int32)),
        )

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.card)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows on the host; as many at a time as a step of decodes has at most."""
        found = []
        for rows in hidden.split(self.ladder.rows[-1]):
            padded = rows.new_zeros(fitting(self.ladder.rows, len(rows)), rows.size(1))
            padded[: len(rows)] = rows
            with self.guard.step(f"Logits of {len(padded)} tokens"):
                found.append(self._card_logits(padded.to(self.card)).cpu()[: len(rows)])
        return torch.cat(found)


def _places(segment: Segment, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the tokens of its requests lie in the segment, and where in the step."""
    counts = [starts[r + 1] - starts[r] for r in segment.requests]
    at = [row * segment.queries + np.arange(n) for row, n in enumerate(counts)]
    places = [np.arange(starts[r], starts[r + 1]) for r in segment.requests]
    return np.concatenate(at), np.concatenate(places)
