"""Figures of notebook 01: what the gates measure, and the distribution of risk."""

import pandas as pd
from matplotlib.figure import Figure

from paraguard_utils.corpus.gates import MEASURES
from paraguard_utils.corpus.risk import BIN
from paraguard_utils.report.figures.style import BLUE, COLUMN, GREY, ORANGE, PAGE, subplots
from paraguard_utils.settings import Gates


def gate_distributions(counts: pd.DataFrame, limits: Gates) -> Figure:
    """Draw histograms of what the gates measure, with their cut lines; passing and stopped candidates stacked.

    Parameters
    ----------
    counts : DataFrame
        From `gates.histogram`.
    limits : settings.Gates
    """
    figure, axes = subplots(1, len(MEASURES), figsize=(PAGE, 1.9), sharey=True)
    cuts = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
        "risk": [limits.min_risk, limits.max_risk],
    }
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        rows = counts[counts["measure"] == measure]
        bars = {"align": "edge", "width": BIN, "linewidth": 0.3, "edgecolor": "white"}
        axis.bar(rows["low"], rows["passes"], color=BLUE, **bars)
        axis.bar(rows["low"], rows["stopped"], bottom=rows["passes"], color=ORANGE, **bars)
        for cut in cuts[measure]:
            axis.axvline(cut, color="black", linestyle="--", linewidth=0.8)
        axis.set(xlabel=label, ylabel="candidates" if axis is axes[0] else "", xlim=(0, 1))
    totals = counts[counts["measure"] == next(iter(MEASURES))]
    fates = (("passes", "pass all gates", BLUE), ("stopped", "stopped by a gate", ORANGE))
    for line, (fate, words, colour) in enumerate(fates):
        text = f"{totals[fate].sum()} {words}"
        axes[0].text(0.02, 0.95 - 0.1 * line, text, color=colour, transform=axes[0].transAxes, va="top", weight="bold",
                     size=6)  # fmt: skip
    return figure


def risk_distributions(distribution: pd.DataFrame, limits: Gates) -> Figure:
    """Draw the risk scorer's distribution in each group of texts, the paper's gate shaded, medians marked.

    Parameters
    ----------
    distribution : DataFrame
        From `risk.distribution`.
    limits : settings.Gates
    """
    groups = list(dict.fromkeys(distribution["group"]))
    figure, axes = subplots(len(groups), 1, figsize=(COLUMN, 0.55 * len(groups) + 0.4), sharex=True)
    for axis, group in zip(axes, groups, strict=True):
        rows = distribution[distribution["group"] == group]
        axis.axvspan(limits.min_risk, limits.max_risk, color="0.92", lw=0)
        axis.bar(rows["low"], rows["n"] / rows["texts"], align="edge", width=BIN, color=BLUE, edgecolor="white", lw=0.3)
        axis.axvline(rows["median"].iloc[0], color=ORANGE, linewidth=1)
        about = f"{group}\nn = {rows['texts'].iloc[0]}\n{rows['within'].iloc[0]:.0%} within"
        axis.text(0.99, 0.9, about, transform=axis.transAxes, ha="right", va="top", size=5.5)
        axis.set(xlim=(0, 1), yticks=[])
        axis.spines["left"].set_visible(False)
    axes[0].text(limits.min_risk + 0.01, 1.05, "gate", transform=axes[0].get_xaxis_transform(), size=6, color=GREY)
    axes[-1].set_xlabel("risk (orange: median)")
    return figure
