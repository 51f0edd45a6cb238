"""Figures of notebook 04: the paper's cohorts."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.registry import display_titles
from paraguard_utils.report import paper
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

PAPER_COHORTS = {
    "cohort.safe": ("low risk, high similarity", "low", "high", "about "),
    "cohort.risky": ("high risk", "high", "all", ""),
}
"""The cohorts that the paper gives a CR for, by item of `data/paper_values.csv`.

Each has a title, its risk, its similarity, and how exact the paper's value is.
"""

_SHIFT = 0.15  # of a mark from the middle of its row


def plot_paper_cohorts(table: Table) -> Figure:
    """Draw CR@0.60 of the paper's two cohorts beside the paper's values (Fig. 5).

    Each system has a mark for both interpretations. A page wide. `table` is
    `cohorts.cohort_table` of any systems in one binning.
    """
    names = list(dict.fromkeys(table["system"]))
    height = 0.9 + 0.17 * len(names)
    figure, strips = style.subplots(
        1, len(PAPER_COHORTS), height=height, sharex=True, sharey=True
    )
    for axis, (item, cohort) in zip(strips, PAPER_COHORTS.items(), strict=True):
        title, risk, similarity, about = cohort
        is_cohort = (table["risk"] == risk) & (table["similarity"] == similarity)
        _draw_strip(axis, table[is_cohort], names)
        known = paper.paper_value(item)
        axis.axvline(known, zorder=0, **style.PAPER_LINE)
        axis.set_title(f"{title}\n(dashed: the paper's, {about}{100 * known:g} %)")
        axis.set(xlabel="CR@0.60", xlim=(0, 1))
    style.name_rows(strips[0], display_titles(names))
    style.name_lines(figure, strips[0])
    return figure


def _draw_strip(axis: Axes, rows: Table, names: list[str]) -> None:
    """Draw one cohort's CR of each system in both interpretations.

    The number of its rejections is written on the right.
    """
    y = np.arange(len(names)) - _SHIFT
    look: style.Look = {"ms": 2.5, "clip_on": False}
    for interpretation, colour in style.INTERPRETATION_COLOURS.items():
        chosen = rows[rows["interpretation"] == interpretation]
        chosen = chosen.set_index("system").reindex(names)
        look |= {"color": colour, "label": interpretation}
        style.draw_interval_bars(axis, chosen, "cr60", y, **look)
        y = y + 2 * _SHIFT
    counts = chosen["n"].fillna(0).astype(int)
    for place, n in enumerate(counts):
        style.write_remark(axis, 1.03, place, f"n = {n}", of="x", va="center")
    style.draw_row_rules(axis)
