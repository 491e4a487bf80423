"""What the sweep found, as a section of docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[3] / "docs/models.md"
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
CHECKS = ("forward float32", "forward float16", "generate float32", "generate float16")


def was_made(result: dict[str, Any]) -> bool:
    return "not made" not in result


def is_right(result: dict[str, Any]) -> bool:
    return was_made(result) and "raised" not in result and all(result[c]["right"] for c in CHECKS if c in result)


def share(found: dict[str, Any]) -> float:
    made = [result for result in found.values() if was_made(result)]
    return sum(map(is_right, made)) / max(1, len(made))


def counts(found: dict[str, Any]) -> dict[str, int]:
    made = [result for result in found.values() if was_made(result)]
    right = sum(map(is_right, made))
    return {"passed": right, "failed": len(made) - right, "skipped": len(found) - len(made)}


def summary(found: dict[str, Any]) -> str:
    made = {name: result for name, result in found.items() if was_made(result)}
    right = sum(map(is_right, made.values()))
    writing = [result for result in made.values() if "generate float32" in result]
    return (
        f"{right} of {len(made)} architectures are right ({100 * share(found):.1f} %), {len(writing)} of them with "
        f"generate; of {len(found) - len(made)} more no tiny model could be made"
    )


def outcome(result: dict[str, Any]) -> str:
    if not was_made(result):
        return f"not made: {result['not made'][:150]}"
    if "raised" in result:
        return result["raised"]
    wrong = [f"{check}: {reason(result[check])}" for check in CHECKS if check in result and not result[check]["right"]]
    return f"{'; '.join(wrong) or 'right'} ({result['class']}, {result['seconds']} s)"


def reason(check: dict[str, Any]) -> str:
    if "raised" in check:
        return check["raised"]
    tokens = f", {check['apart']} tokens differ" if check.get("apart") else ""
    return f"off by {check['error']:.2g}, at most {check['allowed']:.2g}{tokens}"


def write(found: dict[str, Any]) -> None:
    text = PATH.read_text()
    head = text.split(BEGIN)[0].rstrip()
    tail = text.split(END)[1] if END in text else "\n"
    PATH.write_text(f"{head}\n\n{BEGIN}\n{section(found)}\n{END}{tail}")


def kept() -> str:
    """The section as it is, for what writes the rest of the page anew."""
    text = PATH.read_text()
    return f"\n{BEGIN}{text.split(BEGIN)[1]}" if BEGIN in text else ""


def section(found: dict[str, Any]) -> str:
    import transformers

    lines = [INTRODUCTION.format(version=transformers.__version__, summary=summary(found))]
    lines += ["| architecture | class | inputs | forward fp32 | fp16 | generate fp32 | fp16 | cache | fallback |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    lines += [_row(name, result) for name, result in sorted(found.items()) if was_made(result)]
    wrong = {name: result for name, result in sorted(found.items()) if was_made(result) and not is_right(result)}
    lines += ["", "Not right:" if wrong else "All of them are right.", ""]
    lines += [f"- `{name}`: {outcome(result)}" for name, result in wrong.items()]
    missing = {name: result["not made"] for name, result in sorted(found.items()) if not was_made(result)}
    lines += ["", "No tiny model could be made of (what it, or its configuration, said last):", ""]
    lines += [f"- `{name}`: {why.split(' | ')[-1][:160]}" for name, why in missing.items()]
    return "\n".join(lines)


INTRODUCTION = """\
## Every architecture of transformers

Written by `python -m tests.models.sweep --page` from what a run of `python -m tests.models.sweep` found; do not edit.
Every model type that transformers {version} has a class for, in a tiny configuration that is derived from its default
one, with random weights large enough that every layer counts: a forward, and six tokens of `generate` where it has it,
each step given the host's tokens. {summary}.

- **forward**, **generate**: how far results are off, as a share of their norm, against PyTorch in fp64 on the CPU. In
  fp32 at most 16 times as far as fp32 on the CPU is, in fp16 at most as far as bfloat16 on the CPU is (the card's
  format has two bits more), or what 32 roundings come to. A token of `generate` may differ where two are tied.
- **cache**: the one that `generate` chose: bucketed where the model was shown to be fit for it.
- **fallback**: ops that ran on the CPU.
"""


def _row(name: str, result: dict[str, Any]) -> str:
    if "raised" in result:
        return f"| {name} |  |  | {result['raised']} |  |  |  |  |  |"
    cache = next((result[c].get("cache", "") for c in CHECKS if "cache" in result.get(c, {})), "")
    fallback = sorted({op for dtype in ("float32", "float16") for op in result.get(f"fallback {dtype}", [])})
    cells = [name, result["class"], ", ".join(result["inputs"])]
    cells += [_cell(result.get(check)) for check in CHECKS]
    cells += [{"BucketedCache": "buckets", "DynamicCache": "dynamic"}.get(cache, cache), ", ".join(fallback)]
    return f"| {' | '.join(cells)} |"


def _cell(check: dict[str, Any] | None) -> str:
    if check is None:
        return ""
    if "raised" in check:
        return "raises"
    if "refused" in check:
        return "nor does the CPU"
    return f"{check['error']:.1e}" if check["right"] else f"**{check['error']:.1e}**"
