"""Measures one architecture, in a process of its own: ``python -m tests.models.measure KEY run|timing`` prints JSON."""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from torch_spyre.card import description
from torch_spyre.model_utils import load_model_to_spyre

from .architectures import NEW, PREFILL, PROMPT, Architecture, error_of, load, relative_error

HALF = torch.float16
LEAF_ROUNDINGS = 8  # the most of a module without children: gelu by tanh


# --- run: the tiny model computes, and is compared


def run(architecture: Architecture) -> dict[str, Any]:
    torch.manual_seed(0)
    host, card = architecture.build("tiny", torch.float32), architecture.build("tiny", HALF).to("spyre")
    card.load_state_dict(host.state_dict())
    host.load_state_dict({name: back(value) for name, value in card.state_dict().items()})  # as rounded by the card
    inputs = architecture.inputs(host.config, PROMPT)
    torch.spyre.fallback("count")
    with torch.no_grad():
        found = {"modules": modules(architecture, host, card, inputs)}
        torch.spyre.reset_fallback_counts()
        with OpsSeen() as seen:
            found["whole"] = whole(architecture, host, card, inputs)
            if architecture.generates:
                found["tokens"] = tokens(architecture, host, card, inputs)
        fallbacks = set(torch.spyre.fallback_counts())
        found["ops"] = {"native": len(seen.names - fallbacks), "fallback": sorted(fallbacks)}
        found["compiled"] = compiled(architecture, host, card, inputs)
    return found


