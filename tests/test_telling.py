"""The words and the code that readers see: plain, short, defined before use (CONTRIBUTING, How the project speaks)."""

import re

import nbformat
import pytest

from paraguard_utils import paths, run
from paraguard_utils.report.numbers import remove_marks

BANNED = {
    "surely": "the interval excludes 0",
    "for sure": "the interval excludes 0",
    "told apart": "we can, or cannot, tell them apart",
    "not seen to": "we cannot tell",
    "moves along": "say what is exchanged for what",
    "dice": "chance (asking again)",
    "wrapper": "instruction, or system prompt",
    "target": "system",
}
"""Words that only this project knew, and what to say instead."""

EXCEPTIONS = {
    ("docs/refusing_too_much.md", "wrapper"): "names the file of system prompts",
    ("docs/scale.md", "wrapper"): "names the parameter",
}
"""Page and word that may stand there, and why."""

MAX_LINES, MAX_COLUMNS, MAX_BEFORE_OUTPUT = 15, 88, 45
MAX_HEADLINE_WORDS, MAX_HEADLINE_NUMBERS = 25, 2

NOTEBOOKS = run.list_notebooks()
PAGES = [paths.ROOT / "README.md", *sorted((paths.ROOT / "docs").glob("*.md"))]

PLAIN_COLUMNS = {"system", "text", "label", "answer", "strategy", "n", "share", "total", "claim", "verdict", "term"}
"""Headings that say what they are."""


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def prose(text):
    """Return a page's sentences: without code, links' addresses, tables' rules, marks and formulas."""
    text = remove_marks(re.sub(r"(?s)```.*?```", "", text))
    text = re.sub(r"`[^`]*`|\$[^$]*\$", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def pages():
    found = {path.relative_to(paths.ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
    return found | {path.name: "\n\n".join(cell.source for cell in cells(path, "markdown")) for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_fits_a_page_and_says_soon_what_it_finds(path):
    before, shown = 0, False
    for number, cell in enumerate(cells(path, "code")):
        lines, parameters = cell.source.split("\n"), "parameters" in cell.metadata.get("tags", [])
        assert parameters or len(lines) <= MAX_LINES, f"cell {number}: {len(lines)} lines"
        assert max(map(len, lines)) <= MAX_COLUMNS, f"cell {number}: {max(lines, key=len)}"
        before += 0 if shown or parameters else len(lines)
        shown = shown or bool(cell.outputs)
        results = [output for output in cell.outputs if output.output_type == "execute_result"]
        assert not results, f"cell {number} shows the value of its last line"
    assert before <= MAX_BEFORE_OUTPUT


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem[0] != "A"], ids=lambda path: path.stem)
def test_a_notebook_opens_with_a_question_and_one_short_finding(path):
    title, headline = cells(path, "markdown")[0].source.split("\n\n")[:2]
    assert re.fullmatch(r"# \d\d · [^\n]+\?", title)
    bold = re.match(r"\*\*(.+?)\*\*(?!\*)", headline.replace("***", "**_"))
    assert bold, headline
    alone = re.sub(
        r"<!--=.*?-->(.*?)<!--=-->", lambda mark: "NUMBER" if re.search(r"\d", mark[1]) else mark[1], bold[1]
    )
    assert len(alone.split()) <= MAX_HEADLINE_WORDS, alone
    assert len(re.findall(r"NUMBER|(?<![\w.-])\d[\d,.]*(?![\w-])", alone)) <= MAX_HEADLINE_NUMBERS, alone


def test_no_line_begins_with_a_mark():
    """Markdown takes such a line for a block of HTML, and ends the paragraph."""
    for name, text in pages().items():
        found = re.findall(r"(?m)^[ >*-]*<!--=.*", text)
        assert not found, (name, found[0])


@pytest.mark.parametrize("word", BANNED)
def test_words_that_only_this_project_knew_are_gone(word):
    found = {
        name: re.search(rf"(?i).{{0,40}}\b{word}s?\b.{{0,20}}", prose(text))
        for name, text in pages().items()
        if (name, word) not in EXCEPTIONS
    }
    assert {name: match[0] for name, match in found.items() if match} == {}, f"say: {BANNED[word]}"


def test_every_exception_is_used():
    texts = pages()
    for name, word in EXCEPTIONS:
        assert re.search(rf"(?i)\b{word}s?\b", prose(texts[name])), (name, word)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_columns_of_tables_are_explained(path):
    text = re.sub(r"\s+", " ", "\n".join(cell.source for cell in cells(path, "markdown"))).casefold().replace("_", " ")
    for number, cell in enumerate(cells(path, "code")):
        for output in cell.outputs:
            table = output.get("data", {}).get("text/markdown", "")
            header = table.lstrip().partition("\n")[0]
            names = [name.strip() for name in header.strip("| ").split("|")] if header.startswith("|") else []
            for name in (one.replace("\\", "").replace("_", " ").casefold() for one in names if one):
                words = [word for word in re.findall(r"\w+", name) if len(word) > 2]
                assert name.isdigit() or name in PLAIN_COLUMNS or any(word in text for word in [name, *words]), (
                    f"cell {number}: {name}"
                )


def test_the_method_is_read_in_one_sitting():
    assert len((paths.ROOT / "docs" / "method.md").read_text(encoding="utf-8").split()) <= 5_000
