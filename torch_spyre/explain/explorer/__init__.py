"""The explorer: a run as one HTML file that needs neither a server nor a network.

The page's parts lie beside this file and are put into one. The data is embedded as zlib in base64, so no text of a run
is ever markup; the page's policy allows its own script and style alone, by their hashes, and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..run_data import FORMAT, VERSION, RunData

# In this order: each uses those before it.
SCRIPTS = (
    "layout.js",
    "dom.js",
    "data.js",
    "state.js",
    "plot.js",
    "table.js",
    "summary.js",
    "timeline.js",
    "provenance.js",
    "memory.js",
    "layouts.js",
    "roofline.js",
    "ops.js",
    "compare.js",
    "search.js",
    "main.js",
)
LONG_TEXT = 400  # texts from here on are read by the page when they are looked at
BLOCK_CHARACTERS = 1 << 20  # of long texts that are compressed together


def write(run: RunData, path: str | Path, other: RunData | None = None) -> None:
    """Write the explorer of a run; with ``other``, of two runs to compare."""
    Path(path).write_text(html(run, other), encoding="utf-8")


def html(run: RunData, other: RunData | None = None) -> str:
    """The page. Raises ValueError for data of another format or version."""
    runs = [run] if other is None else [run, other]
    style, script = _part("style.css"), _script()
    page = _part("page.html")
    for name, value in {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; {_hashed('script', script)}; "
        f"{_hashed('style', style)}; img-src data: blob:",
        "style": style,
        "data": "\n".join(block for number, each in enumerate(runs) for block in _data_blocks(number, each)),
        "script": script,
    }.items():
        page = page.replace(f"<!--{name}-->", value)
    return page


def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "})();\n"


@cache
def _part(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _hashed(kind: str, text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"{kind}-src 'sha256-{digest}'"


def _data_blocks(number: int, run: RunData) -> list[str]:
    """The data of a run in elements that no browser executes: what every view needs, and blocks of long texts."""
    if run.get("format") != FORMAT or run.get("version") != VERSION:
        found = f"{run.get('format')!r}, version {run.get('version')!r}"
        raise ValueError(f"the explorer reads {FORMAT!r}, version {VERSION}; this is {found}")
    short: list[str | None] = list(run["texts"])
    blocks: list[dict[int, str]] = [{}]
    room = BLOCK_CHARACTERS
    for position, text in enumerate(run["texts"]):
        if len(text) < LONG_TEXT:
            continue
        if room < len(text) and blocks[-1]:
            blocks.append({})
            room = BLOCK_CHARACTERS
        blocks[-1][position] = text
        short[position] = None
        room -= len(text)
    main = {**run, "texts": short, "text_blocks": [list(block) for block in blocks]}
    return [_element(f"run-{number}", main)] + [
        _element(f"run-{number}-texts-{i}", list(block.values())) for i, block in enumerate(blocks)
    ]


def _element(name: str, value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    data = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return f'<script type="application/x-spyre-run" id="{name}">{data}</script>'
