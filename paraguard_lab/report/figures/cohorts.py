"""Figures beside notebook 04: cells of cohorts, regression, charged words."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from paraguard_lab.analysis.regression import ADJUSTED_TERM
from paraguard_lab.report.figures.panels import (
    SHADES,
    Panel,
    make_listed_panels,
    make_system_grid,
)
from paraguard_utils.analysis.cohorts import BIN_NAMES
from paraguard_utils.report import tables
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

_RATIO = ["odds_ratio", "odds_ratio_low", "odds_ratio_high"]


def plot_cohort_cells(table: Table) -> Figure:
    """Draw CI by surface risk and neighbour similarity for each system.

    The paper's cohorts are outlined, dashed. A page wide.

    Parameters
    ----------
    table : Table
        From `cohorts.cohort_table`, of any systems in one binning.
    """
    is_cell = table[["risk", "similarity"]].isin(BIN_NAMES).all(axis=1)
    cells = table[(table["interpretation"] == "relative") & is_cell]
    scale = mpl.colors.Normalize(cells["ci"].min(), cells["ci"].max())
    across = min(3, cells["system"].nunique())
    figure, panels = make_system_grid(cells, across, 1.3)
    figure.supxlabel("similarity to accepted neighbours")
    figure.supylabel("surface risk")
    for axis, _, rows in panels:
        _draw_cells(axis, rows, scale)
    shades = mpl.cm.ScalarMappable(scale, SHADES)
    label = "CI, relative interpretation"
    figure.colorbar(shades, ax=figure.axes, label=label, aspect=40, pad=0.01)
    return figure


def _draw_cells(axis: Axes, rows: Table, scale: mpl.colors.Normalize) -> None:
    """Draw one system's CI by cohort as shades, and outline the paper's cohorts.

    Each cell has its interval and the number of rejections.
    """
    import seaborn  # takes a second

    values = rows.pivot(index="risk", columns="similarity", values="ci")
    seaborn.heatmap(
        values.reindex(index=BIN_NAMES, columns=BIN_NAMES).to_numpy(),
        ax=axis,
        xticklabels=BIN_NAMES,
        yticklabels=BIN_NAMES,
        cmap=SHADES,
        norm=scale,
        cbar=False,
        linewidths=0.8,
    )
    axis.invert_yaxis()
    for row in rows.to_dict("records"):
        remark = f"n = {row['n']}"
        if row["n"]:
            ci = tables.format_estimate(row, "ci", 2).replace(" [", "\n[")
            remark = f"{ci}\n{remark}"
        style.write_remark(
            axis,
            BIN_NAMES.index(row["similarity"]) + 0.5,
            BIN_NAMES.index(row["risk"]) + 0.5,
            remark,
            ha="center",
            va="center",
            color=style.INK if row["n"] else style.GREY,
            linespacing=1.1,
        )
    outline: style.Look = {"fill": False, "clip_on": False, **style.PAPER_LINE}
    axis.add_patch(Rectangle((2, 0), 1, 1, **outline))
    axis.add_patch(Rectangle((0, 2), 3, 1, **outline))
    axis.tick_params(axis="y", rotation=0)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def plot_cohort_regression(table: Table) -> Figure:
    """Draw odds ratios of refusal, filled if p < 0.05 after Holm's correction.

    A panel per system, a page wide.

    Parameters
    ----------
    table : Table
        From `regression.refusal_odds_ratios`.
    """
    terms = list(dict.fromkeys(table["term"]))
    figure, panels = _draw_odds_ratios(table, terms, 5, (0.1, 0.3, 1, 3, 10))
    for axis, _, rows in panels:
        by_term = rows.set_index("term").reindex(terms)
        first = by_term.iloc[0]
        refused = f"{first['n_reject']} of {first['n']} refused"
        axis.set_title(f"{axis.get_title('left')}\n{refused}")
        _write_undefined(axis, by_term)
    key = "(filled: p < 0.05 after Holm's correction; dotted: no effect)"
    figure.supxlabel(
        "odds ratio of refusal: strategies against their seed, others per standard"
        f" deviation\n{key}"
    )
    return figure


def _write_undefined(axis: Axes, by_term: Table) -> None:
    """Write why a system has no odds ratios, or which of them are undefined."""
    is_undefined = by_term["odds_ratio"].isna()
    look: style.Look = {"va": "center", "color": style.GREY}
    if is_undefined.all():
        note = fill(by_term["note"].iloc[0], 18)
        style.write_remark(axis, 0.5, 0.5, note, of="xy", ha="center", **look)
        return
    for y in np.flatnonzero(is_undefined).tolist():
        style.write_remark(axis, 1.05, y, "undefined", **look)


def plot_triggers(table: Table) -> Figure:
    """Draw how charged words of each theme change the odds of a refusal.

    An infinite ratio is drawn at the edge. A panel per system, a page wide.

    Parameters
    ----------
    table : Table
        The families of `triggers.stack_trigger_tables`.
    """
    terms = sorted(set(table["term"]))
    ticks = (0.01, 0.1, 1, 10, 100)
    figure, _ = _draw_odds_ratios(table, terms, 3, ticks, most=100)
    key = "(filled: a trigger; at an edge: 0, infinite, or beyond it)"
    figure.supxlabel(
        "odds ratio of refusal with words of a theme, in one request's"
        f" near-copies\n{key}"
    )
    return figure


def _draw_odds_ratios(
    table: Table,
    terms: list[str],
    across: int,
    ticks: Sequence[float],
    most: float = np.inf,
) -> tuple[Figure, list[Panel]]:
    """Draw odds ratios by term on a log scale, a panel per system.

    They are filled where p_holm < 0.05.

    Parameters
    ----------
    table : Table
        system, term, p_holm, odds_ratio with its interval.
    terms : list of str
        The rows, from top to bottom.
    across : int
        Panels beside each other.
    ticks : sequence of float
        Of those, the ones that the axis reaches are shown.
    most : float
        Beyond 1 / most and most, ratios are drawn there.

    Returns
    -------
    Figure
    list of Panel
    """
    figure, panels = make_listed_panels(table, terms, across)
    for axis, _, rows in panels:
        by_term = rows.set_index("term").reindex(terms)
        for y, (term, row) in enumerate(by_term.iterrows()):
            value, low, high = row[_RATIO].astype(float).clip(1 / most, most)
            colour = style.GREY if term == ADJUSTED_TERM else style.INK
            face = colour if row["p_holm"] < 0.05 else "white"
            axis.hlines(y, low, high, color=colour, linewidth=1)
            axis.plot(
                value, y, "o", ms=3.5, mfc=face, mec=colour, mew=0.9, clip_on=False
            )
        axis.axvline(1, zorder=0, **style.CHANCE_LINE)
    axis.set_xscale("log")  # as every panel's
    edge = _find_edge(table[_RATIO[1:]].clip(1 / most, most))
    shown = [tick for tick in ticks if 1 / edge <= tick <= edge]
    axis.set(xlim=(1 / edge, edge))
    axis.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()
    return figure, panels


def _find_edge(ends: pd.DataFrame) -> float:
    """Return how far an axis of odds ratios goes to hold all intervals; 2.2 or more."""
    furthest = np.exp(np.abs(np.log(ends))).max()
    return 1.1 * np.nanmax([2.0, *furthest])
