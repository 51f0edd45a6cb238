"""Tables as a reader sees them: each estimate with its 95 % interval, NaN as a dash,
titles instead of ids.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils import registry, stores
from paraguard_utils.core.estimates import MIN_MIXED
from paraguard_utils.core.measures import MEASURES
from paraguard_utils.schemas import Table
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
    "system": "system",
    "twins_change": "twins, change",
    "twins_verdict": "twins are",
    "xstest_safe_rejected": "xstest safe",
}
"""How columns are headed in a published table; any other keeps its name, underscores as
spaces.
"""

_MAX_ROWS, _MAX_TEXT = (
    9,
    200,
)  # rows of a table, characters of a text, that a notebook shows; the CSV has all
# Characters in a row above which a LaTeX table spans both columns of a page, in small
# print
_MAX_WIDTH = 50

# One pass over a text, so that no replacement is replaced again. < > | print as other
# characters in TeX's own fonts.
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "–": "--",
        "—": "---",
    }
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
)
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>|~$&#"})
_NUMBER = re.compile(r"–|[+-]?[\d.]+( \[.*\])?")


def format_estimates(
    frame: pd.DataFrame, estimates: Sequence[str], others: Sequence[str] = ()
) -> pd.DataFrame:
    """Format estimates (columns `x`, `x_low`, `x_high`) as "0.123 [0.101, 0.145]",
    after other columns as they are.
    """
    rows = frame.to_dict("records")
    return frame[list(others)].assign(
        **{name: [format_estimate(row, name) for row in rows] for name in estimates}
    )


def pivot(
    frame: pd.DataFrame,
    keys: Sequence[str],
    estimates: Sequence[str],
    by: str = "interpretation",
) -> pd.DataFrame:
    """Format estimates and put the values of one column side by side, such as the two
    interpretations of the PPL contrast.

    `frame` has a row for each combination of `keys` and `by`. Returns the keys, then
    columns "ESTIMATE, VALUE of `by`".
    """
    keys, groups = list(keys), frame.groupby(by, sort=False)
    parts = {
        value: format_estimates(rows, estimates, keys).set_index(keys)
        for value, rows in groups
    }
    if not parts:
        return pd.DataFrame(columns=keys)
    shown = [(COLUMN_HEADINGS.get(name, name), name) for name in estimates]
    columns = {
        f"{heading}, {value}": parts[value][name]
        for heading, name in shown
        for value in parts
    }
    return pd.concat(columns, axis="columns").reset_index()


def format_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Format a whole frame: `x`, `x_low`, `x_high` as one column `x`, other numbers to
    three decimals.
    """
    estimates = [name for name in frame if f"{name}_low" in frame]
    ends = {f"{name}{end}" for name in estimates for end in ("_low", "_high")}
    shown = [name for name in frame if name not in ends]
    return format_estimates(
        frame, estimates, [name for name in shown if name not in estimates]
    )[shown].round(3)


def format_number(value: float, decimals: int = 3, sign: str = "") -> str:
    """Format a number; without "+" as `sign`, one that rounds to 0 has no minus."""
    return f"{value + 0.0:{sign or 'z'}.{decimals}f}"


def format_estimate(
    row: Mapping[str, float], name: str, decimals: int = 3, sign: str = ""
) -> str:
    """Format an estimate of a row as "0.123 [0.101, 0.145]" (`format_number`).

    A dash where undefined.
    """
    value, low, high = (
        format_number(row[f"{name}{end}"], decimals, sign)
        for end in ("", "_low", "_high")
    )
    if np.isnan(row[name]):
        return "–"
    return (
        f"{value} [–]" if np.isnan(row[f"{name}_low"]) else f"{value} [{low}, {high}]"
    )


def too_few_for_excess(table: Table) -> pd.Series:
    """Return which rows of Table 1 or 3 rest on too few rejections or mixed clusters
    for their excess to be judged.
    """
    return table["too_few"] | (table["n_mixed"] < MIN_MIXED)


