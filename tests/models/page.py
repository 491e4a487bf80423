"""What the tracker found, as docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_spyre.card import description
from torch_spyre.models import presets

from .architectures import NEW, PREFILL, load

PATH = Path(__file__).parents[2] / "docs/models.md"

INTRODUCTION = """\
# Models

Does a model run on the card, as accurately as on a CPU, and how fast would the real card be? Written by `make models`
from one run over `tests/models/descriptors/`; do not edit. Models are Hugging Face's, as they are, with random weights.

- **runs**: on the card alone, or with ops that fall back to the CPU, or not as it should.
- **as on the CPU**: of {new} tokens how many the card chooses as PyTorch in fp32 would; where not, its choice is *tied*
  within the error of the number format, or *apart*. Of models that write nothing, how far the result is off.
- **first**: modelled time of a prompt of {prefill} tokens, an image, or 30 seconds of sound, by one user;
  **then**: of each further token. In brackets: how many times the floor that memory or arithmetic sets.

Any other model in a Hugging Face directory: `spyre run MODEL_DIR --prompt "..." --compare cpu`, and with
`--mode timing` how fast it would be ([run.md](run.md)). Presets need no directory: `spyre run --preset NAME`.
"""

RIGHT = """\
## As accurate as a CPU: tiny configurations, run

Two layers with the head sizes and ratios of the full model, against PyTorch on the CPU in fp32 with the same weights
(as the card rounded them).

- **modules**: submodules that agree with the CPU's, each by itself with the inputs it has in the model.
- **ops**: different ops that reached the device; **fallback** are those that ran on the CPU.
- **error**: norm of the difference of the results, as a share of their norm, eager and compiled; **allowed**: what the
  roundings to SEN169 on the way imply: 2·2⁻¹⁰·√(roundings / 3). The descriptors count the roundings.
- **tokens**: {new} eager steps of `generate` with a static cache, teacher-forced on the CPU's greedy tokens: the card's
  choice is equal, tied (within 8 times the allowed error of a logit) or apart. A router whose experts are tied may
  choose otherwise (**rerouted**, of tokens by layers); the CPU is then given the card's choice.
- **graphs**: of `torch.compile(model.forward)`, and breaks between them.
"""

FAST = """\
## As fast as the card: full configurations, timed

