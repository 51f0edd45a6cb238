"""Sentences with numbers, each filled in from the table that it names.

A mark is `TABLE[ROWS].COLUMN:FORMAT`; only TABLE must be there:

- TABLE is a table of the store, or one of `DERIVED_TABLES`.
- ROWS is a condition (`selection.GRAMMAR`). Without a column, the number of rows is
  shown.
- COLUMN is a column or an expression of the same grammar. One value is shown as it is,
  several as the range "low to high", conditions as "n of m", `x±` as an estimate with
  its 95 % interval (`x±:.0f %` in percent), and `a of b` as both.
- FORMAT is one of Python's for numbers, such as ".2f", "+.1f" or "g"; ".0f %" shows a
  share in percent.

A notebook shows the numbers of its own run with `show`, which takes marks in braces.
README and the docs have the record's (`paraguard_lab.report.numbers`).
"""

import re
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.errors import DataError, Missing
from paraguard_utils.report import findings, paper, selection, tables
from paraguard_utils.schemas import Table
from paraguard_utils.stores import Store

TableReader: TypeAlias = Callable[[str], pd.DataFrame]
"""Returns a table by its name."""

_UNKNOWN = "–"
"""What is shown for a number that is undefined, or that a run does not have."""

_MARK = re.compile(r"(\w+)(?:\[(.+?)\])?(?:\.(.+?))?(?::([^:\]]+))?")
_PLACE = re.compile(r"\{(\w[^{}]*)\}")
_FORMAT = re.compile(r"\+?,?(\.\d)?[efg%]?( %)?")


class NoSuchRow(DataError):
    """A mark selects no row of its table."""


DERIVED_TABLES: dict[str, Callable[[Store], pd.DataFrame]] = {
    "claims": findings.count_claims,
    "paper": lambda store: paper.read_paper_values().reset_index(),
}
"""Tables that are in no store, made from those that are; other packages add theirs."""


def show(store: Store, text: str, **frames: Table) -> None:
    """Show Markdown in a notebook, with numbers of this run.

    Parameters
    ----------
    store : Store
        Where tables are read.
    text : str
        Markdown with marks in braces. A mark may go over several lines.
    **frames : DataFrame
        Tables by name, such as those that the notebook has just made. They come before
        the store's.

    Examples
    --------
    >>> show(store, "DR of free rewordings is {wording[not too_few].dr_free:.2f}.")
    """
    from IPython.display import Markdown, display  # an audit has no notebook

    @cache
    def read(name: str) -> pd.DataFrame:
        return frames[name] if name in frames else read_named_table(store, name)

    filled = fill_sentences(text, read, is_complete=store.recorded)
    display(Markdown(filled))


def fill_sentences(text: str, read: TableReader, is_complete: bool = True) -> str:
    """Replace the marks of a text, which are in braces, by what they name.

    A run of one's own may lack a table or a row: unless everything `is_complete`, a
    dash is written there instead of raising DataError.

    Examples
    --------
    >>> rates = pd.DataFrame({"system": ["a", "b"], "frr": [0.25, 0.5]})
    >>> fill_sentences("FRR is {rates.frr:.0f %} in {rates} systems.", lambda _: rates)
    'FRR is 25 % to 50 % in 2 systems.'
    """

    def fill(place: re.Match[str]) -> str:
        mark = " ".join(place[1].split())
        try:
            return evaluate_mark(mark, read)
        except (Missing, NoSuchRow):
            if is_complete:
                raise
            return _UNKNOWN

    return _PLACE.sub(fill, text)


def read_named_table(store: Store, name: str) -> pd.DataFrame:
    """Read a table that a mark names, or raise Missing."""
    if name in DERIVED_TABLES:
        return DERIVED_TABLES[name](store)
    return store.read("tables", name)


def evaluate_mark(mark: str, read: TableReader) -> str:
    """Return the text of a mark; DataError if it is none, or selects no row."""
    try:
        return _fill_mark(mark, read)
    except DataError as error:
        shown = mark[: selection.MAX_LENGTH]
        raise type(error)(f"the mark {shown!r}: {error}") from None


def _fill_mark(mark: str, read: TableReader) -> str:
    parts = _MARK.fullmatch(mark) if len(mark) <= selection.MAX_LENGTH else None
    if not parts:
        raise DataError(
            "it is not TABLE[ROWS].COLUMN:FORMAT of at most"
            f" {selection.MAX_LENGTH} characters"
        )
    name, rows, columns, style = parts.groups()
    if style and not _FORMAT.fullmatch(style):
        raise DataError(
            f"the format {style!r} is not one such as .2f, +.1f, g or .0f %"
        )
    frame = read(name)
    if rows:
        frame = selection.select_rows(frame, rows)
    if not columns:
        return f"{len(frame):,}"
    if frame.empty:
        raise NoSuchRow("it selects no row")
    texts = []
    for column in columns.split(" of "):
        texts.append(_format_column(frame, column, style or ""))
    return " of ".join(texts)


def _format_column(frame: pd.DataFrame, column: str, style: str) -> str:
    """Return the values of a column or an expression as prose shows them."""
    if column.endswith("±"):
        return _format_interval(frame, column.removesuffix("±"), style)
    values = selection.read_values(frame, column)
    if values.dtype == bool:
        return f"{values.sum()} of {len(values)}"
    if not pd.api.types.is_numeric_dtype(values):
        return _join_different(values.where(values.notna(), _UNKNOWN))
    if not np.isfinite(values).any():
        return _UNKNOWN
    if not style:
        style = "," if values.dtype.kind == "i" else "g"
    ends = (np.nanmin(values), np.nanmax(values))
    return _join_different([_format_number(end, style) for end in ends])


def _format_interval(frame: pd.DataFrame, name: str, style: str) -> str:
    """Return the estimate of one row with its interval."""
    if len(frame) > 1:
        raise DataError(f"{name}± shows one row, and {len(frame)} are selected")
    missing = [end for end in ("", "_low", "_high") if f"{name}{end}" not in frame]
    if missing:
        raise DataError(f"there is no column {name}{missing[0]}")
    parts = re.fullmatch(r"(?:\.(\d)f)?( %)?", style)
    if not parts:
        raise DataError(f"the format of {name}± is one such as .2f, not {style!r}")
    decimals = int(parts[1] or 3)
    if not parts[2]:
        return tables.format_estimate(frame.to_dict("records")[0], name, decimals)
    shares = 100 * frame[[name, f"{name}_low", f"{name}_high"]]
    text = tables.format_estimate(shares.to_dict("records")[0], name, decimals)
    return text.replace(" ", " % ", 1)


def _format_number(value: float, style: str) -> str:
    """Format a number by a format of Python's, or as percent by one with " %"."""
    if style.endswith(" %"):
        return f"{100 * value:{style.removesuffix(' %')}} %"
    return format(value, style)


def _join_different(texts: pd.Series | list[str]) -> str:
    """Join the different ones of some texts by "to"."""
    return " to ".join(dict.fromkeys(texts))
