"""Tensor parallel on several cards, modelled: ``python -m benchmarks.cards [--page docs/collectives.md]``.

Times every model on every number of cards, each in a process of its own (``spyre timing --cards``), prints the table,
and with ``--page`` writes it there between its marks. ``--keep FILE`` goes on with what an earlier run has found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODELS = {
    "granite-3.3-8b": ("Granite 3.3 8B", (1, 2, 4, 8)),
    "granite-4.0-h-small": ("Granite 4 hybrid 30B", (2, 4, 8)),
    "mistral-small-24b": ("Mistral Small 24B", (2, 4, 8)),
    "gpt-oss-20b": ("gpt-oss-20b", (2, 4, 8)),
}
PREFILL = 512
BEGIN, END = "<!-- cards: begin -->", "<!-- cards: end -->"

Found = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="PRESET", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results, to be completed and written again")
    parser.add_argument("--page", type=Path, metavar="FILE", help="where to put the table")
    arguments = parser.parse_args()
    found: Found = json.loads(arguments.keep.read_text()) if arguments.keep and arguments.keep.exists() else {}
    for preset in arguments.models or MODELS:
        for cards in MODELS[preset][1]:
            key = f"{preset} {cards}"
            if key not in found:
                found[key] = timed(preset, cards)
                if arguments.keep:
                    arguments.keep.write_text(json.dumps(found, indent=1))
    text = table(found)
    print(text)
    if arguments.page:
        page = arguments.page.read_text()
        before, rest = page.split(BEGIN)
        arguments.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def timed(preset: str, cards: int) -> dict[str, Any]:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "found.json"
        command = ["timing", preset, "--cards", str(cards), "--prefill", str(PREFILL), "--decode", "--json", str(file)]
        subprocess.run([sys.executable, "-m", "torch_spyre.cli", *command], check=True, stdout=subprocess.DEVNULL)
        phases = {phase.pop("phase"): phase for phase in json.loads(file.read_text())["phases"]}
    return {name: {key: value for key, value in phase.items() if key != "rows"} for name, phase in phases.items()}


def table(found: Found) -> str:
    head = ["", "cards", f"prefill {PREFILL}, ms", "waiting", "floor", "decode, ms", "waiting", "floor", "GB of a card"]
    lines = [head, ["---"] * len(head)]
    for preset, (name, counts) in MODELS.items():
        for cards in counts:
            if phases := found.get(f"{preset} {cards}"):
                memory = max(phase["card_memory_bytes"] for phase in phases.values())
                cells = [cell for phase in ("prefill", "decode") for cell in cells_of(phases[phase])]
                lines.append([name, str(cards), *cells, f"{memory / 1e9:.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells_of(phase: dict[str, Any]) -> list[str]:
    total = phase["milliseconds"]
    return [f"{total:.1f}", f"{phase['communication_ms'] / total:.1%}", f"{total / phase['floor_milliseconds']:.2f}×"]


if __name__ == "__main__":
    main()
