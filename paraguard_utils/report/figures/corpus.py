"""Figures of notebook 01: what the gates measure, and the distribution of risk."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from paraguard_utils.corpus.gates import GATE_MEASURES
from paraguard_utils.corpus.risk import BIN_WIDTH
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.settings import Gates


def plot_gate_distributions(counts: pd.DataFrame, limits: Gates) -> Figure:
    """Draw histograms (`gates.bin_gate_measures`) of candidates that pass or stop, with
    cut lines. A page wide.
    """
    figure, axes = style.subplots(1, len(GATE_MEASURES), height=1.9, sharey=True)
    cuts = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
    }
    cuts["risk"] = [limits.min_risk, limits.max_risk]
    for axis, (measure, label) in zip(axes, GATE_MEASURES.items(), strict=True):
        rows = counts[counts["measure"] == measure]
        bars: Look = {"align": "edge", "width": BIN_WIDTH, "lw": 0.5}
        axis.bar(
            rows["low"],
            rows["passes"],
            color=style.OTHER_COLOURS[1],
            ec="white",
            **bars,
        )
        stopped = rows[
            rows["stopped"] > 0
        ]  # bars of no candidate would be drawn as lines
        axis.bar(
            stopped["low"],
            stopped["stopped"],
            bottom=stopped["passes"],
            color="white",
            ec=style.INK,
            **bars,
        )
        for cut in cuts[measure]:
            axis.axvline(cut, **style.PAPER_LINE)
        axis.set(xlabel=label, xlim=(0, 1))
    axes[0].set_ylabel("candidates")
    totals = counts[counts["measure"] == next(iter(GATE_MEASURES))]
    passing = (0.93, "passes", "pass all gates", style.OTHER_COLOURS[1], None)
    for y, fate, words, colour, edge in (
        passing,
        (0.83, "stopped", "stopped by one", "white", style.INK),
    ):
        look: Look = {
            "facecolor": colour,
            "edgecolor": edge,
            "lw": 0.5,
            "transform": axes[0].transAxes,
        }
        axes[0].add_patch(Rectangle((0.02, y - 0.03), 0.03, 0.06, **look))
        style.write_remark(
            axes[0],
            0.07,
            y,
            f"{totals[fate].sum():,} {words}",
            of="xy",
            va="center_baseline",
        )
    return figure


def plot_risk_distributions(distribution: pd.DataFrame, limits: Gates) -> Figure:
    """Draw each group's risk (`risk.describe_risks`), median marked, the paper's gate
    shaded. A column wide.
    """
    groups = list(dict.fromkeys(distribution["group"]))
    figure, axes = style.subplots(
        len(groups),
        1,
        figsize=(style.COLUMN_WIDTH, 0.6 * len(groups) + 0.4),
        sharex=True,
    )
    for axis, group in zip(axes, groups, strict=True):
        rows = distribution[distribution["group"] == group]
        axis.axvspan(limits.min_risk, limits.max_risk, color=style.PALE, lw=0)
        bars: Look = {
            "align": "edge",
            "width": BIN_WIDTH,
            "color": style.OTHER_COLOURS[1],
            "ec": "white",
            "lw": 0.3,
        }
        axis.bar(rows["low"], rows["n"] / rows["texts"], **bars)
        middle = rows["median"].iloc[0]
        axis.axvline(middle, color=style.INK, linewidth=1)
        style.write_remark(axis, middle, 1.02, f" median {middle:.2f}", of="y")
        about = (
            f"{group}\nn = {rows['texts'].iloc[0]:,}\n{rows['within'].iloc[0]:.0%}"
            " within"
        )
        style.write_remark(axis, 0.99, 0.95, about, of="xy", ha="right", va="top")
        axis.set(xlim=(0, 1), yticks=[])
        axis.spines["left"].set_visible(False)
    style.write_remark(axes[0], limits.min_risk, 1.02, "gate", of="y", color=style.GREY)
    axes[-1].set_xlabel("risk")
    return figure
