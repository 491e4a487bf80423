"""``spyre run``: a model as it is on disk, on the card, writing text, and what that says of the real card."""

from __future__ import annotations

import argparse
import copy
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from . import limits, presets, ranks
from .command_line import (
    add_trust,
    check_there,
    compiler_at_work,
    ended_by_a_signal,
    failures_of_the_model,
    import_models,
    need_transformers,
    refusals_of_the_card,
    started_card,
    without_warnings,
)
from .errors import ModelError

if TYPE_CHECKING:
    import torch

    from .generation import Generated, Step
    from .loading import Source
    from .tensor_parallel import Place

BOX_PROMPT = "Upon the quarter-deck, Ahab"
PRESET_PROMPT_LENGTH = 128
DTYPES = ("float16", "bfloat16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, nargs="?", help="a Hugging Face directory; none: the small model in the box"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="a real architecture with random weights, instead of a directory"
    )
    parser.add_argument("--layers", type=int, metavar="N", help="of a preset: only the first N layers")
    parser.add_argument(
        "--cards", type=int, default=1, metavar="N", help="that share the model: a process for each (default: 1)"
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="text to go on from")
    prompt.add_argument("--prompt-length", type=int, metavar="N", help="a prompt of N random tokens instead")
    parser.add_argument("--chat", action="store_true", help="a conversation, line by line from standard input")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default: the most likely token always")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of sampling, of random weights and of random prompts")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the weights on the card")
    forward = parser.add_mutually_exclusive_group()
    forward.add_argument("--eager", dest="compile", action="store_false", help="op by op: starts at once (the default)")
    forward.add_argument("--compile", action="store_true", help="one program per forward: starts later, runs faster")
    parser.add_argument(
        "--compare", choices=("cpu",), help="run the same on the CPU in fp32 and say how far apart they are"
    )
    add_trust(parser)
    parser.add_argument("--mode", choices=("run", "timing", "strict"), help="of the card; timing: no values, no memory")
    parser.set_defaults(command=run, compile=False)


def run(arguments: argparse.Namespace) -> None:
    """Loads, generates, reports."""
    _check(arguments)
    if arguments.cards > 1:
        ranks.run(arguments)
    else:
        _run(arguments, Progress(), nullcontext())


def run_member(arguments: argparse.Namespace, directory: Path) -> None:
    """The same as one of several cards, each with its part of the model. The first one shows what happens."""
    with open(os.devnull, "w") as nowhere:
        first = os.environ["RANK"] == "0"
        _run(arguments, Progress(None if first else nowhere), ranks.world(directory))


def _run(arguments: argparse.Namespace, progress: Progress, world: AbstractContextManager[Place | None]) -> None:
    if arguments.mode:
        os.environ["SPYRE_CARD"] = arguments.mode
    with progress.stage("starting"):
        mode = started_card()
        import_models()
    from . import report

    if arguments.mode not in (None, mode):
        raise ModelError(f"the card of this process has started in mode {mode} and cannot change it")
    if mode == "timing" and (arguments.compare or arguments.chat):
        raise ModelError("timing computes no values, and neither --compare nor --chat can do without")
    with ended_by_a_signal(), without_warnings(), failures_of_the_model(), refusals_of_the_card(), world as place:
        session = _Session(arguments, mode == "timing", progress, place)
        if arguments.chat:
            if session.tokenizer is None:
                raise ModelError(f"{session.source.name} has no tokenizer to chat with")
            session.load()
            generated = session.converse()
        else:
            prompt = session.first_prompt()
            session.room(prompt)  # a prompt that does not fit is refused before minutes of loading
            session.load()
            generated = session.write(prompt)
        if generated is not None:
            machine = report.Machine.now()
            divergence = session.compare(generated) if arguments.compare else None
            cards = ranks.CardFacts.now().of_all() if place else []
            print("\n" + report.text(session.source.name, session.size, generated, machine, divergence, cards))


