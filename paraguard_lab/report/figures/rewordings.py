"""Figures of A4: answers to rephrased requests, and strategies that flip decisions."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_lab.report.figures.panels import make_listed_panels
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table


def plot_rephrasing_odds(table: Table) -> Figure:
    """Draw how many refused requests are no longer refused in three other phrasings.

    Hollow marks are harmless requests, filled ones their harmful twins; grey means too
    few refusals or mixed clusters. Bars are 95 % intervals. A page wide.

    Parameters
    ----------
    table : Table
        From `rephrasing.rephrasing_table`.
    """
    figure, axis = style.subplots(height=0.7 + 0.2 * len(table))
    y = np.arange(len(table))
    few = table["too_few"].to_numpy(bool)
    few_twins = few | table["too_few_twins"].to_numpy(bool)
    shift = 0.13  # of a mark from the middle of its row
    look: style.Look = {"ms": 3.5, "clip_on": False}
    ring: style.Look = look | {"mfc": "white", "label": "harmless requests"}
    style.draw_judged_bars(axis, table, "rephrased3", y - shift, few, **ring)
    dot: style.Look = look | {"label": "harmful twins"}
    style.draw_judged_bars(axis, table, "rephrased3_twins", y + shift, few_twins, **dot)
    style.name_rows(axis, display_titles(table["system"]))
    style.draw_row_rules(axis)
    xlabel = "share of refused requests no longer refused within three other phrasings"
    axis.set(xlim=(0, 1), xlabel=xlabel)
    style.name_lines(figure, axis)
    return figure


def plot_strategy_flips(table: Table) -> Figure:
    """Draw how often each strategy's variants are decided unlike their seed.

    A panel per system, a page wide.

    Parameters
    ----------
    table : Table
        From `groups.group_table`.
    """
    is_shown = (table["kind"] == "strategy") & (table["n_flip"] > 0)
    strategies = list(table.loc[is_shown, "group"].unique()) or ["no variant"]
    figure, panels = make_listed_panels(table, strategies, across=3)
    y = np.arange(len(strategies))
    shift = 0.15  # of a mark from the middle of its row
    kinds = (("reject", "to refusal", -shift), ("accept", "to acceptance", shift))
    for axis, _, rows in panels:
        shown = rows[rows["kind"] == "strategy"].set_index("group").reindex(strategies)
        for decision, label, beside in kinds:
            colour = style.DECISION_COLOURS[decision]
            style.draw_interval_bars(
                axis,
                shown,
                f"to_{decision}",
                y + beside,
                ms=3,
                label=label,
                color=colour,
            )
        n_variants = shown["n_flip"].fillna(0).astype(int)
        counted = f"n = {n_variants.min()} to {n_variants.max()}"
        axis.set_title(f"{axis.get_title('left')}, {counted}")
    axis.set_xlim(left=0)  # as every panel's
    figure.supxlabel(
        "share of paraphrases that get another decision than their seed (n:"
        " paraphrases per strategy)"
    )
    style.name_lines(figure, axis)
    return figure
