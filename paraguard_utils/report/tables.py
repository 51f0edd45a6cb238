"""Tables as a reader sees them.

Each estimate has its 95 % interval, NaN is a dash, and systems have titles.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis.confusion import MEASURES
from paraguard_utils.text import replace_control

COLUMN_HEADINGS = {name: measure.heading for name, measure in MEASURES.items()} | {
    "auc_equal_length": "AUC, equal length",
    "cr60_clipped": "CR@0.60, clipped",
    "dr_free": "DR, free rewordings",
    "dr_near": "DR, near-copies",
    "too_few": "too few",
    "too_few_for_dr": "too few",
    "n_accept": "accepted",
    "n_reject": "refused",
    "n_scored": "scored",
    "n_unparsed": "unparsed",
}
"""How columns are headed in a published table; any other keeps its name, underscores as
spaces. Other packages add theirs.
"""

MOST_ROWS = 9
"""Rows of a table that a notebook shows; the CSV has all."""

_MAX_TEXT = 200
"""Characters of a text that a notebook shows."""

_TEX_NAMES = {
    "~": "asciitilde",
    "^": "asciicircum",
    "\\": "backslash",
    "<": "less",
    ">": "greater",
    "|": "bar",
}
"""Characters that TeX prints as others, or takes for markup, without these names."""

# One pass over a text, so that no replacement is replaced again
_LATEX = {ord(mark): f"\\{mark}" for mark in "&%$#_{}"}
_LATEX |= {ord(mark): f"\\text{name}{{}}" for mark, name in _TEX_NAMES.items()}
_LATEX |= {ord("–"): "--", ord("—"): "---", ord('"'): "''"}
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>|~$&#"})
_NUMBER = re.compile(r"–|[+-]?[\d.]+( \[[-+.\d, –]*\])?")
_INTERVAL = re.compile(r"(?<=\d) (\[-?[\d.]+,) (-?[\d.]+\])")


def format_estimates(
    frame: pd.DataFrame, estimates: Sequence[str], others: Sequence[str] = ()
) -> pd.DataFrame:
    """Format estimates as "0.123 [0.101, 0.145]", after other columns as they are.

    An estimate is three columns of `frame`: `x`, `x_low` and `x_high`.
    """
    rows = frame.to_dict("records")
    shown = frame[list(others)].copy()
    for name in estimates:
        shown[name] = [format_estimate(row, name) for row in rows]
    return shown


def format_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Format a whole frame: estimates with their intervals, other numbers rounded.

    `x`, `x_low` and `x_high` become one column `x`; other numbers have three decimals.
    """
    estimates = [name for name in frame if f"{name}_low" in frame]
    ends = set()
    for name in estimates:
        ends |= {f"{name}_low", f"{name}_high"}
    columns = [name for name in frame if name not in ends]
    others = [name for name in columns if name not in estimates]
    return format_estimates(frame, estimates, others)[columns].round(3)


def format_number(value: float, decimals: int = 3) -> str:
    """Format a number; one that rounds to 0 has no minus."""
    return f"{value:z.{decimals}f}"


def format_estimate(row: Mapping[str, float], name: str, decimals: int = 3) -> str:
    """Format an estimate of a row as "0.123 [0.101, 0.145]" (`format_number`).

    An undefined estimate, or interval, is a dash.
    """
    if np.isnan(row[name]):
        return "–"
    value = format_number(row[name], decimals)
    if np.isnan(row[f"{name}_low"]) or np.isnan(row[f"{name}_high"]):
        return f"{value} [–]"
    low = format_number(row[f"{name}_low"], decimals)
    high = format_number(row[f"{name}_high"], decimals)
    return f"{value} [{low}, {high}]"


