"""Figures of notebook 04: cohorts, strategies, regression."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from paraguard_utils.analysis.cohorts import ADJUSTED_TERM, BIN_NAMES
from paraguard_utils.registry import display_titles
from paraguard_utils.report import paper, tables
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

PAPER_COHORTS = {
    "cohort.safe": ("low risk, high similarity", "low", "high", "about "),
    "cohort.risky": ("high risk", "high", "all", ""),
}
"""The cohorts that the paper gives a CR for, by item of `data/paper_values.csv`: title,
risk, similarity, how exact.
"""


def plot_paper_cohorts(table: Table) -> Figure:
    """Draw CR@0.60 of the paper's two cohorts for each system, in both interpretations, beside
    the paper's (Fig. 5).

    A page wide. `table` is `cohorts.cohort_table` of any systems in one binning.
    """
    names = list(dict.fromkeys(table["system"]))
    figure, strips = style.subplots(
        1, len(PAPER_COHORTS), height=0.8 + 0.17 * len(names), sharex=True, sharey=True
    )
    for axis, (item, (title, risk, similarity, about)) in zip(
        strips, PAPER_COHORTS.items(), strict=True
    ):
        known = paper.paper_value(item)
        _draw_strip(
            axis,
            table[(table["risk"] == risk) & (table["similarity"] == similarity)],
            names,
        )
        axis.axvline(known, zorder=0, **style.PAPER_LINE)
        axis.set_title(
            f"{title}\n(dashed: the paper's, {about}{100 * known:g} %)", pad=11
        )
        axis.set(xlabel="CR@0.60", xlim=(0, 1))
    style.name_rows(strips[0], display_titles(names))
    return figure


def plot_cohort_cells(table: Table) -> Figure:
    """Draw CI by surface risk and neighbour similarity for each system.

    The paper's cohorts are outlined, dashed.

    A page wide. `table` is `cohorts.cohort_table` of any systems in one binning.
    """
    names = list(dict.fromkeys(table["system"]))
    cells = table[
        (table["interpretation"] == "relative")
        & table[["risk", "similarity"]].isin(BIN_NAMES).all(axis=1)
    ]
    across = min(3, len(names))
    lines = -(-len(names) // across)
    scale = mpl.colors.Normalize(cells["ci"].min(), cells["ci"].max())
    figure, panels = style.subplots(
        lines, across, height=0.3 + 1.3 * lines, sharex=True, sharey=True, squeeze=False
    )
    for axis, name in zip(panels.flat, names, strict=False):
        _draw_cells(axis, cells[cells["system"] == name], scale)
    style.name_panels(
        panels, names, "similarity to accepted neighbours", "surface risk"
    )
    shades = mpl.cm.ScalarMappable(scale, style.SHADES)
    figure.colorbar(
        shades, ax=panels, label="CI, relative reading", aspect=40, pad=0.01
    )
    return figure


def _draw_cells(axis: Axes, rows: Table, scale: mpl.colors.Normalize) -> None:
    """Draw one system's CI by cohort as shades, with its interval and the number of
    rejections; outline the paper's.
    """
    values = rows.pivot(index="risk", columns="similarity", values="ci").reindex(
        index=BIN_NAMES, columns=BIN_NAMES
    )
    look: style.Look = {
        "cmap": style.SHADES,
        "norm": scale,
        "cbar": False,
        "linewidths": 0.8,
        "linecolor": "white",
    }
    import seaborn  # a second to import

    seaborn.heatmap(
        values, ax=axis, xticklabels=BIN_NAMES, yticklabels=BIN_NAMES, **look
    )
    axis.invert_yaxis()
    for row in rows.to_dict("records"):
        place = (
            BIN_NAMES.index(row["similarity"]) + 0.5,
            BIN_NAMES.index(row["risk"]) + 0.5,
        )
        known = (
            f"{tables.format_estimate(row, 'ci', 2)}\n".replace(" [", "\n[")
            if row["n"]
            else ""
        )
        look = {
            "ha": "center",
            "va": "center",
            "color": style.INK if known else style.GREY,
            "linespacing": 1.1,
        }
        style.write_remark(axis, *place, f"{known}n = {row['n']}", **look)
    for corner, width in (((2, 0), 1), ((0, 2), 3)):
        axis.add_patch(
            Rectangle(corner, width, 1, fill=False, clip_on=False, **style.PAPER_LINE)
        )
    axis.tick_params(axis="y", rotation=0)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _draw_strip(axis: Axes, rows: Table, names: list[str]) -> None:
    """Draw one cohort's CR of each system in both interpretations, with the number of its
    rejections on the right.
    """
    for shift, (interpretation, colour) in zip(
        (-0.15, 0.15), style.INTERPRETATION_COLOURS.items(), strict=True
    ):
        own = (
            rows[rows["interpretation"] == interpretation]
            .set_index("system")
            .reindex(names)
        )
        style.draw_interval_bars(
            axis,
            own,
            "cr60",
            np.arange(len(names)) + shift,
            ms=2.5,
            color=colour,
            clip_on=False,
        )
        middle = own["cr60"].median()
        if np.isfinite(middle):
            look: style.Look = {
                "of": "y",
                "color": colour,
                "weight": "bold",
                "ha": "center",
            }
            style.write_remark(
                axis, np.clip(middle, 0.1, 0.9), 1.02, interpretation, **look
            )
    counts = (
        rows.drop_duplicates("system")
        .set_index("system")["n"]
        .reindex(names)
        .fillna(0)
        .astype(int)
    )
    for y, n in enumerate(counts):
        style.write_remark(
            axis, 1.03, y, f"n = {n}", of="x", va="center", color=style.GREY
        )
    style.draw_row_rules(axis)


def plot_strategy_flips(table: Table) -> Figure:
    """Draw how often strategies flip their seed's decision (`cohorts.group_table`), a
    panel per system. A page wide.
    """
    table = table.assign(shown=(table["kind"] == "strategy") & (table["n_flip"] > 0))
    strategies = list(dict.fromkeys(table.loc[table["shown"], "group"])) or [
        "no variant"
    ]
    figure, panels = style.make_listed_panels(table, strategies, across=3)
    y = range(len(strategies))
    sides = (
        ("reject", 1, "to refusal", "left"),
        ("accept", -1, "to acceptance", "right"),
    )
    for axis, _, own in panels:
        rows = own[own["shown"]].set_index("group").reindex(strategies)
        for decision, sign, side, alignment in sides:
            colour = style.DECISION_COLOURS[decision]
            value, low, high = (
                sign * rows[f"to_{decision}{end}"].to_numpy()
                for end in ("", "_low", "_high")
            )
            axis.barh(y, value, height=0.6, color=colour, alpha=0.3, linewidth=0)
            axis.hlines(y, low, high, color=colour, linewidth=1)
            axis.plot(value, y, "o", ms=3, color=colour)
            look: style.Look = {
                "color": colour,
                "weight": "bold",
                "ha": alignment,
                "va": "bottom",
            }
            style.write_remark(axis, 0.5 + 0.03 * sign, 1.01, side, of="xy", **look)
        axis.axvline(0, color=style.INK, linewidth=0.6)
        least, most = (
            int(bound) for bound in rows["n_flip"].fillna(0).agg(["min", "max"])
        )
        counted = f"n = {least}" if least == most else f"n = {least} to {most}"
        axis.set_title(f"{axis.get_title('left')}, {counted}", pad=13)
    edge = (
        1.05
        * table.loc[table["shown"], ["to_reject_high", "to_accept_high"]].max().max()
    )
    axis.set_xlim((-edge, edge) if edge > 0 else (-1, 1))
    axis.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    figure.supxlabel(
        "share of variants decided otherwise than their seed (n: variants of a"
        " strategy)"
    )
    return figure


def plot_cohort_regression(table: Table) -> Figure:
    """Draw odds ratios of refusal, filled where p < 0.05 after Holm, a panel per
    system. A page wide.
    """
    terms = list(dict.fromkeys(table["term"]))
    figure, panels = _draw_odds_ratios(table, terms, 5, (0.1, 0.3, 1, 3, 10))
    for axis, _, own in panels:
        rows = own.set_index("term").reindex(terms)
        axis.set_title(
            f"{axis.get_title('left')}\n{rows['n_reject'].iloc[0]} of"
            f" {rows['n'].iloc[0]} refused"
        )
        look: style.Look = {"va": "center", "color": style.GREY}
        if rows["odds_ratio"].isna().all():
            look |= {"ha": "center", "bbox": {"color": "white", "pad": 1}}
            style.write_remark(
                axis, 0.5, 0.5, fill(rows["note"].iloc[0], 18), of="xy", **look
            )
        else:
            for y in np.flatnonzero(rows["odds_ratio"].isna()).tolist():
                style.write_remark(axis, 1.05, y, "undefined", **look)
    key = "(filled: p < 0.05 after Holm's correction; dotted: chance)"
    figure.supxlabel(
        "odds ratio of refusal: strategies against their seed, others per standard"
        f" deviation\n{key}"
    )
    return figure


def plot_triggers(table: Table) -> Figure:
    """Draw how charged words of each theme change the odds of a refusal, a panel per
    system. A page wide.

    `table` is `triggers.stack_trigger_tables`; an infinite ratio stands at the edge.
    """
    families = table[table["kind"] == "family"]
    figure, _ = _draw_odds_ratios(
        families, sorted(set(families["term"])), 3, (0.01, 0.1, 1, 10, 100), most=100
    )
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
) -> tuple[Figure, list[tuple[Axes, str, Table]]]:
    """Draw odds ratios by term, 1 / most to most, filled where p_holm < 0.05.

    A panel per system on a log scale.
    """
    figure, panels = style.make_listed_panels(table, terms, across)
    ends = ["odds_ratio", "odds_ratio_low", "odds_ratio_high"]
    for axis, _, own in panels:
        for y, (term, row) in enumerate(
            own.set_index("term").reindex(terms).iterrows()
        ):
            value, low, high = row[ends].astype(float).clip(1 / most, most)
            colour = style.GREY if term == ADJUSTED_TERM else style.INK
            axis.hlines(y, low, high, color=colour, linewidth=1)
            inner = colour if row["p_holm"] < 0.05 else "white"
            axis.plot(
                value, y, "o", ms=3.5, mfc=inner, mec=colour, mew=0.9, clip_on=False
            )
        axis.axvline(1, zorder=0, **style.CHANCE_LINE)
    axis.set_xscale("log")  # as every panel's
    edge = 1.1 * np.nanmax(
        [2.0, *np.exp(np.abs(np.log(table[ends[1:]].clip(1 / most, most)))).max()]
    )
    ticks = [tick for tick in ticks if 1 / edge <= tick <= edge]
    axis.set(xlim=(1 / edge, edge))
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    return figure, panels
