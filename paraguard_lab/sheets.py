"""Texts that a spreadsheet may open."""

import pandas as pd

FORMULA_START = r"(?:\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])"
"""How a text begins that a spreadsheet would run as a formula; the explorer's page uses
this pattern too. White space before the mark does not stop all of them, and some take
the full-width forms of the marks too."""


def escape_formulas(cells: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Put an apostrophe before each text that a spreadsheet would run as a formula.

    A carriage return becomes a line feed: a CSV writer puts only the line ends that it
    writes itself into quotes, and a reader takes the other kind for a new row.
    """
    marked = cells.replace(rf"\A({FORMULA_START})", r"'\1", regex=True)
    return marked.replace("\r\n?", "\n", regex=True)


def format_sheet(frame: pd.DataFrame) -> str:
    r"""Return a table as CSV that a spreadsheet may open.

    Every column that does not hold numbers is text, and escaped.

    Examples
    --------
    >>> format_sheet(pd.DataFrame({"n": [-1], "text": ["=cmd"]}))
    "n,text\n-1,'=cmd\n"
    """
    shown = frame.copy()
    for name in frame.select_dtypes(exclude="number"):
        texts = frame[name].astype(object)
        shown[name] = escape_formulas(texts.where(texts.isna(), texts.map(str)))
    shown.columns = escape_formulas(pd.Series(frame.columns.map(str), dtype=object))
    return shown.to_csv(index=False, lineterminator="\n")
