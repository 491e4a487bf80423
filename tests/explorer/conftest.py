import pytest

from tests.explorer.browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with Browser() as browser:
        browser.screen(1280, 800)
        yield browser
        assert browser.problems == []
