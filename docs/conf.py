"""How Sphinx makes the site of these pages: ``make docs``. docs/decisions/site.md says why Sphinx."""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import torch_spyre

project = "Torch-Spyre for every machine"
author = "The Torch-Spyre for every machine authors"
project_copyright = author
version = release = torch_spyre.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
nitpicky = False  # annotations name classes of torch, whose pages are on the network

# Links between pages are those of the Markdown files, headings included, so that they work in the repository too.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = project
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_search_summary = False  # it would fetch the pages that it has found, which browsers refuse for files
html_copy_source = html_show_sourcelink = False
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"


# Files of the root that are pages here.
PAGES = {"CONTRIBUTING.md": "developers/contributing.md", "CHANGELOG.md": "developers/changelog.md"}


def _outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Of links to files of the repository that are no pages of the site, the text stays; they exist there alone."""
    folder = Path(app.srcdir, page).parent

    def keep(link: re.Match[str]) -> str:
        file = (folder / link["path"]).resolve()
        if file.name in PAGES:
            return f"[{link['text']}](/{PAGES[file.name]}{link['anchor']})"
        outside = file.exists() and not file.is_relative_to(app.srcdir)
        return link["text"] if outside else link[0]

    source[0] = re.sub(r"\[(?P<text>[^]]+)\]\((?P<path>\.\./[^)#]+)(?P<anchor>[^)]*)\)", keep, source[0])


def _included(app: Sphinx, file: Path, page: str, source: list[str]) -> None:
    """Links of an included file are those of its own place."""
    if file.name in PAGES:
        source[0] = source[0].replace("](CHANGELOG.md)", "](docs/developers/changelog.md)")
    else:
        source[0] = re.sub(r"\]\((\w+\.md)", r"](/\1", source[0])


def _labels_of_torch(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Docstrings that are PyTorch's own refer to its pages, which are on the network."""
    lines[:] = [re.sub(r":ref:`([^<`]*?)\s*<[^>]*>`", r"\1", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", _outside)
    app.connect("include-read", _included)
    app.connect("autodoc-process-docstring", _labels_of_torch)
    app.add_lexer("mlir", TextLexer)
