"""Tables as a reader sees them: three decimals, each estimate with its 95 % interval, NaN as a dash.

`publish` writes one as LaTeX and as Markdown, for a paper to include; the CSV beside them holds the full numbers.
"""

import re

import numpy as np
import pandas as pd

from paraguard_utils import registry, stores
from paraguard_utils.text import readable

HEADINGS = {
    "cd": "CD",
    "ci": "CI",
    "ci_null": "CI, permuted",
    "ci_theta": "CI, similar neighbours",
    "cr60": "CR@0.60",
    "cr75": "CR@0.75",
    "cr_floor": "CR@floor",
    "excess_drift": "excess, Drift",
    "excess_equal_contrast": "excess at equal contrast",
    "excess_matched": "excess over matched floor",
    "excess_no_prob_shift": "excess without ProbShift",
    "excess_ppl": "excess, PPL contrast",
    "excess_prob_shift": "excess, ProbShift",
    "flip_random": "flip rate at random",
    "floor_matched": "matched floor",
    "frr": "FRR",
    "frr_blocked": "FRR with blocked",
    "n_accept": "accepted",
    "n_mixed": "mixed clusters",
    "n_prompts": "prompts",
    "n_reject": "rejections",
    "n_scored": "scored",
    "n_unparsed": "unparsed",
    "reference": "reference target",
    "share_theta": "with similar neighbour",
}
"""How columns are headed in a published table; any other keeps its name, underscores as spaces."""

WIDE = 50
"""Characters in a row above which a LaTeX table spans both columns of a page, in small print."""

# One pass over a text, so that no replacement is replaced again. < > | print as other characters in TeX's own fonts.
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "–": "--", "—": "---"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
)
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>|~$&#"})
_NUMBER = re.compile(r"–|[+-]?[\d.]+( \[.*\])?")


def shown(frame, estimates, others=()):
    """Make a display table from estimate columns `x`, `x_low`, `x_high`.

    Parameters
    ----------
    frame : DataFrame
    estimates : sequence of str
        Estimates to show, each as "0.123 [0.101, 0.145]".
    others : sequence of str
        Columns put before them as they are.

    Returns
    -------
    DataFrame of str
    """
    columns = {name: frame[name] for name in others}
    for name in estimates:
        columns[name] = [
            interval(*values) for values in frame[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        ]
    return pd.DataFrame(columns)


def rounded(frame):
    """Make a display table of a whole frame: estimates with their intervals, other numbers to three decimals.

    Parameters
    ----------
    frame : DataFrame
        Columns `x`, `x_low`, `x_high` become one column `x`.

    Returns
    -------
    DataFrame
    """
    columns = {}
    for name in frame.columns:
        if f"{name}_low" in frame.columns:
            columns[name] = shown(frame, [name])[name]
        elif not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in frame.columns):
            columns[name] = frame[name].round(3) if frame[name].dtype.kind == "f" else frame[name]
    return pd.DataFrame(columns)


def interval(value, low, high):
    """Format one estimate with its interval; a dash where either is undefined."""
    if np.isnan(value):
        return "–"
    texts = [f"{round(number, 3) + 0.0:.3f}" for number in (value, low, high)]  # no -0.000
    return f"{texts[0]} [–]" if np.isnan(low) else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def publish(store, name, shown, caption):
    """Write a display table as LaTeX (booktabs) and Markdown under the store's `tables/` and return nothing.

    Texts are data: all markup in them is escaped. Columns of numbers are set to the right, others to the left.

    Parameters
    ----------
    store : stores.Store
    name : str
        File name without suffix, and the LaTeX label `tab:<name>`.
    shown : DataFrame
        From `shown` or `rounded`.
    caption : str
    """
    path = store.target_path("tables", name)
    for suffix, text in ((".tex", latex(shown, caption, name)), (".md", markdown(shown, caption))):
        stores.atomic(path.with_suffix(suffix), lambda part, text=text: part.write_text(text, encoding="utf-8"))


def latex(shown, caption, name):
    """Typeset a display table; it needs the package booktabs only.

    Returns
    -------
    str
        A `table`, or a `table*` where the rows are wide.
    """
    columns = _columns(shown)
    cells = pd.DataFrame(
        {place: [_tex(text, number) for text in texts] for place, (_, texts, number) in columns.items()}
    )
    width = sum(max(map(len, (heading, *texts))) for heading, texts, _ in columns.values())
    styler = cells.style.hide(axis="index")
    styler.relabel_index([_tex(heading, False) for heading, _, _ in columns.values()], axis="columns")
    text = styler.to_latex(
        hrules=True,
        caption=caption.translate(_LATEX),
        label=f"tab:{name}",
        position="t",
        position_float="centering",
        column_format="".join("r" if number else "l" for _, _, number in columns.values()),
        environment="table*" if width > WIDE else "table",
    )
    small = "\\centering\n\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
    return text.replace("\\centering\n", small, 1) if width > WIDE else text


def markdown(shown, caption):
    """Set a display table as a Markdown pipe table under its caption.

    Returns
    -------
    str
    """
    columns = _columns(shown)
    cells = {
        place: texts if number else [text.translate(_MARKDOWN) for text in texts]
        for place, (_, texts, number) in columns.items()
    }
    table = pd.DataFrame(cells).to_markdown(
        index=False,
        disable_numparse=True,
        headers=[heading.translate(_MARKDOWN) for heading, _, _ in columns.values()],
        colalign=["right" if number else "left" for _, _, number in columns.values()] if len(shown) else None,
    )
    return f"{caption.translate(_MARKDOWN)}\n\n{table}\n"


def _columns(shown):
    """Turn every column into its heading, its cells as one line of text each, and whether they are numbers."""
    columns = {}
    for place, name in enumerate(shown.columns):
        values = registry.titles(shown[name]) if name in ("target", "reference") else shown[name]
        texts = [_text(value) for value in values]
        number = all(_NUMBER.fullmatch(text) for text in texts) and set(texts) != {"–"}
        columns[place] = (HEADINGS.get(name, str(name).replace("_", " ")), texts, number)
    return columns


def _text(value):
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if pd.isna(value):
        return "–"
    return f"{value:.3f}" if isinstance(value, float | np.floating) else readable(" ".join(str(value).split()))


def _tex(text, number):
    escaped = text.translate(_LATEX)
    if number and text != "–":
        return escaped.replace("-", "$-$").replace("[$-$$-$]", "[--]")
    # After a line break, TeX would take a first [ or * as an argument of the break.
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped
