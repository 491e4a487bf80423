"""The page as a file: it holds all it needs, asks for nothing, and lets no text of a run become markup."""

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from tests.explorer.synthetic import model_run
from torch_spyre.explain import explorer

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\ud800 & \" ' <img src=x onerror=alert(2)>"


def embedded(page: str, number: int = 0) -> dict:
    """The data of a run, as the page reads it."""

    def part(name: str):
        found = re.search(f'<script type="application/x-spyre-run" id="{name}">([A-Za-z0-9+/=]*)</script>', page)
        return json.loads(zlib.decompress(base64.b64decode(found[1])))

    run = part(f"run-{number}")
    for block, positions in enumerate(run.pop("text_blocks")):
        for position, text in zip(positions, part(f"run-{number}-texts-{block}"), strict=True):
            run["texts"][position] = text
    return run


def test_the_data_comes_back_as_it_was():
    first, second = model_run(2, "a"), model_run(3, "b")
    page = explorer.html(first, second)
    assert embedded(page, 0) == first
    assert embedded(page, 1) == second


def test_the_page_asks_the_network_for_nothing():
    page = explorer.html(model_run(1))
    assert not re.search(r"https?://|//cdn|@import|url\(", page)
    assert not re.search(r"<(link|iframe|img|object|embed|base)\b", page)
    assert not re.search(r"\b(src|href)\s*=\s*[\"']", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy and "connect-src" not in policy


def test_no_text_of_a_run_is_markup():
    run = model_run(1, HOSTILE)
    run["texts"].append(HOSTILE)
    run["files"][HOSTILE] = {"1": HOSTILE}
    page = explorer.html(run)
    assert "alert(" not in page and "onerror" not in page
    assert len(re.findall("</script", page)) == len(re.findall("<script", page))
    assert embedded(page) == run


def test_no_script_writes_markup():
    parts = Path(explorer.__file__).parent
    for name in explorer.SCRIPTS:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", (parts / name).read_text()
        )
        assert found == [], name


def test_every_part_is_in_the_page():
    parts = {path.name for path in Path(explorer.__file__).parent.glob("*.js")}
    assert parts == set(explorer.SCRIPTS)


def test_data_of_another_version_is_refused():
    run = model_run(1)
    run["version"] = 99
    with pytest.raises(ValueError, match="reads 'spyre-run', version 1; this is 'spyre-run', version 99"):
        explorer.html(run)


def test_write_makes_the_file(tmp_path):
    run = model_run(1)
    explorer.write(run, tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text() == explorer.html(run)
