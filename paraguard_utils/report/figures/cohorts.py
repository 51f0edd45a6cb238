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


def plot_paper_cohorts(table: Table) -> Figure:
    """Draw CR@0.60 of the paper's two cohorts beside the paper's values (Fig. 5).

    Each system has a mark for both interpretations. A page wide. `table` is
    `cohorts.cohort_table` of any systems in one binning.
    """
    names = list(dict.fromkeys(table["system"]))
    height = 0.8 + 0.17 * len(names)
    figure, strips = style.subplots(
        1,
        len(PAPER_COHORTS),
        height=height,
        sharex=True,
        sharey=True,
    )
    for axis, (item, cohort) in zip(strips, PAPER_COHORTS.items(), strict=True):
        title, risk, similarity, about = cohort
        is_cohort = (table["risk"] == risk) & (table["similarity"] == similarity)
        _draw_strip(axis, table[is_cohort], names)
        known = paper.paper_value(item)
        axis.axvline(known, zorder=0, **style.PAPER_LINE)
        remark = f"(dashed: the paper's, {about}{100 * known:g} %)"
        axis.set_title(f"{title}\n{remark}", pad=11)
        axis.set(xlabel="CR@0.60", xlim=(0, 1))
    style.name_rows(strips[0], display_titles(names))
    return figure


def _draw_strip(axis: Axes, rows: Table, names: list[str]) -> None:
    """Draw one cohort's CR of each system in both interpretations.

    The number of its rejections is written on the right.
    """
    shifts = {"relative": -0.15, "clipped": 0.15}
    for interpretation, colour in style.INTERPRETATION_COLOURS.items():
        chosen = rows[rows["interpretation"] == interpretation]
        chosen = chosen.set_index("system").reindex(names)
        y = np.arange(len(names)) + shifts[interpretation]
        style.draw_interval_bars(
            axis,
            chosen,
            "cr60",
            y,
            ms=2.5,
            color=colour,
            clip_on=False,
        )
        middle = chosen["cr60"].median()
        if np.isfinite(middle):
            x = np.clip(middle, 0.1, 0.9)
            style.write_remark(
                axis,
                x,
                1.02,
                interpretation,
                of="y",
                color=colour,
                weight="bold",
                ha="center",
            )
    counts = rows.drop_duplicates("system").set_index("system")["n"]
    for place, n in enumerate(counts.reindex(names).fillna(0).astype(int)):
        remark = f"n = {n}"
        style.write_remark(
            axis,
            1.03,
            place,
            remark,
            of="x",
            va="center",
            color=style.GREY,
        )
    style.draw_row_rules(axis)


def plot_strategy_flips(table: Table) -> Figure:
    """Draw how often each strategy's variants are decided unlike their seed.

    A panel per system, a page wide. `table` is from `cohorts.group_table`.
    """
    table = table.assign(shown=(table["kind"] == "strategy") & (table["n_flip"] > 0))
    strategies = list(dict.fromkeys(table.loc[table["shown"], "group"]))
    if not strategies:
        strategies = ["no variant"]
    figure, panels = style.make_listed_panels(table, strategies, across=3)
    for axis, _, rows in panels:
        shown = rows[rows["shown"]].set_index("group").reindex(strategies)
        _draw_flips(axis, shown, "reject")
        _draw_flips(axis, shown, "accept")
        axis.axvline(0, color=style.INK, linewidth=0.6)
        n_variants = shown["n_flip"].fillna(0).astype(int)
        least = n_variants.min()
        most = n_variants.max()
        counted = f"n = {least}" if least == most else f"n = {least} to {most}"
        axis.set_title(f"{axis.get_title('left')}, {counted}", pad=13)
    ends = table.loc[table["shown"], ["to_reject_high", "to_accept_high"]]
    edge = 1.05 * ends.max().max()
    axis.set_xlim((-edge, edge) if edge > 0 else (-1, 1))
    axis.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    figure.supxlabel(
        "share of variants decided otherwise than their seed (n: variants of a"
        " strategy)"
    )
    return figure


def _draw_flips(axis: Axes, rows: Table, decision: str) -> None:
    """Draw flips to one decision by strategy: to refusal right, to acceptance left."""
    to_refusal = decision == "reject"
    sign = 1 if to_refusal else -1
    colour = style.DECISION_COLOURS[decision]
    value = sign * rows[f"to_{decision}"].to_numpy()
    low = sign * rows[f"to_{decision}_low"].to_numpy()
    high = sign * rows[f"to_{decision}_high"].to_numpy()
    y = range(len(rows))
    axis.barh(
        y,
        value,
        height=0.6,
        color=colour,
        alpha=0.3,
        linewidth=0,
    )
    axis.hlines(
        y,
        low,
        high,
        color=colour,
        linewidth=1,
    )
    axis.plot(
        value,
        y,
        "o",
        ms=3,
        color=colour,
    )
    style.write_remark(
        axis,
        0.5 + 0.03 * sign,
        1.01,
        "to refusal" if to_refusal else "to acceptance",
        of="xy",
        color=colour,
        weight="bold",
        ha="left" if to_refusal else "right",
        va="bottom",
    )
