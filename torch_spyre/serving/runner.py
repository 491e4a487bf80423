"""The model runner: vLLM's, whose batch, tables and sampling stay on the host, with a model that runs on the card."""

from __future__ import annotations

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
from .attention import CardAttention, HostTables
from .blocks import compile_blocks
from .guard import OPTION, Guard
from .loading import load
from .lora import CardAdapters, adapters_of, restrict
from .mamba import CardMamba
from .segments import Aligned, Mixed, fitting, sizes
from .steps import Layers, Tokens, give, sent


class SpyreModelRunner(CPUModelRunner):
    def __init__(self, vllm_config: Any) -> None:
        accelerator = torch.accelerator
        kept = accelerator.synchronize, accelerator.empty_cache
        super().__init__(vllm_config, torch.device("cpu"))
        accelerator.synchronize, accelerator.empty_cache = kept
        self.card = torch.device(DEVICE_NAME, device_module.current_device())
        self.guard = Guard((vllm_config.additional_config or {}).get(OPTION, "warn"))
        self.rows = sizes(1, self.max_num_reqs)  # whose logits are computed at a time

    def load_model(self, load_dummy_weights: bool = False) -> None:
        self.model = load(self.vllm_config, self.card)
        self.adapters: CardAdapters | None = None
        if self.lora_config:
            restrict(self.model, self.lora_config)
            self.model = self.load_lora_model(self.model, self.vllm_config, self.device)
            self.adapters = adapters_of(self.model)
        self.layers: Layers = {
            name: layer
            for name, layer in self.compilation_config.static_forward_context.items()
            if isinstance(layer, CardAttention | CardMamba)
        }
        self.ladder: Mixed | Aligned = Mixed(self.max_num_reqs, sizes(1, self.max_num_tokens))
        if any(isinstance(layer, CardMamba) for layer in self.layers.values()):
            self.ladder = Aligned(self.rows, 1 + self.num_spec_tokens, sizes(32, self.max_num_tokens))
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
        progress, programs = Progress(), self.ladder.programs()
        blocks = self.input_batch.block_table
        tables = {
            name: HostTables(none, torch.zeros(0, blocks[group].max_num_blocks_per_req).int(), none)
            for group, members in enumerate(self.kv_cache_config.kv_cache_groups)
            for none, name in ((torch.zeros(0), name) for name in members.layer_names)
        }
        with progress.stage(f"warm-up: {len(programs)} programs"):
            for done, segment in enumerate(programs):
                progress.tick(done, len(programs))
                self._run(Tokens.none(segment), tables)
            for rows in () if self.is_pooling_model else self.rows:
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
            tokens = Tokens.taken(segment, starts, ids, where)
            with self.guard.step(f"A step of {segment.tokens} tokens"):
                hidden[tokens.of] = self._run(tokens, tables)[tokens.at]
        return hidden

    def _run(self, tokens: Tokens, tables: dict[str, HostTables]) -> torch.Tensor:
        """Hidden states of all tokens of a program."""
        give(self.layers, self.adapters, tokens, tables, self.card)
        if torch.get_num_threads() != self.threads:  # drafts change it, and programs are for one number
            torch.set_num_threads(self.threads)
        with override_forward_context(None):  # blocks would be programs for its contents
            return self.model(sent(tokens.ids, self.card), sent(tokens.positions, self.card), None, None).cpu()

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows on the host; as many at a time as a step of decodes has at most."""
        found = []
        for rows in hidden.split(self.rows[-1]):
            padded = rows.new_zeros(fitting(self.rows, len(rows)), rows.size(1))
            padded[: len(rows)] = rows
            with self.guard.step(f"Logits of {len(padded)} tokens"):
                found.append(self._card_logits(padded.to(self.card)).cpu()[: len(rows)])
        return torch.cat(found)
