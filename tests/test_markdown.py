"""README, data card and notebooks as a reader of GitHub sees them."""

import re

import nbformat
import pytest
from markdown_it import MarkdownIt

from paraguard_lab import run
from paraguard_lab.report import numbers
from paraguard_utils import paths

DOCS = (
    "docs/method.md",
    "docs/usage.md",
    "docs/refusing_too_much.md",
    "docs/reading.md",
)
NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS, "data/README.md")
PAGES = [*(paths.ROOT / name for name in NAMES), *run.list_notebooks()]


def texts(path):
    if path.suffix == ".md":
        return [path.read_text(encoding="utf-8")]
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


def blocks(markdown):
    """Yield (kind, text, html) of every block of a text: html as GitHub's dialect of
    CommonMark renders it.
    """
    parser = MarkdownIt("gfm-like", {"linkify": False})
    for token in parser.parse(markdown):
        if token.type in ("inline", "html_block"):
            yield (
                token.type,
                token.content,
                (
                    parser.render(token.content)
                    if token.type == "inline"
                    else token.content
                ),
            )


def faults(markdown):
    """Return what a reader would see broken: raw HTML blocks, literal links, places cut
    off from their sentence.
    """
    found = []
    for kind, text, html in blocks(markdown):
        if kind == "html_block":
            found.append(f"raw HTML: {text}")
            continue
        seen = re.sub(r"<code>.*?</code>|<!--.*?-->|<[^>]*>", "", html, flags=re.DOTALL)
        if re.search(r"\]\(|<!--|-->", seen):
            found.append(f"literal markup: {seen}")
        if text.count("<!--=") != 2 * len(numbers.NUMBER_PLACE.findall(text)):
            found.append(f"half a place: {text}")
    return found


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda path: path.relative_to(paths.ROOT).as_posix()
)
def test_nothing_is_broken_when_rendered(path):
    for text in texts(path):
        assert faults(text) == []


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda path: path.relative_to(paths.ROOT).as_posix()
)
def test_no_line_begins_with_a_mark(path):
    """Markdown takes such a line for a block of HTML, and ends the paragraph."""
    for text in texts(path):
        assert re.findall(r"(?m)^[ >*-]*<!--=.*", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "It takes\n<!--=a-->1<!--=--> of [06](x.ipynb).",
        "- It takes\n  <!--=a-->1<!--=--> of [06](x.ipynb).",
        "<!--=a-->1<!--=--> of them",
        "It takes <!--=a-->1<!--=--\n> of them",
        r"in \[06](x.ipynb)",
    ],
)
def test_what_github_breaks_is_found(text):
    assert faults(text)
