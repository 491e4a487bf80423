"""A sidecar as a page for a browser: source, ATen, FX nodes, loop op and OpSpec of every step, linked and searchable.

``python -m torch_spyre.provenance_viewer SIDECAR [--kineto-trace TRACE] [--output PAGE]``. With a trace, steps have the
time that they took in it. The page needs nothing else, and shows texts as texts.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import provenance
from .ir.provenance import parse_name

MOST_ROWS = 10_000
_PANELS = ("Source", "ATen", "FX before", "FX after", "Loop op", "OpSpec")

_PAGE = """<!doctype html><meta charset="utf-8"><title>Provenance</title>
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>body{font:14px system-ui,sans-serif;margin:1rem}table{border-collapse:collapse;width:100%}
td,th{border:1px solid #8884;padding:.25rem .5rem;text-align:left;vertical-align:top}pre{margin:0;font-size:12px}
tr.chosen{background:#fd83}input{font:inherit;width:30rem;max-width:100%;margin-bottom:.5rem}
:root{color-scheme:light dark}
</style><h1>Where kernels come from</h1><input id="search" type="search" placeholder="search" aria-label="search">
<table><thead><tr>HEAD</tr></thead><tbody>ROWS</tbody></table><script>
const rows=[...document.querySelectorAll("tbody tr")];
document.getElementById("search").oninput=e=>{const t=e.target.value.toLowerCase();
for(const r of rows)r.hidden=!r.textContent.toLowerCase().includes(t)};
for(const r of rows)r.onclick=()=>{
for(const o of rows)o.classList.toggle("chosen",o.dataset.source===r.dataset.source)};
</script>"""


def page(data: dict[str, Any], durations: dict[str, float] | None = None) -> str:
    """The HTML of a sidecar; ``durations``: microseconds by the name of a row."""
    rows: list[str] = []
    for kernel in data["kernelIdentities"].values():
        for step in range(len(kernel["steps"])):
            if len(rows) == MOST_ROWS:
                break
            event = f"{kernel['name']}#{step}"
            rows.append(_row(event, provenance.look_up(event, data), durations))
    head = "".join(f"<th>{name}</th>" for name in ("Step", *(["us"] if durations else []), *_PANELS))
    return _PAGE.replace("HEAD", head).replace("ROWS", "\n".join(rows))


def _row(event: str, binding: dict[str, Any], durations: dict[str, float] | None) -> str:
    nodes = provenance.nodes_of(binding)
    cells = [
        event,
        *([f"{durations.get(event, 0.0):.3f}"] if durations else []),
        f"{binding['source']}\n{provenance.text_of(binding)}",
        str(binding.get("aten", "")),
        "\n".join(each[-1] for each in nodes),
        "\n".join(each[0] for each in nodes),
        str(binding.get("loopOp", "")),
        binding["opSpec"],
    ]
    shown = "".join(f"<td><pre>{html.escape(cell)}</pre></td>" for cell in cells)
    return f'<tr data-source="{html.escape(binding["source"], quote=True)}">{shown}</tr>'


def durations_of(trace: Path) -> dict[str, float]:
    """Microseconds of the kernels in a Chrome trace, by name."""
    found: dict[str, float] = defaultdict(float)
    try:
        events = json.loads(trace.read_text())["traceEvents"]
        for event in events:
            if isinstance(event.get("name"), str) and parse_name(event["name"]) and "dur" in event:
                found[event["name"]] += float(event["dur"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise provenance.InvalidSidecar(f"{trace}: this is no trace: {error}") from error
    return dict(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.provenance_viewer", description=__doc__)
    parser.add_argument("sidecar", type=Path)
    parser.add_argument("--kineto-trace", type=Path)
    parser.add_argument("--output", type=Path, default=Path("spyre_provenance.html"))
    arguments = parser.parse_args(argv)
    try:
        durations = durations_of(arguments.kineto_trace) if arguments.kineto_trace else None
        arguments.output.write_text(page(provenance.read(arguments.sidecar), durations))
    except (provenance.InvalidSidecar, OSError) as error:
        print(f"provenance_viewer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
