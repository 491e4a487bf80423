"""Links of the pages lead somewhere, what is generated follows the source, and every variable is documented."""

import re
from pathlib import Path

import pytest

from docs import generate
from docs.pictures import __main__ as pictures

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# Variables of this project, by how their names begin or whole, wherever the source reads them.
OURS = re.compile(
    r"[\"']((?:SPYRE|TORCH_SPYRE|AIU|AIUSMI|FLEX|DXP|COLL|LX|INDUCTOR_PROV)_?[A-Z0-9_]*|SENCORES|MAX_BUCKETS)[\"']"
)
# Names of other things, what the runner of PyTorch's tests sets by itself, and a name that vLLM asks for.
NO_VARIABLES = {"SPYRE_BUILD_TESTS", "SPYRE_SANITIZE", "LX", "TORCH_SPYRE_ROOT", "SPYRE_VISIBLE_DEVICES"}


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names that headings have as targets of links, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = next(i for i in range(100) if (f"{name}-{i}" if i else name) not in found)
        found.add(f"{name}-{number}" if number else name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{link} of {page.name}"
        assert not anchor or anchor in anchors(file), (
            f"{file.name} has no heading #{anchor}, which {page.name} links to"
        )


@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_pages_follow_the_source(page):
    assert (ROOT / page).read_text(encoding="utf-8") == generate.PAGES[page](), "python -m docs.generate writes it"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_follow_the_source(name):
    drawn = pictures.PICTURES[name]().svg()
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, "python -m docs.pictures draws it"


def test_every_variable_of_the_source_is_documented_and_none_besides():
    sources = [*(ROOT / "torch_spyre").rglob("*.py"), *(ROOT / "torch_spyre/csrc").rglob("*.cpp")]
    text = "\n".join(path.read_text() for path in sources)
    table = (ROOT / "docs/device.md").read_text().partition("## Environment")[2]
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]{3,})`", table))
    assert set(OURS.findall(text)) - NO_VARIABLES <= documented
    rows = {name for row in re.findall(r"^\|(.+?)\|", table, re.M) for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}
    assert {name for name in rows if f'"{name}"' not in text and f"'{name}'" not in text} == set()


def test_every_page_is_in_the_tree():
    tree = re.findall(r"^[a-z_/A-Z]+$", (ROOT / "docs/index.md").read_text(), re.M)
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(tree) == sorted(pages - {"index"})