def sent(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to("spyre", HALF) if value.is_floating_point() else value.to("spyre")


def back(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.cpu().float() if value.is_floating_point() else value.cpu()


class OpsSeen(TorchDispatchMode):
    """Which ops reach the device; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        devices = {x.device.type for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)}
        if "spyre" in devices and not op.is_view:
            self.names.add(op.name())
        return result


def result_of(output: Any) -> Tensor:
    """The tensor that a model or module is asked for."""
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return next(x for x in tree_leaves(output) if isinstance(x, Tensor))


def modules(architecture: Architecture, host: Any, card: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Every submodule on its own: the card's with the inputs that it had in the host's model, against the host's."""
    calls: dict[str, tuple[Any, Any]] = {}

    def noting(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: calls.setdefault(name, (args, kwargs)) and None

    hooks = [m.register_forward_pre_hook(noting(n), with_kwargs=True) for n, m in host.named_modules() if n]
    host(**inputs, **no_cache(architecture))
    for hook in hooks:
        hook.remove()
    wrong = []
    for name, call in calls.items():
        args, kwargs = tree_map(sent, call)
        try:
            got = result_of(card.get_submodule(name)(*args, **kwargs))
            args, kwargs = tree_map(back, (args, kwargs))
            want = result_of(host.get_submodule(name)(*args, **kwargs))
            error, allowed = relative_error(back(got), want), module_tolerance(architecture, host.get_submodule(name))
        except Exception as problem:
            wrong.append(f"{name}: {sentence(problem)}")
            continue
        if not error <= allowed:
            wrong.append(f"{name}: off by {error:.2g}, at most {allowed:.2g}")
    return {"right": len(calls) - len(wrong), "of": len(calls), "wrong": wrong}


def module_tolerance(architecture: Architecture, module: nn.Module) -> float:
    if not any(True for _ in module.children()):
        return error_of(LEAF_ROUNDINGS)
    layers = max([len(m) for m in module.modules() if isinstance(m, nn.ModuleList)], default=1)
    return architecture.tolerance(layers)


def layers_of(model: nn.Module) -> int:
    """On the longest way: an encoder's and a decoder's come one after the other."""
    return sum(len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and name.count(".") < 3)


def no_cache(architecture: Architecture) -> dict[str, Any]:
    return {"use_cache": False} if architecture.generates else {}


def whole(architecture: Architecture, host: Any, card: Any, inputs: dict[str, Tensor]) -> dict[str, float]:
    options = no_cache(architecture)
    want = result_of(host(**inputs, **options))
    got = result_of(card(**tree_map(sent, inputs), **options))
    return {"error": relative_error(back(got), want), "allowed": architecture.tolerance(layers_of(host))}


class Forced:
    """Generation takes the given tokens, whatever the logits say: one step's difference is not the next one's."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens, self.at = tokens, 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -1000.0)
        forced[:, self.tokens[self.at]] = 0.0
        self.at += 1
        return forced


class Routing:
    """Which experts the card chose. Where two were tied, the host is asked again with the card's choice."""

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.chosen: dict[str, list[Tensor]] = {}
        self.rerouted, self.wrong = 0, 0

    def note(self, model: nn.Module) -> list[Any]:
        def hook(name: str) -> Callable[..., None]:
            return lambda module, args, output: self.chosen.setdefault(name, []).append(back(index_of(output)))

        return [m.register_forward_hook(hook(name)) for name, m in routers(model)]

    def replay(self, model: nn.Module) -> list[Any]:
        return [m.register_forward_hook(functools.partial(self.put, name)) for name, m in routers(model)]

    def put(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        logits = next(x for x in output if x.is_floating_point() and x.shape[-1] > index_of(output).shape[-1])
        index = torch.cat(self.chosen[name])[-len(logits) :]  # a prompt may have been padded, on its left
        missed = logits.topk(index.shape[-1]).values.amin(-1) - logits.gather(1, index).amin(-1)
        self.rerouted += int((missed > 0).sum())
        self.wrong += int((missed > tie(logits, self.allowed)).sum())
        weights = logits.gather(1, index).softmax(-1)
        return tuple(index if x is index_of(output) else x if x is logits else weights for x in output)


def routers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, m) for name, m in model.named_modules() if type(m).__name__.endswith("Router")]


def index_of(output: Any) -> Tensor:
    return next(x for x in output if not x.is_floating_point())


def tie(logits: Tensor, allowed: float) -> Tensor:
    """Two logits closer than this may change places: both are off, each by 4 standard deviations at most."""
    return 2 * 4 * allowed * logits.double().square().mean(-1).sqrt()


def tokens(architecture: Architecture, host: Any, card: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Teacher-forced on the host's greedy tokens: is the card's argmax the host's, or as good within the error?"""
    given = dict(inputs)
    before = 1 if given.pop("decoder_input_ids", None) is not None else PROMPT
    options: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    host_way = host.generate(**given, **options)
    forced = {"logits_processor": [Forced(host_way.sequences[0, before:])], "disable_compile": True}
    forced |= {"cache_implementation": "static"}
    routing = Routing(architecture.tolerance(layers_of(host)))
    hooks = routing.note(card)
    card_way = card.generate(**tree_map(sent, given), **options | forced)
    got, want = (torch.cat([back(x) for x in way.logits]) for way in (card_way, host_way))
    hooks += routing.replay(host)
    if routing.chosen:
        want = host(host_way.sequences[:, :-1]).logits[0, before - 1 :]
    for hook in hooks:
        hook.remove()
    best, picked = want.argmax(-1), got.argmax(-1)
    gap = want.amax(-1) - want.gather(1, picked[:, None])[:, 0]
    tied = (best != picked) & (gap <= tie(want, routing.allowed))
    apart = (best != picked) & ~tied
    return {
        "equal": int((best == picked).sum()),
        "tied": int(tied.sum()),
        "apart": int(apart.sum()),
        "rerouted": routing.rerouted if routing.chosen else None,
        "misrouted": routing.wrong,
    }


def compiled(architecture: Architecture, host: Any, card: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    counters.clear()
    forward = torch.compile(card.forward)
    options = no_cache(architecture)
    got = result_of(forward(**tree_map(sent, inputs), **options))
    error = relative_error(back(got), result_of(host(**inputs, **options)))
    breaks = sum(counters["graph_break"].values())
    return {"error": error, "graphs": counters["stats"]["unique_graphs"], "breaks": breaks}


# --- timing: the full model has shapes only, and the card's clock runs


def timing(architecture: Architecture) -> dict[str, Any]:
    with torch.device("meta"):
        model = architecture.build("full", HALF)
    model = load_model_to_spyre(model)
    inputs = tree_map(sent, architecture.inputs(model.config, PREFILL[architecture.task]))
    inputs.pop("attention_mask", None)
    torch.spyre.fallback("count")
    with torch.no_grad():
        found = {"parameters": sum(p.numel() for p in model.parameters()), **phases(architecture, model, inputs)}
    found["memory"] = torch.spyre.max_memory_allocated()
    found["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["fallback"] = sorted(torch.spyre.fallback_counts())
    return found


def phases(architecture: Architecture, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Of what is done once (prefill, or all of it) and of each further token."""
    if not architecture.generates:
        return {"prefill": phase(model, inputs)}
    cache = static_cache(architecture, model.config)
    options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
    if architecture.task == "text":
        options["logits_to_keep"] = 1
    found = {"prefill": phase(model, inputs | options, cache)}
    token = torch.zeros(1, 1, dtype=torch.int64, device="spyre")
    if architecture.task == "text":
        step: dict[str, Any] = {"input_ids": token}
    else:
        heard = torch.empty(1, model.config.max_source_positions, model.config.d_model, dtype=HALF, device="spyre")
        step = {"decoder_input_ids": token, "encoder_outputs": (heard,)}
    return found | {"decode": phase(model, step | options, cache, starts=False)}


def static_cache(architecture: Architecture, config: Any) -> Any:
    from transformers import EncoderDecoderCache, StaticCache

    own = StaticCache(config, max_cache_len=PREFILL[architecture.task] + NEW)
    if architecture.task == "text":
        return own
    return EncoderDecoderCache(own, StaticCache(config, max_cache_len=config.max_source_positions))


def phase(model: Any, inputs: dict[str, Any], cache: Any = None, starts: bool = True) -> dict[str, float]:
    """Modelled milliseconds of a forward, compiled, and the floors that its weights, its cache and its FLOPs set."""

    def call(forward: Callable[..., Any]) -> None:
        if cache is not None and starts:
            cache.reset()
        began.record()
        forward(**inputs)

    began, ended = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with FlopCounterMode(display=False) as flops, ModulesCalled(model) as called:
        call(model)
    forward, started = torch.compile(model.forward), time.monotonic()
    call(forward)
    compiling = time.monotonic() - started
    call(forward)
    ended.record()
    torch.spyre.synchronize()
    card = description.constants()
    bandwidth = card["dram_gb_per_s"] * 1e6  # bytes per millisecond
    peak = 2 * card["pt_mac_per_ns"] * card["cores"] * 1e6  # FLOPs per millisecond
    tokens = max((x.numel() for x in inputs.values() if isinstance(x, Tensor) and not x.is_floating_point()), default=0)
    bytes_read = weight_bytes(model.config, called.modules, tokens) + sum(map(size_of, cache_tensors(cache)))
    return {
        "ms": began.elapsed_time(ended),
        "by_bytes": bytes_read / bandwidth,
        "by_flops": flops_needed(model, flops, tokens) / peak,
        "host_s": compiling,
    }


class ModulesCalled:
    """Which modules take part in a forward: of a speech model's encoder, none in its later tokens."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: dict[nn.Module, None] = {}

    def __enter__(self) -> ModulesCalled:
        self.hooks = [m.register_forward_pre_hook(self.note) for m in self.model.modules()]
        return self

    def note(self, module: nn.Module, _: Any) -> None:
        self.modules[module] = None

    def __exit__(self, *_: Any) -> None:
        for hook in self.hooks:
            hook.remove()


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def cache_tensors(cache: Any) -> list[Tensor]:
    if hasattr(cache, "cross_attention_cache"):
        return cache_tensors(cache.self_attention_cache) + cache_tensors(cache.cross_attention_cache)
    layers = getattr(cache, "layers", [])
    return [value for layer in layers for value in tree_leaves(vars(layer)) if isinstance(value, Tensor)]


def weight_bytes(config: Any, modules: Iterable[nn.Module], tokens: int) -> float:
    """What has to be read at least: every weight once, of tables only rows, of experts those that tokens can reach."""
    experts = getattr(config, "num_local_experts", 0)
    share = min(1.0, tokens * config.num_experts_per_tok / experts) if experts else 1.0
    weights = {
        weight.untyped_storage()._cdata: size_of(weight) * (share if is_of_experts(weight, experts) else 1.0)
        for module in modules
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    return sum(weights.values())


def flops_needed(model: nn.Module, counted: FlopCounterMode, tokens: int) -> float:
    """What was counted, but of experts only those that tokens go to: a prompt is put through all of them."""
    config, total = model.config, float(counted.get_total_flops())
    experts = getattr(config, "num_local_experts", 0)
    by_module = counted.get_flop_counts()
    for name, module in model.named_modules():
        weights = [weight for weight in module.parameters(recurse=False) if is_of_experts(weight, experts)]
        if weights:
            one = 2 * sum(weight[0].numel() for weight in weights)
            total += tokens * config.num_experts_per_tok * one
            total -= sum(by_module[f"{type(model).__name__}.{name}"].values())
    return total


def is_of_experts(weight: Tensor, experts: int) -> bool:
    return bool(experts) and weight.dim() == 3 and weight.shape[0] == experts


def sentence(problem: BaseException) -> str:
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {re.sub(r'/[^ ]*/', '', text[0])[:200]}" if text else type(problem).__name__


def main(key: str, what: str) -> None:
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TORCH_SPYRE_DOWNCAST_WARN", "0")
    torch.spyre.set_downcast_warning(False)
    print(json.dumps({"run": run, "timing": timing}[what](load(key))))


if __name__ == "__main__":
    main(*sys.argv[1:])
