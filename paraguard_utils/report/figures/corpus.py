"""The figure of notebook 01: what the gates measure of candidates."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from paraguard_utils.corpus.gates import BIN_WIDTH, GATE_MEASURES
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.settings import Gates

_PASSING_COLOUR = style.OTHER_COLOURS[1]


def plot_gate_distributions(counts: pd.DataFrame, limits: Gates) -> Figure:
    """Draw histograms of candidates that pass or stop, with the gates' limits.

    A page wide. `counts` is from `gates.bin_gate_measures`.
    """
    figure, axes = style.subplots(1, len(GATE_MEASURES), height=1.9, sharey=True)
    thresholds = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
        "risk": [limits.min_risk, limits.max_risk],
    }
    for axis, (measure, label) in zip(axes, GATE_MEASURES.items(), strict=True):
        _draw_histogram(axis, counts[counts["measure"] == measure])
        for threshold in thresholds[measure]:
            axis.axvline(threshold, **style.PAPER_LINE)
        axis.set(xlabel=label, xlim=(0, 1))
    axes[0].set_ylabel("candidates")
    first_measure = next(iter(GATE_MEASURES))
    totals = counts[counts["measure"] == first_measure]
    passing = totals["passes"].sum()
    stopped = totals["stopped"].sum()
    _draw_key(
        axes[0],
        0.93,
        f"{passing:,} pass all gates",
        _PASSING_COLOUR,
        None,
    )
    _draw_key(
        axes[0],
        0.83,
        f"{stopped:,} stopped by one",
        "white",
        style.INK,
    )
    return figure


def _draw_histogram(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw one measure's bars: candidates that pass, and above them those that stop."""
    bars: Look = {
        "align": "edge",
        "width": BIN_WIDTH,
        "lw": 0.5,
    }
    axis.bar(
        rows["low"],
        rows["passes"],
        color=_PASSING_COLOUR,
        ec="white",
        **bars,
    )
    # Bars of no candidate would be drawn as lines.
    some = rows[rows["stopped"] > 0]
    axis.bar(
        some["low"],
        some["stopped"],
        color="white",
        ec=style.INK,
        bottom=some["passes"],
        **bars,
    )


def _draw_key(axis: Axes, y: float, text: str, face: str, edge: str | None) -> None:
    """Write what bars mean beside a small box of their colours."""
    box = Rectangle(
        (0.02, y - 0.03),
        0.03,
        0.06,
        facecolor=face,
        edgecolor=edge,
        lw=0.5,
        transform=axis.transAxes,
    )
    axis.add_patch(box)
    style.write_remark(
        axis,
        0.07,
        y,
        text,
        of="xy",
        va="center_baseline",
    )
