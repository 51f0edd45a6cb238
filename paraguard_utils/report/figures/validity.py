"""Figures of notebook 06: measures where the truth is known, and on a task without safety."""

import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.analysis import predictions
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.schemas import Table

_CHANCE_LEVELS = {"dr": 1.0, "excess": 0.0}
"""Value of a measure where decisions have nothing to do with prompts, whatever the refusal rate."""


def plot_known_truth(table: Table) -> Figure:
    """Draw each measure against how much meaning decides, one line per refusal rate; bars hold 95 % of the worlds.

    The darker a line, the higher its rate; dashed: wording that follows perplexity. The lines of a good measure slope,
    and lie on one another. A page wide. `table` has wording, frr, correlation, measure, mean, low, high.
    """
    figure, axes = style.subplots(3, 3, figsize=(style.PAGE_WIDTH, 4.8), sharex=True)
    rates, usual = sorted(set(table["frr"])), predictions.USUAL_REFUSAL_RATE
    shades = {rate: f"{level:.2f}" for rate, level in zip(rates, np.linspace(0.65, 0.05, len(rates)), strict=True)}
    lines = [("dice", rate, f"FRR {rate:g}", {"color": shade, "linestyle": "-"}) for rate, shade in shades.items()]
    lines.append(("perplexity", usual, f"FRR {usual:g}, perplexity", {"color": shades[usual], "linestyle": "--"}))
    ends: dict[str, list[tuple[float, str, Look]]] = {measure: [] for measure in predictions.MEASURE_TITLES}
    step = np.ptp(table["correlation"]) / 80
    for axis, (measure, label) in zip(axes.flat, predictions.MEASURE_TITLES.items(), strict=True):
        own = table[table["measure"] == measure].sort_values("correlation")
        own = own.rename(columns={"low": "mean_low", "high": "mean_high"})
        for place, (wording, rate, name, look) in enumerate(lines):
            rows = own[(own["wording"] == wording) & (own["frr"] == rate)]
            x = rows["correlation"] + step * (place - (len(lines) - 1) / 2)
            marks = {"marker": "o", "ms": 2, "mfc": "white", "lw": 0.9, "elinewidth": 0.7}
            style.draw_interval_bars(axis, rows, "mean", x, "y", fmt="", **marks, **look)
            if len(rows):
                ends[measure].append((rows["mean"].iloc[-1], name, look))
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
        axis.set_title(f"{label} (dotted: chance)" if measure in _CHANCE_LEVELS else label)
        axis.set_ylim(bottom=min(0.0, own["mean_low"].min()))
    for axis, named in zip(axes[:, -1], list(ends.values())[2::3], strict=True):
        style.label_line_ends(figure, axis, named)
    for axis in axes[-1]:
        axis.set(xlabel="how much meaning decides", xticks=sorted(set(table["correlation"])))
    return figure


def plot_noise_response(table: Table) -> Figure:
    """Draw systems' measures (system, noise) against the share of turned decisions, with intervals. A page wide."""
    measures = ("dr", "ci", "cr60", "cd", "excess")
    figure, axes = style.subplots(1, len(measures), figsize=(style.PAGE_WIDTH, 2.1), sharex=True)
    looks = style.model_looks(table["system"])
    for axis, measure in zip(axes, measures, strict=True):
        ends = []
        for place, (name, (title, colour)) in enumerate(looks.items()):
            rows = table[table["system"] == name].sort_values("noise")
            look: Look = {"color": colour, "marker": "ovPX*"[place % 5], "ms": 2.5, "lw": 0.8, "elinewidth": 0.6}
            x = 100 * rows["noise"] + 0.5 * (place - (len(looks) - 1) / 2)
            style.draw_interval_bars(axis, rows, measure, x, "y", fmt="", **look)
            ends.append((rows[measure].iloc[-1], title, {"color": colour}))
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
        axis.set_title(predictions.MEASURE_TITLES[measure])
        axis.set_ylim(bottom=min(0.0, table[f"{measure}_low"].min()))
        axis.set(xticks=sorted(100 * table["noise"].unique()))
    style.label_line_ends(figure, axes[-1], ends)
    axes[len(measures) // 2].set_xlabel("decisions turned, % (dotted: chance)")
    return figure
