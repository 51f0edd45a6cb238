"""README, data card and notebooks as a reader of GitHub sees them."""

import re

import nbformat
import pandas as pd
import pytest
from markdown_it import MarkdownIt

from paraguard_lab import run
from paraguard_lab.report import numbers
from paraguard_utils import paths
from paraguard_utils.errors import DataError

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


RATES = pd.DataFrame(
    {
        "name": ["a", "b", "c"],
        "n": [1200, 3, 5],
        "of": [2000, 4, 5],
        "rate": [0.6, 0.755, None],
        "rate_low": [0.5, 0.7, None],
        "rate_high": [0.7, 0.8, None],
        "too_few": [False, False, True],
    }
)


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("rates", "3"),
        ("rates[few]", "1"),
        ("rates[too_few == True and n > 9]", "0"),
        ("rates.n", "3 to 1,200"),
        ("rates[name == 'a'].n of of", "1,200 of 2,000"),
        ("rates.few", "1 of 3"),
        ("rates[not too_few].n > 9", "1 of 2"),
        ("rates.rate:.2f", "0.60 to 0.76"),
        ("rates[n > 9].rate:+.1f", "+0.6"),
        ("rates.1 - rate:.0f %", "24 % to 40 %"),
        ("rates[name == 'a'].rate:.0%", "60%"),
        ("rates[name == 'a'].rate±", "0.600 [0.500, 0.700]"),
        ("rates[name == 'b'].rate±:.1f", "0.8 [0.7, 0.8]"),
        ("rates[few].rate", "–"),
        ("rates[name != 'c'].name", "a to b"),
        ("rates.(n * of).sum() of n.max()", "2,400,037 of 1,200"),
    ],
)
def test_a_mark_shows_what_it_names(mark, text):
    assert numbers.evaluate_mark(mark, None, {"rates": RATES}) == text


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        ("rates[n > 9", "is not TABLE"),
        ("a b", "is not TABLE"),
        ("rates[n > 9999].n", "no row"),
    ],
)
def test_a_mark_that_names_nothing_is_an_error(mark, error):
    with pytest.raises(DataError, match=error):
        numbers.evaluate_mark(mark, None, {"rates": RATES})