Modelled time (`SPYRE_CARD=timing`: nothing is computed and no weight exists), compiled, fp16, batch 1, milliseconds;
host launch cost is apart. The **floor** is what the card cannot beat: reading every weight that is used and the cache
once ({bandwidth:g} GB/s), or the multiply-adds ({peak:.1f} TFLOP/s), whichever takes longer.
"""

OF_ALL = ("", "preset", "runs", "as on the CPU", "first, ms", "then, ms", "tokens per second")
OF_RUNS = ("", "modules", "ops", "fallback", "error eager", "compiled", "allowed")
OF_RUNS += ("tokens equal / tied / apart", "rerouted", "graphs", "breaks")
OF_TIMES = ("", "parameters", "first", "floor", "distance", "then", "floor", "distance", "memory, GiB", "fallback")


def text(found: dict[str, dict[str, Any]]) -> str:
    card = description.constants()
    numbers = {
        "new": NEW,
        "prefill": PREFILL["text"],
        "bandwidth": card["dram_gb_per_s"],
        "peak": 2 * card["pt_mac_per_ns"] * card["cores"] / 1e3,
    }
    lines = [INTRODUCTION.format(**numbers), *table(OF_ALL, [summary(key, whats) for key, whats in found.items()])]
    troubles = [f"- **{load(key).name}**: {p}" for key, whats in found.items() for p in problems(key, whats)]
    if troubles:
        lines += ["", "What is not right:", "", *troubles]
    runs = [row_of_run(key, whats["run"]) for key, whats in found.items() if "run" in whats]
    times = [row_of_timing(key, whats["timing"]) for key, whats in found.items() if "timing" in whats]
    lines += ["", RIGHT.format(**numbers), *table(OF_RUNS, runs), "", FAST.format(**numbers), *table(OF_TIMES, times)]
    return "\n".join(lines) + "\n"


def summary(key: str, whats: dict[str, Any]) -> str:
    architecture = load(key)
    timing = whats.get("timing", {})
    first, then = (timing.get(part) for part in ("prefill", "decode"))
    return row(
        architecture.name,
        f"`{architecture.preset}`" if architecture.preset in presets.causal() else "",  # what `spyre run` takes
        outcome(key, whats),
        agreement(whats.get("run", {})),
        brief(first) if first else "",
        brief(then) if then else "",
        f"{1000 / then['ms']:.1f}" if then else "",
    )


def outcome(key: str, whats: dict[str, Any]) -> str:
    if problems(key, whats):
        return "see below"
    fallbacks = {op for what in whats.values() for op in what.get("ops", what)["fallback"]}
    return f"fallbacks: {len(fallbacks)}" if fallbacks else "on the card"


def agreement(run: dict[str, Any]) -> str:
    if "whole" not in run:
        return ""
    if not run.get("tokens"):
        return f"off by {run['whole']['error']:.2%}"
    counts = run["tokens"]
    others = [f"{counts[how]} {how}" for how in ("tied", "apart") if counts[how]]
    return ", ".join([f"{counts['equal']} of {NEW}", *others])


def brief(phase: dict[str, float]) -> str:
    ms, _, times = distance(phase)
    return f"{ms} ({times})"


def row_of_run(key: str, run: dict[str, Any]) -> str:
    name = load(key).name
    if "failed" in run:
        return row(name, "failed", *[""] * 9)
    modules, ops, tokens, compiled = (run.get(part) for part in ("modules", "ops", "tokens", "compiled"))
    return row(
        name,
        f"{modules['right']} of {modules['of']}",
        ops["native"] + len(ops["fallback"]),
        ", ".join(f"`{op}`" for op in ops["fallback"]) or "none",
        f"{run['whole']['error']:.4f}",
        f"{compiled['error']:.4f}",
        f"{run['whole']['allowed']:.4f}",
        f"{tokens['equal']} / {tokens['tied']} / {tokens['apart']}" if tokens else "",
        tokens["rerouted"] if tokens and tokens["rerouted"] is not None else "",
        compiled["graphs"],
        compiled["breaks"],
    )


def row_of_timing(key: str, timing: dict[str, Any]) -> str:
    name = load(key).name
    if "failed" in timing:
        return row(name, "", "failed", *[""] * 7)
    cells = [name, f"{timing['parameters'] / 1e9:.2f} B"]
    for part in ("prefill", "decode"):
        cells += distance(timing[part]) if part in timing else [""] * 3
    fallback = ", ".join(f"`{op}`" for op in timing["fallback"]) or "none"
    return row(*cells, f"{timing['memory'] / 2**30:.1f}", fallback)


def distance(phase: dict[str, float]) -> list[str]:
    floor = max(phase["by_bytes"], phase["by_flops"])
    return [f"{phase['ms']:.1f}", f"{floor:.1f}", f"{phase['ms'] / floor:.1f}×"]


def table(head: tuple[str, ...], rows: list[str]) -> list[str]:
    return [row(*head), "|---" * len(head) + "|", *rows]


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def problems(key: str, whats: dict[str, Any]) -> list[str]:
    """What is not as it should be, in sentences."""
    found = [f"{what}: {result['failed']}" for what, result in whats.items() if "failed" in result]
    run = whats.get("run", {"failed": ""})
    if "failed" in run:
        return found
    found += run["modules"]["wrong"]
    for how, error in (("eager", run["whole"]["error"]), ("compiled", run["compiled"]["error"])):
        if not error <= run["whole"]["allowed"]:
            found.append(f"{how}: off by {error:.2g}, at most {run['whole']['allowed']:.2g}")
    if run.get("tokens", {}).get("apart"):
        found.append(f"{run['tokens']['apart']} tokens differ by more than the error of their logits")
    if run.get("tokens", {}).get("misrouted"):
        found.append(f"{run['tokens']['misrouted']} tokens went to experts that were not tied with the CPU's")
    return found