class _Session:
    """A model and its tokenizer, as the command line says."""

    def __init__(self, arguments: argparse.Namespace, timing: bool, progress: Progress, place: Place | None) -> None:
        import torch

        from . import loading

        self.arguments, self.timing, self.progress, self.place = arguments, timing, progress, place
        self.source = self._source()
        self.tokenizer = loading.load_tokenizer(self.source)
        self.dtype: torch.dtype = getattr(torch, arguments.dtype)
        self.reference: Any | None = None
        self.size = 0  # parameters of the whole model

    def load(self) -> None:
        self.model = self._conjured() if self.timing else self._loaded()

    def _source(self) -> Source:
        from . import loading

        if self.arguments.preset:
            return loading.from_preset(self.arguments.preset, self.arguments.layers)
        directory, trusted = self.arguments.model or loading.BOX, self.arguments.trust_remote_code
        return loading.from_directory(directory, weights_wanted=not self.timing, trusted=trusted)

    def _conjured(self) -> Any:
        from . import loading

        with self.progress.stage("laying out the model"):
            self.size = _parameters(loading.outline(self.source))
            return loading.conjure(self.source, self.dtype, self.place)

    def _loaded(self) -> Any:
        import torch

        from . import loading, tensor_parallel

        compared = bool(self.arguments.compare)
        dtype = torch.float32 if compared else self.dtype
        cards, on_card, on_host = self.arguments.cards, self.dtype.itemsize, 2 * dtype.itemsize
        if self.place and loading.is_read_in_parts(self.source):
            with self.progress.stage("loading"):
                loading.check_size(self.source, on_card, on_card, cards)
                self.size = _parameters(loading.outline(self.source))
                return loading.load_part(self.source, self.dtype, self.place, self.progress.tick)
        with self.progress.stage("loading"):
            loading.check_size(self.source, on_card, on_host * cards, cards)  # each process has all of it for a while
            model = loading.load(self.source, dtype, self.arguments.seed)
            self.size = _parameters(model)
            if self.place:
                tensor_parallel.shard(model, self.place)
        with self.progress.stage("to the card"):
            if compared:
                self.reference, model = model, copy.deepcopy(model)
            return loading.to_card(model, self.dtype, self.progress.tick)

    def first_prompt(self) -> list[int]:
        """What the command line asks to go on from: text, or random tokens, or what suits the model."""
        import torch

        length = self.arguments.prompt_length
        if length is None and self.arguments.prompt is not None:
            return self.encode(self.arguments.prompt)
        if length is None and self.source.directory is not None:
            if self.arguments.model:
                raise ModelError("a model needs something to go on from: --prompt, --prompt-length or --chat")
            return self.encode(BOX_PROMPT)
        generator = torch.Generator().manual_seed(self.arguments.seed)
        return torch.randint(self.source.vocabulary, (length or PRESET_PROMPT_LENGTH,), generator=generator).tolist()

    def encode(self, text: str) -> list[int]:
        """Tokens of a text. Where there is no tokenizer its bytes stand for them."""
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(f"the prompt is no text in UTF-8: {error}") from error
        with limits.bounded(f"the tokenizer of {self.source.name}"):
            tokens: list[int] = list(encoded) if self.tokenizer is None else self.tokenizer.encode(text)
        if not tokens:
            raise ModelError("the prompt is empty: a model needs at least one token to go on from")
        vocabulary = self.source.vocabulary
        if max(tokens) >= vocabulary:
            whose = "no tokenizer, and bytes" if self.tokenizer is None else "a tokenizer whose tokens"
            raise ModelError(f"{self.source.name} has {whose} go beyond its vocabulary of {vocabulary}")
        return tokens

    def converse(self) -> Generated | None:
        """Answers line by line until the input ends. Gives the last answer."""
        generated = None
        turns: list[dict[str, str]] = []
        for line in _lines(self.arguments.prompt):
            turns.append({"role": "user", "content": line})
            prompt = self._conversation(turns)
            try:
                self.room(prompt)
            except ModelError as full:
                if generated is None:
                    raise
                print(f"the conversation ends here: {full}", file=sys.stderr)
                break
            generated = self.write(prompt, echo=False)
            turns.append({"role": "assistant", "content": self.decode(generated.tokens)})
        return generated

    def _conversation(self, turns: list[dict[str, str]]) -> list[int]:
        assert self.tokenizer is not None
        if not self.tokenizer.chat_template:
            return self.encode("\n\n".join(turn["content"].strip() for turn in turns))
        try:
            with limits.bounded(f"the chat template of {self.source.name}"):
                return list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        except ModelError:
            raise
        except Exception as error:  # whatever a template raises
            raise ModelError(f"the chat template of {self.source.name} does not take this: {error}") from error

    def decode(self, tokens: list[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        with limits.bounded(f"the tokenizer of {self.source.name}"):
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def room(self, prompt: list[int]) -> int:
        """How many tokens may follow a prompt."""
        count: int = min(self.arguments.max_new_tokens, self.source.context - len(prompt))
        if count < 1:
            raise ModelError(
                f"the prompt has {len(prompt)} tokens and {self.source.name} a context of {self.source.context}: "
                "there is no room for an answer"
            )
        return count

    def write(self, prompt: list[int], echo: bool = True) -> Generated:
        """Generates, and prints tokens as they come."""
        from . import generation

        arguments, count = self.arguments, self.room(prompt)
        sampling = generation.Sampling(arguments.temperature, arguments.top_p, arguments.seed)
        stop = frozenset() if self.timing else _stop_tokens(self.model)
        steps = generation.generate(self.model, prompt, count, sampling, stop, arguments.compile)
        generated = generation.Generated(prompt)
        if self.timing:
            self._time(steps, count, generated)
        else:
            self._stream(steps, generated, echo)
        return generated

    def _time(self, steps: Iterator[Step], count: int, generated: Generated) -> None:
        generated.steps += self._opening(steps)
        with self.progress.stage("timing"):
            for step in steps:
                generated.steps.append(step)
                self.progress.tick(len(generated.steps), count)

    def _stream(self, steps: Iterator[Step], generated: Generated, echo: bool) -> None:
        """Prints what is new in the text of all tokens: that of a single token may be half a character."""
        start = generated.prompt if echo else []
        printed, text = 0, ""
        for step in chain(self._opening(steps), steps):
            generated.steps.append(step)
            text = self.decode([*start, *generated.tokens])
            whole = len(text.rstrip("\ufffd"))
            print(text[printed:whole], end="", flush=True)
            printed = max(printed, whole)
        print(text[printed:])

    def _opening(self, steps: Iterator[Step]) -> list[Step]:
        """The tokens before which a person waits: kernels are made, for the prompt and, if compiled, for a step."""
        if not self.arguments.compile:
            return [self._read_prompt(steps)]
        opening: list[Step] = []
        for name in ("compiling for the prompt", "compiling for a token"):
            with self.progress.stage(name, compiler_at_work(threading.get_ident())):
                opening += islice(steps, 1)
        return opening

    def _read_prompt(self, steps: Iterator[Step]) -> Step:
        """The first token, with a bar that follows it through the layers."""
        from . import loading

        layers = loading.decoder_layers(self.model)
        with self.progress.stage("reading the prompt"):
            hooks = [
                layer.register_forward_hook(lambda *_, done=done: self.progress.tick(done, len(layers)))
                for done, layer in enumerate(layers, 1)
            ]
            try:
                return next(steps)
            finally:
                for hook in hooks:
                    hook.remove()

    def compare(self, generated: Generated) -> Any:
        from . import divergence

        with self.progress.stage("comparing with the CPU"):
            return divergence.compare(self.reference, self.model, generated.prompt, generated.tokens, generated.logits)


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what contradicts itself, before anything is imported."""
    if arguments.model and arguments.preset:
        raise ModelError("a directory and a preset are two models: name one of them")
    if arguments.layers is not None and not arguments.preset:
        raise ModelError("--layers is for presets: the layers of a model on disk depend on each other")
    if arguments.cards < 1:
        raise ModelError(f"--cards {arguments.cards}: it has to be at least 1")
    if arguments.cards > 1 and (arguments.compare or arguments.chat):
        raise ModelError("--compare and --chat are for one card")
    for option in ("max_new_tokens", "prompt_length"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ModelError(f"--{option.replace('_', '-')} {value} is no number of tokens")
    if not 0 <= arguments.temperature < inf or not 0 < arguments.top_p <= 1:
        raise ModelError("--temperature is at least 0, and --top-p between 0 and 1")
    if not 0 <= arguments.seed < 2**63:
        raise ModelError(f"--seed {arguments.seed} is no number of 63 bits")
    if arguments.model:
        check_there(arguments.model)
    if arguments.preset:
        presets.check_causal(arguments.preset)
    need_transformers("spyre run")


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _stop_tokens(model: Any) -> frozenset[int]:
    stops = model.generation_config.eos_token_id
    given = stops if isinstance(stops, list) else [] if stops is None else [stops]
    if not all(isinstance(token, int) for token in given):
        raise ModelError(f"the model's eos_token_id is {stops!r}, which is no token")
    return frozenset(given)


def _lines(first: str | None) -> Iterator[str]:
    """What a person says: ``first``, then standard input line by line."""
    if first is not None:
        yield first
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ModelError(f"standard input is no text in UTF-8: {error}") from error
        if not line:
            return
        if line.strip():
            yield line.strip()
