"""Every ```python block of README.md and docs/ runs: the blocks of one page in order, in one fresh process."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.interpreters import Interpreters

Run = Callable[[Path, Path], None]

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that compile many programs, of kinds that other pages have too.
SLOW = {
    "docs/developers/work_division.md",
    "docs/getting_started/first_model.md",
    "docs/user_guide/slow.md",
    "docs/user_guide/wrong_result.md",
}
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<info>.*?)\s*$")

# Runs in the fresh process. The blocks are compiled under the page's own name and line numbers, so a traceback and
# inspect.getsource show the page.
RUNNER = """
import sys, traceback, types

def run(page, blocks):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    for line, code in blocks:
        try:
            exec(compile("\\n" * line + code, page, "exec"), main.__dict__)
        except BaseException:
            traceback.print_exc()
            sys.exit(f"\\nThis block failed, {page}:{line}:\\n\\n{code}")"""


def python_blocks(text: str) -> list[tuple[int, str]]:
    """(line of the opening fence, code) of each ```python block; ValueError for a block that only looks like one."""
    blocks: list[tuple[int, str]] = []
    opening: re.Match[str] | None = None
    start, lines = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if opening is None:
            if match:
                opening, start, lines = match, number, []
                info = match["info"]
                if info != "python" and re.match(r"\W*py(thon)?3?\b", info, re.IGNORECASE):
                    raise ValueError(f"line {number}: ```{info} would not run; mark Python with ```python alone")
        elif match and not match["info"] and match["fence"].startswith(opening["fence"]):
            if opening["info"] == "python":
                blocks.append((start, "\n".join(lines) + "\n"))
            opening = None
        else:
            lines.append(line[min(len(opening["indent"]), len(line) - len(line.lstrip(" "))) :])
    if opening is not None:
        raise ValueError(f"line {start}: this block is never closed")
    return blocks


@pytest.fixture
def run_page(interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], None]:
    """Runs a page in a directory; fails with the block that does."""

    def run(page: Path, directory: Path) -> None:
        _run(page, directory, interpreters, monkeypatch)

    return run


def _run(page: Path, directory: Path, interpreters: Interpreters, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        blocks = python_blocks(page.read_text(encoding="utf-8"))
    except ValueError as error:
        pytest.fail(f"{page}: {error}", pytrace=False)
    if not blocks:
        return
    monkeypatch.chdir(directory)
    done = interpreters.run(f"{RUNNER}\nrun({str(page)!r}, {blocks!r})", os.environ, timeout=280)
    if done.returncode:
        pytest.fail(f"{done.stdout}{done.stderr}\nexit code {done.returncode}", pytrace=False)


def cases() -> list[ParameterSet]:
    names = {str(page.relative_to(ROOT)): page for page in PAGES}
    return [pytest.param(page, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, page in names.items()]


@pytest.mark.parametrize("page", cases())
def test_page(page: Path, tmp_path: Path, run_page: Run) -> None:
    run_page(page, tmp_path)


def written(directory: Path, text: str) -> Path:
    page = directory / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_state_and_other_languages_do_not_run(tmp_path: Path, run_page: Run) -> None:
    text = "```python\nx = 1\n```\n```bash\nexit 1\n```\n- item\n  ```python\n  assert x == 1\n  ```\n"
    assert python_blocks(text) == [(1, "x = 1\n"), (8, "assert x == 1\n")]
    run_page(written(tmp_path, text), tmp_path)


def test_a_failing_block_is_shown_with_its_line(tmp_path: Path, run_page: Run) -> None:
    page = written(tmp_path, "# Page\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(pytest.fail.Exception, match=r'page.md", line 5[\s\S]*page.md:3:\n\nx = 1\nassert x == 2'):
        run_page(page, tmp_path)


@pytest.mark.parametrize("info", ["python no-run", "py", "Python", "python3", "{python}"])
def test_no_python_block_escapes(info: str) -> None:
    with pytest.raises(ValueError, match="line 1: .*would not run"):
        python_blocks(f"```{info}\npass\n```\n")


def test_an_open_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: this block is never closed"):
        python_blocks("text\n```python\npass\n")
