"""The site as a reader meets it, in Chromium: ten tasks from the start page, by clicks or by one search."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.explorer.browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
MOST_BYTES = 30 << 20
# What a reader wants, and a sentence of the page that tells. By the texts of links, at most three of them.
BY_CLICKS = {
    "why did my op fall back?": (["Ops that fell back"], "Why did my op fall back?"),
    "what does this error mean?": (["Error catalogue"], "Nothing was copied."),
    "what is a stick?": (["Key concepts"], "A stick is 128 bytes"),
    "how do I install it?": (["Install"], "No card, no driver, no account."),
    "how do I add an op?": (["Operation cookbook"], "A lowering builds the op out of loop ops"),
    "which variables are there?": (["Reference", "Environment variables"], "SPYRE_LAUNCH_BLOCKING"),
    "what can spyre timing do?": (["Reference", "Command line"], "spyre timing check"),
    "is my op supported?": (["Reference", "Supported operations"], "aten"),
    "why is my model slow?": (["A slow program"], "says what to look at"),
    "which hooks did you use?": (
        ["Key concepts", "How it works: four challenges", "table of all hooks|Extension points for the next backend"],
        "rename_privateuse1_backend",
    ),
}
# What a reader types, and the page that is among the first five found.
BY_SEARCH = {
    "fallback": "user_guide/fallback.html",
    "out of memory": "user_guide/out_of_memory.html",
    "restickify": "getting_started/concepts.html",
    "register_lowering": "reference/torch_spyre.html",
    "SPYRE_CARD": "user_guide/environment.html",
    "work division": "developers/work_division.html",
    "fork": "user_guide/errors.html",
    "dtype": "dtypes.html",
    "elapsed_time": "device.html",
    "unlisted_test_mode": "developers/testing.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built from what is committed; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-b",
        "html",
        "-d",
        f"{folder}/doctrees",
        "docs",
        f"{folder}/html",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with Browser() as found:
        found.screen(1280, 800)
        yield found
        assert found.problems == []  # errors of its scripts, and whatever it asks the network for


def open_page(browser: Browser, url: str) -> None:
    browser.call("Page.navigate", url=url)
    arrive(browser, url)


def arrive(browser: Browser, url: str) -> None:
    """Until the page is there; one that is just being left answers no question."""
    for _ in range(100):
        with suppress(RuntimeError):
            browser.wait(f"document.readyState === 'complete' && location.href === {url!r}")
            return
    raise TimeoutError(url)


def click(browser: Browser, text: str) -> None:
    """On a link with this text, or one of several, wherever it is on the page."""
    script = f"""(() => {{
        const wanted = {text.split("|")!r};
        const link = [...document.querySelectorAll("a")].find((a) => wanted.includes(a.textContent.trim()));
        if (!link) return "";
        const target = link.href; location.href = target; return target;
    }})()"""
    target = browser.run(script)
    assert target, f"no link {text!r} on {browser.run('location.pathname')}"
    arrive(browser, target)


@pytest.mark.slow
@pytest.mark.parametrize("task", BY_CLICKS)
def test_a_task_takes_three_clicks_at_most(site, browser, task):
    clicks, told = BY_CLICKS[task]
    assert len(clicks) <= 3
    open_page(browser, (site / "index.html").as_uri())
    for each in clicks:
        click(browser, each)
    text = browser.run("document.querySelector('article').textContent.replace(/\\s+/g, ' ')")
    assert told in text


@pytest.mark.slow
@pytest.mark.parametrize("words", BY_SEARCH)
def test_one_search_finds_it(site, browser, words):
    open_page(browser, (site / "search.html").as_uri() + "?q=" + words.replace(" ", "+"))
    browser.wait("document.querySelectorAll('#search-results li a').length > 0")
    browser.wait("/found/.test(document.querySelector('#search-results').textContent)")
    found = browser.run("[...document.querySelectorAll('#search-results li a')].slice(0, 5).map((a) => a.href)")
    assert any(BY_SEARCH[words] in each for each in found), found


@pytest.mark.slow
def test_the_site_is_small_and_asks_the_network_for_nothing(site):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            assert not any(f'{name}="http' in text for name in ("src", "data-src")), path
            assert "url(http" not in text and "@import" not in text, path


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_a_phone(site, browser, dark):
    browser.screen(390, 800, dark)
    try:
        for page in ("index", "getting_started/concepts", "user_guide/errors", "supported_operations"):
            open_page(browser, (site / f"{page}.html").as_uri())
            assert browser.run("document.documentElement.scrollWidth") <= 390, page
    finally:
        browser.screen(1280, 800)
