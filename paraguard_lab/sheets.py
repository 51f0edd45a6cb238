"""Texts that a spreadsheet may open."""

import re

import pandas as pd

FORMULA_START = r"(?:\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])"
"""How a text begins that a spreadsheet would run as a formula; the explorer's page uses
this pattern too. White space before the mark does not stop all of them, and some take
the full-width forms of the marks too."""


_ESCAPED = rf"'*{FORMULA_START}"
"""Such a text, or one that already has apostrophes before it."""


def escape_formulas(cells: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Put an apostrophe before each text that a spreadsheet would run as a formula.

    A text that begins with apostrophes and a formula gets one more, so that
    `unescape_formulas` finds the way back. A carriage return becomes a line feed: a CSV
    writer puts only the line ends that it writes itself into quotes, and a reader takes
    the other kind for a new row.
    """
    marked = cells.replace(rf"\A({_ESCAPED})", r"'\1", regex=True)
    return marked.replace("\r\n?", "\n", regex=True)


def unescape_formulas(cells: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Take back the apostrophes of `escape_formulas`; line feeds stay.

    Examples
    --------
    >>> unescape_formulas(pd.Series(["'=1+1", "'tis", "''=1+1"])).tolist()
    ['=1+1', "'tis", "'=1+1"]
    """
    return cells.replace(rf"\A'({_ESCAPED})", r"\1", regex=True)


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def _is_number(text: object) -> bool:
    return isinstance(text, str) and _NUMBER.fullmatch(text) is not None


def format_sheet(frame: pd.DataFrame) -> str:
    r"""Return a table as CSV that a spreadsheet may open.

    Every column that does not hold numbers is text, and escaped; a text that is a
    number by itself is none that a spreadsheet runs, and stays.

    Examples
    --------
    >>> format_sheet(pd.DataFrame({"n": [-1], "text": ["=cmd"]}))
    "n,text\n-1,'=cmd\n"
    """
    shown = frame.copy()
    for name in frame.select_dtypes(exclude="number"):
        texts = frame[name].astype(object)
        texts = texts.where(texts.isna(), texts.map(str))
        is_number = texts.map(_is_number).astype(bool)
        shown[name] = escape_formulas(texts).where(~is_number, texts)
    shown.columns = escape_formulas(pd.Series(frame.columns.map(str), dtype=object))
    return shown.to_csv(index=False, lineterminator="\n")