def display_table(
    store: stores.Store, name: str, frame: pd.DataFrame, most: int = _MAX_ROWS
) -> None:
    """Show the first rows of a display table in a notebook, intervals below their
    estimates, and where the rest stands.

    `name` is that of the CSV under the store's `tables/` that holds all of it; "" if
    there is none.
    """
    from IPython.display import (
        Markdown,
        display,
    )  # commands make tables too, and need no notebook

    def cut(value: object) -> object:
        return (
            f"{value[:_MAX_TEXT].rstrip()} …"
            if isinstance(value, str) and len(value) > _MAX_TEXT
            else value
        )

    text = to_markdown(frame.head(most).map(cut), "").strip()
    text = re.sub(r"(?<=\d) (\[-?[\d.]+,) (-?[\d.]+\])", r"<br>\1&nbsp;\2", text)
    rest = f"{len(frame) - most} more rows: " if len(frame) > most else "All columns: "
    folder = "../data/tables" if store.recorded else "../tables"
    display(
        Markdown(f"{text}\n\n{rest}[{name}.csv]({folder}/{name}.csv)" if name else text)
    )


def publish_table(
    store: stores.Store, name: str, frame: pd.DataFrame, caption: str
) -> None:
    """Write a display table as LaTeX (booktabs, label `tab:NAME`) and Markdown under
    the store's `tables/`.

    Texts are data: all markup in them is escaped. Columns of numbers are set to the
    right, others to the left.
    """
    path = store.output_path("tables", name)
    stores.write_text(path.with_suffix(".tex"), to_latex(frame, caption, name))
    stores.write_text(path.with_suffix(".md"), to_markdown(frame, caption))


def to_latex(frame: pd.DataFrame, caption: str, name: str) -> str:
    """Typeset a display table with booktabs, as `table*` if its rows are wide."""
    columns = _columns(frame)
    cells = pd.DataFrame(
        dict(
            enumerate(
                [_tex(text, number) for text in texts] for _, texts, number in columns
            )
        )
    )
    wide = (
        sum(max(map(len, (heading, *texts))) for heading, texts, _ in columns)
        > _MAX_WIDTH
    )
    styler = cells.style.hide(axis="index")
    styler.relabel_index(
        [_tex(heading, False) for heading, _, _ in columns], axis="columns"
    )
    text = styler.to_latex(
        hrules=True,
        caption=caption.translate(_LATEX),
        label=f"tab:{name}",
        position="t",
        position_float="centering",
        column_format="".join("r" if number else "l" for _, _, number in columns),
        environment="table*" if wide else "table",
    )
    small = "\\centering\n\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
    return text.replace("\\centering\n", small, 1) if wide else text


def to_markdown(frame: pd.DataFrame, caption: str) -> str:
    """Set a display table as a Markdown pipe table under its caption."""
    columns = _columns(frame)
    cells = [
        texts if number else [escape_markdown(text) for text in texts]
        for _, texts, number in columns
    ]
    table = pd.DataFrame(dict(enumerate(cells))).to_markdown(
        index=False,
        disable_numparse=True,
        headers=[escape_markdown(heading) for heading, _, _ in columns],
        colalign=(
            ["right" if number else "left" for _, _, number in columns]
            if len(frame)
            else None
        ),
    )
    return f"{escape_markdown(caption)}\n\n{table}\n"


def escape_markdown(text: str) -> str:
    """Escape what Markdown takes for markup."""
    return text.translate(_MARKDOWN)


def _columns(frame: pd.DataFrame) -> list[tuple[str, list[str], bool]]:
    """Turn every column into its heading, its cells as one line of text each, and
    whether they are numbers.
    """
    columns = []
    for name in frame.columns:
        values = (
            registry.display_titles(frame[name])
            if name in ("system", "system")
            else frame[name]
        )
        if name == "measure":
            values = [COLUMN_HEADINGS.get(value, value) for value in values]
        texts = [_text(value) for value in values]
        number = all(_NUMBER.fullmatch(text) for text in texts) and set(texts) != {"–"}
        columns.append(
            (COLUMN_HEADINGS.get(name, str(name).replace("_", " ")), texts, number)
        )
    return columns


def _text(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if pd.isna(value):
        return "–"
    if isinstance(value, float | np.floating):
        return format_number(float(value))
    return replace_control(" ".join(str(value).split()))


def _tex(text: str, number: bool) -> str:
    escaped = text.translate(_LATEX)
    if number and text != "–":
        return escaped.replace("-", "$-$").replace("[$-$$-$]", "[--]")
    # After a line break, TeX would take a first [ or * as an argument of the break.
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped
