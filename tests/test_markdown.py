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


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", PAGES, ids=lambda path: path.relative_to(paths.ROOT).as_posix()
)
def test_nothing_is_broken_when_rendered(path):
    for text in texts(path):
        assert faults(text) == []


def name_anchor(heading):
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"<!--.*?-->", "", heading)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def find_dead_links(path):
    """Return the relative links of a page that lead nowhere, and wrong anchors."""
    dead = []
    for text in texts(path):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            if re.match(r"[a-z]+:", target) or target.startswith("../../actions/"):
                continue  # another site, or the repository's own pages on GitHub
            if not file.exists():
                dead.append(target)
            elif anchor and file.suffix == ".md":
                lines = file.read_text(encoding="utf-8").splitlines()
                headings = [line.lstrip("#") for line in lines if line.startswith("#")]
                if anchor not in map(name_anchor, headings):
                    dead.append(target)
    return dead


DOCUMENTS = [*PAGES, *(paths.ROOT / "docs").glob("*.md")]
DOCUMENTS += [paths.ROOT / "hub/README.md", paths.ROOT / "leaderboard/README.md"]


@pytest.mark.parametrize(
    "path",
    sorted({path for path in DOCUMENTS if path.is_file()}),
    ids=lambda path: path.relative_to(paths.ROOT).as_posix(),
)
def test_relative_links_lead_somewhere(path):
    assert find_dead_links(path) == []


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One `more` thing\n[a](#one-more-thing) [b](page.md#two) [c](gone.md)"
        " [d](https://example.org/x)\n",
        encoding="utf-8",
    )
    assert find_dead_links(page) == ["page.md#two", "gone.md"]


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
