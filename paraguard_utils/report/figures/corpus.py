"""The figure of notebook 01: what the gates measure of candidates."""

import pandas as pd
from matplotlib.figure import Figure

from paraguard_utils.corpus.gates import BIN_WIDTH, GATE_MEASURES
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.settings import Gates


def plot_gate_distributions(counts: pd.DataFrame, limits: Gates) -> Figure:
    """Draw histograms of candidates that pass or stop, with the gates' limits.

    A page wide. `counts` is from `gates.bin_gate_measures`.
    """
    figure, axes = style.subplots(1, len(GATE_MEASURES), height=2.1, sharey=True)
    thresholds = {
        "similarity": [limits.min_similarity],
        "content_overlap": [limits.max_overlap],
        "risk": [limits.min_risk, limits.max_risk],
    }
    look: Look = {"align": "edge", "width": BIN_WIDTH, "lw": 0.5}
    passing: Look = look | {"color": style.OTHER_COLOURS[1], "ec": "white"}
    stopped: Look = look | {"color": "white", "ec": style.INK}
    for axis, (measure, label) in zip(axes, GATE_MEASURES.items(), strict=True):
        rows = counts[counts["measure"] == measure]
        name = f"{rows['passes'].sum():,} pass all gates"
        axis.bar(rows["low"], rows["passes"], label=name, **passing)
        name = f"{rows['stopped'].sum():,} stopped by one"
        some = rows[rows["stopped"] > 0]  # a bar of none would be drawn as a line
        bottom = some["passes"]
        axis.bar(some["low"], some["stopped"], bottom=bottom, label=name, **stopped)
        for threshold in thresholds[measure]:
            axis.axvline(threshold, **style.PAPER_LINE)
        axis.set(xlabel=label, xlim=(0, 1))
    axes[0].set_ylabel("candidates")
    style.name_lines(figure, axes[0])
    return figure