def display_table(
    store: stores.Store, name: str, frame: pd.DataFrame, most: int = MOST_ROWS
) -> None:
    """Show the first rows of a table in a notebook, and where the rest is.

    Intervals are below their estimates. `name` is that of the CSV under the store's
    `tables/` that holds all of it; "" if there is none.
    """
    from IPython.display import Markdown, display  # commands need no notebook

    text = to_markdown(frame.head(most).map(_shorten), "").strip()
    text = _INTERVAL.sub(r"<br>\1&nbsp;\2", text)
    n_more = len(frame) - most
    if n_more > 0 and not name:
        text += f"\n\n{n_more} more rows are not shown."
    if name:
        folder = paths.DATA if store.recorded else store.writes
        file = folder / "tables" / f"{name}.csv"
        here = Path.cwd()
        if not here.is_relative_to(paths.NOTEBOOKS):
            here = paths.NOTEBOOKS
        link = Path(os.path.relpath(file, here)).as_posix()
        where = f"{n_more} more rows: " if n_more > 0 else "All columns: "
        text += f"\n\n{where}[{name}.csv]({link})"
    display(Markdown(text))


def _shorten(value: object) -> object:
    """Cut a text that is too long for a notebook."""
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT].rstrip()} …"
    return value


def publish_table(
    store: stores.Store, name: str, frame: pd.DataFrame, caption: str
) -> None:
    """Write a table as LaTeX and Markdown under the store's `tables/`.

    LaTeX is for booktabs, with the label `tab:NAME`. Texts are data: all markup in them
    is escaped. Columns of numbers are aligned right, others left.
    """
    path = store.output_path("tables", name)
    stores.write_text(path.with_suffix(".tex"), to_latex(frame, caption, name))
    stores.write_text(path.with_suffix(".md"), to_markdown(frame, caption))


def to_latex(frame: pd.DataFrame, caption: str, name: str) -> str:
    """Typeset a table with booktabs, over both columns of a page."""
    headings, cells, alignment = _read_columns(frame)
    styler = cells.map(_escape_latex).style.hide(axis="index")
    styler.relabel_index(list(map(_escape_latex, headings)), axis="columns")
    text = styler.to_latex(
        hrules=True,
        caption=caption.translate(_LATEX),
        label=f"tab:{name}",
        position="t",
        position_float="centering",
        column_format="".join(side[0] for side in alignment),
        environment="table*",
    )
    small = "\\footnotesize\\setlength{\\tabcolsep}{3pt}"
    return text.replace("\\centering\n", f"\\centering\n{small}\n", 1)


def _escape_latex(text: str) -> str:
    """Escape what LaTeX takes for markup; a number has a proper minus."""
    if _NUMBER.fullmatch(text):
        return text.replace("-", "$-$").replace("–", "--")
    # After a line break, TeX would take a first [ or * as an argument of the break.
    return re.sub(r"\A[\[*]", r"{\g<0>}", text.translate(_LATEX))


def to_markdown(frame: pd.DataFrame, caption: str) -> str:
    """Typeset a table as a Markdown pipe table under its caption."""
    headings, cells, alignment = _read_columns(frame)
    table = cells.map(_escape_cell).to_markdown(
        index=False,
        disable_numparse=True,
        headers=list(map(escape_markdown, headings)),
        colalign=alignment if len(frame) else None,
    )
    return f"{escape_markdown(caption)}\n\n{table}\n"


def _escape_cell(text: str) -> str:
    return text if _NUMBER.fullmatch(text) else escape_markdown(text)


def escape_markdown(text: str) -> str:
    """Escape what Markdown takes for markup."""
    return text.translate(_MARKDOWN)


def _read_columns(frame: pd.DataFrame) -> tuple[list[str], pd.DataFrame, list[str]]:
    """Return a table's headings, its cells as lines of text, and how to align columns.

    Systems have their titles, and measures their headings.
    """
    headings = []
    cells = {}
    alignment = []
    for place, name in enumerate(frame.columns):
        values = list(frame[name])
        if name == "system":
            values = registry.display_titles(values)
        if name == "measure":
            values = [COLUMN_HEADINGS.get(value, value) for value in values]
        texts = list(map(_to_text, values))
        is_number = all(map(_NUMBER.fullmatch, texts)) and set(texts) != {"–"}
        headings.append(COLUMN_HEADINGS.get(name, str(name).replace("_", " ")))
        cells[place] = texts
        alignment.append("right" if is_number else "left")
    return headings, pd.DataFrame(cells), alignment


def _to_text(value: object) -> str:
    """Return one cell as one line of text."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if pd.isna(value):
        return "–"
    if isinstance(value, float):
        return format_number(value)
    return replace_control(" ".join(str(value).split()))
