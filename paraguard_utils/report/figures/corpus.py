"""Figures of notebook 01: what the gates measure, and the distribution of risk."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from paraguard_utils.corpus.gates import GATE_MEASURES
from paraguard_utils.corpus.risk import BIN_WIDTH
from paraguard_utils.report.figures.style import (
    COLUMN_WIDTH,
    GREY,
    INK,
    MIN_FONT_SIZE,
    OTHER_COLOURS,
    PAGE_WIDTH,
    PALE,
    PAPER_LINE,
    subplots,
)
from paraguard_utils.settings import Gates


def plot_gate_distributions(counts: pd.DataFrame, limits: Gates) -> Figure:
    """Draw histograms (`gates.bin_gate_measures`) of what the gates measure, with their cut lines.

    Candidates that pass and that a gate stopped are stacked. A page wide.
    """
    figure, axes = subplots(1, len(GATE_MEASURES), figsize=(PAGE_WIDTH, 1.9), sharey=True)
    cuts = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
        "risk": [limits.min_risk, limits.max_risk],
    }
    for axis, (measure, label) in zip(axes, GATE_MEASURES.items(), strict=True):
        rows = counts[counts["measure"] == measure]
        bars = {"align": "edge", "width": BIN_WIDTH, "linewidth": 0.5}
        axis.bar(rows["low"], rows["passes"], color=OTHER_COLOURS[1], edgecolor="white", **bars)
        stopped = rows[rows["stopped"] > 0]  # bars of no candidate would be drawn as lines
        axis.bar(stopped["low"], stopped["stopped"], bottom=stopped["passes"], color="white", edgecolor=INK, **bars)
        for cut in cuts[measure]:
            axis.axvline(cut, **PAPER_LINE)
        axis.set(xlabel=label, xlim=(0, 1))
    axes[0].set_ylabel("candidates")
    totals = counts[counts["measure"] == next(iter(GATE_MEASURES))]
    fates = (
        (0.93, "passes", "pass all gates", OTHER_COLOURS[1], None),
        (0.83, "stopped", "stopped by one", "white", INK),
    )
    inside = {"transform": axes[0].transAxes}
    for y, fate, words, colour, edge in fates:
        axes[0].add_patch(Rectangle((0.02, y - 0.03), 0.03, 0.06, facecolor=colour, edgecolor=edge, lw=0.5, **inside))
        axes[0].text(0.07, y, f"{totals[fate].sum():,} {words}", va="center_baseline", size=MIN_FONT_SIZE, **inside)
    return figure


def plot_risk_distributions(distribution: pd.DataFrame, limits: Gates) -> Figure:
    """Draw the risk of each group of texts (`risk.describe_risks`), the paper's gate shaded, medians marked.

    A column wide.
    """
    groups = list(dict.fromkeys(distribution["group"]))
    figure, axes = subplots(len(groups), 1, figsize=(COLUMN_WIDTH, 0.6 * len(groups) + 0.4), sharex=True)
    for axis, group in zip(axes, groups, strict=True):
        rows = distribution[distribution["group"] == group]
        axis.axvspan(limits.min_risk, limits.max_risk, color=PALE, lw=0)
        axis.bar(
            rows["low"],
            rows["n"] / rows["texts"],
            align="edge",
            width=BIN_WIDTH,
            color=OTHER_COLOURS[1],
            ec="white",
            lw=0.3,
        )
        middle = rows["median"].iloc[0]
        axis.axvline(middle, color=INK, linewidth=1)
        axis.text(middle, 1.02, f" median {middle:.2f}", transform=axis.get_xaxis_transform(), size=MIN_FONT_SIZE)
        about = f"{group}\nn = {rows['texts'].iloc[0]:,}\n{rows['within'].iloc[0]:.0%} within"
        axis.text(0.99, 0.95, about, transform=axis.transAxes, ha="right", va="top", size=MIN_FONT_SIZE)
        axis.set(xlim=(0, 1), yticks=[])
        axis.spines["left"].set_visible(False)
    axes[0].text(limits.min_risk, 1.02, "gate", transform=axes[0].get_xaxis_transform(), size=MIN_FONT_SIZE, color=GREY)
    axes[-1].set_xlabel("risk")
    return figure
