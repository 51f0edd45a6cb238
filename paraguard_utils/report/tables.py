"""Tables as a reader sees them.

Each estimate has its 95 % interval, NaN is a dash, and systems have titles.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis.confusion import MEASURES
from paraguard_utils.report import links
from paraguard_utils.text import replace_control

COLUMN_HEADINGS = {name: measure.heading for name, measure in MEASURES.items()} | {
    "ci_null": "CI, permuted",
    "cr60_clipped": "CR@0.60, clipped",
    "dr_change": "DR, change",
    "dr_matched": "DR, matched",
    "dr_free": "DR, free rewordings",
    "dr_near": "DR, near-copies",
    "dr_near_identical": "DR, near-identical",
    "dr_verdict": "DR is",
    "excess_equal_contrast": "excess at equal contrast",
    "excess_matched": "excess over matched floor",
    "too_few": "too few",
    "too_few_for_dr": "too few",
    "too_few_twins": "too few harmful",
    "floor_matched": "matched floor",
    "frr_change": "FRR, change",
    "n_accept": "accepted",
    "n_mixed": "mixed clusters",
    "n_reject": "refused",
    "n_scored": "scored",
    "n_unparsed": "unparsed",
    "over_verdict": "against a threshold",
    "twins_change": "twins, change",
    "twins_verdict": "twins are",
    "xstest_safe_rejected": "xstest safe",
}
"""How columns are headed in a published table; any other keeps its name, underscores as
spaces.
"""

_MAX_ROWS = 9
"""Rows of a table that a notebook shows; the CSV has all."""

_MAX_TEXT = 200
"""Characters of a text that a notebook shows."""

_MAX_WIDTH = 50
"""Characters in a row above which a LaTeX table spans both columns of a page."""

# One pass over a text, so that no replacement is replaced again. < > | print as other
# characters in TeX's own fonts.
_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "–": "--",
        "—": "---",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
    }
)
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>|~$&#"})
_NUMBER = re.compile(r"–|[+-]?[\d.]+( \[.*\])?")
_INTERVAL = re.compile(r"(?<=\d) (\[-?[\d.]+,) (-?[\d.]+\])")


class _Column(NamedTuple):
    """A column as a reader sees it."""

    heading: str
    cells: list[str]
    is_number: bool


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


def format_number(value: float, decimals: int = 3, sign: str = "") -> str:
    """Format a number; without "+" as `sign`, one that rounds to 0 has no minus."""
    return f"{value + 0.0:{sign or 'z'}.{decimals}f}"


def format_estimate(
    row: Mapping[str, float], name: str, decimals: int = 3, sign: str = ""
) -> str:
    """Format an estimate of a row as "0.123 [0.101, 0.145]" (`format_number`).

    An undefined estimate, or interval, is a dash.
    """
    if np.isnan(row[name]):
        return "–"
    value = format_number(row[name], decimals, sign)
    if np.isnan(row[f"{name}_low"]):
        return f"{value} [–]"
    low = format_number(row[f"{name}_low"], decimals, sign)
    high = format_number(row[f"{name}_high"], decimals, sign)
    return f"{value} [{low}, {high}]"


def display_table(
    store: stores.Store, name: str, frame: pd.DataFrame, most: int = _MAX_ROWS
) -> None:
    """Show the first rows of a table in a notebook, and where the rest is.

    Intervals are below their estimates. `name` is that of the CSV under the store's
    `tables/` that holds all of it; "" if there is none.
    """
    from IPython.display import Markdown, display  # commands need no notebook

    text = to_markdown(frame.head(most).map(_shorten), "").strip()
    text = _INTERVAL.sub(r"<br>\1&nbsp;\2", text)
    if name:
        folder = paths.DATA if store.recorded else store.writes
        link = links.link_to(folder / "tables" / f"{name}.csv")
        n_more = len(frame) - most
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
    """Typeset a table with booktabs, as `table*` if its rows are wide."""
    columns = _read_columns(frame)
    cells = {}
    width = 0
    for place, column in enumerate(columns):
        cells[place] = [_escape_latex(text, column.is_number) for text in column.cells]
        width += max(map(len, [column.heading, *column.cells]))
    is_wide = width > _MAX_WIDTH
    headings = [_escape_latex(column.heading, False) for column in columns]
    alignment = "".join("r" if column.is_number else "l" for column in columns)
    styler = pd.DataFrame(cells).style.hide(axis="index")
    styler.relabel_index(headings, axis="columns")
    text = styler.to_latex(
        hrules=True,
        caption=caption.translate(_LATEX),
        label=f"tab:{name}",
        position="t",
        position_float="centering",
        column_format=alignment,
        environment="table*" if is_wide else "table",
    )
    if is_wide:
        small = "\\footnotesize\\setlength{\\tabcolsep}{3pt}"
        text = text.replace("\\centering\n", f"\\centering\n{small}\n", 1)
    return text


def to_markdown(frame: pd.DataFrame, caption: str) -> str:
    """Typeset a table as a Markdown pipe table under its caption."""
    columns = _read_columns(frame)
    cells = {}
    for place, column in enumerate(columns):
        cells[place] = column.cells
        if not column.is_number:
            cells[place] = [escape_markdown(text) for text in column.cells]
    alignment = ["right" if column.is_number else "left" for column in columns]
    table = pd.DataFrame(cells).to_markdown(
        index=False,
        disable_numparse=True,
        headers=[escape_markdown(column.heading) for column in columns],
        colalign=alignment if len(frame) else None,
    )
    return f"{escape_markdown(caption)}\n\n{table}\n"


def escape_markdown(text: str) -> str:
    """Escape what Markdown takes for markup."""
    return text.translate(_MARKDOWN)


def _read_columns(frame: pd.DataFrame) -> list[_Column]:
    """Return the columns of a table as a reader sees them, each cell one line of text.

    Systems have their titles, and measures their headings.
    """
    columns = []
    for name in frame.columns:
        values = list(frame[name])
        if name == "system":
            values = registry.display_titles(values)
        if name == "measure":
            values = [COLUMN_HEADINGS.get(value, value) for value in values]
        cells = [_to_text(value) for value in values]
        is_number = all(map(_NUMBER.fullmatch, cells)) and set(cells) != {"–"}
        heading = COLUMN_HEADINGS.get(name, str(name).replace("_", " "))
        columns.append(_Column(heading, cells, is_number))
    return columns


def _to_text(value: object) -> str:
    """Return one cell as one line of text."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if pd.isna(value):
        return "–"
    if isinstance(value, float | np.floating):
        return format_number(float(value))
    return replace_control(" ".join(str(value).split()))


def _escape_latex(text: str, is_number: bool) -> str:
    """Escape what LaTeX takes for markup; a number has a proper minus."""
    escaped = text.translate(_LATEX)
    if is_number and text != "–":
        return escaped.replace("-", "$-$").replace("[$-$$-$]", "[--]")
    # After a line break, TeX would take a first [ or * as an argument of the break.
    if escaped.startswith(("[", "*")):
        return f"{{{escaped[0]}}}{escaped[1:]}"
    return escaped
