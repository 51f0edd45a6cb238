"""Figures of notebook 04: the paper's cohorts, and flips by strategy."""

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


def plot_strategy_flips(table: Table) -> Figure:
    """Draw how often each strategy's variants are decided unlike their seed.

    A panel per system, a page wide. `table` is from `cohorts.group_table`.
    """
    is_shown = (table["kind"] == "strategy") & (table["n_flip"] > 0)
    strategies = list(table.loc[is_shown, "group"].unique()) or ["no variant"]
    figure, panels = style.make_listed_panels(table, strategies, across=3)
    y = np.arange(len(strategies))
    for axis, _, rows in panels:
        shown = rows[rows["kind"] == "strategy"].set_index("group").reindex(strategies)
        colours = style.DECISION_COLOURS
        look: style.Look = {"ms": 3, "label": "to refusal", "color": colours["reject"]}
        style.draw_interval_bars(axis, shown, "to_reject", y - _SHIFT, **look)
        look = {"ms": 3, "label": "to acceptance", "color": colours["accept"]}
        style.draw_interval_bars(axis, shown, "to_accept", y + _SHIFT, **look)
        n_variants = shown["n_flip"].fillna(0).astype(int)
        counted = f"n = {n_variants.min()} to {n_variants.max()}"
        axis.set_title(f"{axis.get_title('left')}, {counted}")
    axis.set_xlim(left=0)  # as every panel's
    figure.supxlabel(
        "share of variants decided otherwise than their seed (n: variants of a"
        " strategy)"
    )
    style.name_lines(figure, axis)
    return figure
