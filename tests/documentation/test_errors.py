"""Every message of the error catalogue is one of the source."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRING = r'"(?:[^"\\\n]|\\.)*"'


@cache
def literals() -> str:
    """All texts of the source, adjacent ones joined as their language does."""
    found = []
    for path in (ROOT / "torch_spyre").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for path in [*(ROOT / "torch_spyre/csrc").rglob("*.cpp"), *(ROOT / "torch_spyre/csrc").rglob("*.h")]:
        for run in re.findall(rf"{STRING}(?:\s*{STRING})*", path.read_text()):
            parts = (ast.literal_eval(part) for part in re.findall(STRING, run) if "\\x" not in part)
            found.append("".join(parts))
    return "\0".join(found)


def messages() -> list[str]:
    rows = re.findall(r"^\| (`.+?) \| ", (ROOT / "docs/user_guide/errors.md").read_text(), re.M)
    return [part for row in rows for part in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_catalogue_is_raised_somewhere(message):
    for part in message.split("…"):
        assert part in literals(), part


def test_the_catalogue_is_read():
    assert len(messages()) > 40
