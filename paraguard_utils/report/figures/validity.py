"""Figures of notebook 09: measures where the truth is known, and on a task without safety."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.analysis import predictions
from paraguard_utils.report.figures.style import CHANCE, PAGE, end_labels, model_looks, subplots
from paraguard_utils.schemas import Table

CHANCES = {"dr": 1.0, "excess": 0.0}
"""What a measure has where decisions have nothing to do with prompts, whatever the refusal rate."""

MARKERS = "ovPX*"


def known_truth(table: Table) -> Figure:
    """Draw each measure against how much meaning decides, a line a refusal rate with the range of 95 % of worlds.

    The darker a line, the higher its rate; dashed: wording that follows perplexity. A good measure: its lines slope,
    and lie on one another. A page wide.

    Parameters
    ----------
    table : DataFrame
        wording, frr, correlation, measure, mean, low, high.
    """
    figure, axes = subplots(3, 3, figsize=(PAGE, 4.8), sharex=True)
    rates = sorted(set(table["frr"]))
    shades = {rate: f"{level:.2f}" for rate, level in zip(rates, np.linspace(0.65, 0.05, len(rates)), strict=True)}
    lines: list[tuple[str, float, str, dict[str, Any]]] = [
        ("dice", rate, f"FRR {rate:g}", {"color": shade, "linestyle": "-"}) for rate, shade in shades.items()
    ]
    usual = predictions.USUAL_RATE
    dashed = {"color": shades[usual], "linestyle": "--"}
    lines.append(("perplexity", usual, f"FRR {usual:g}, perplexity", dashed))
    named: list[tuple[Axes, list]] = []
    step = np.ptp(table["correlation"]) / 80
    for axis, (measure, label) in zip(axes.flat, predictions.MEASURES.items(), strict=True):
        own = table[table["measure"] == measure].sort_values("correlation")
        ends: list[tuple[float, str, dict[str, Any]]] = []
        for place, (wording, rate, name, look) in enumerate(lines):
            rows = own[(own["wording"] == wording) & (own["frr"] == rate)]
            x = rows["correlation"] + step * (place - (len(lines) - 1) / 2)
            spread = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
            axis.errorbar(x, rows["mean"], yerr=spread, marker="o", ms=2, mfc="white", lw=0.9, elinewidth=0.7, **look)
            if len(rows):
                ends.append((rows["mean"].iloc[-1], name, look))
        if measure in CHANCES:
            axis.axhline(CHANCES[measure], zorder=0, **CHANCE)
        axis.set_title(f"{label} (dotted: chance)" if measure in CHANCES else label)
        axis.set_ylim(bottom=min(0.0, own["low"].min()))
        if axis in axes[:, -1]:
            named.append((axis, ends))
    for axis, ends in named:
        end_labels(figure, axis, ends)
    for axis in axes[-1]:
        axis.set(xlabel="how much meaning decides", xticks=sorted(set(table["correlation"])))
    return figure


def noise(table: Table) -> Figure:
    """Draw the measures of every system against the share of its decisions that were turned, with 95 % intervals.

    A page wide.

    Parameters
    ----------
    table : DataFrame
        The clusters of all classes: system, noise and the measures.
    """
    measures = ("dr", "ci", "cr60", "cd", "excess")
    figure, axes = subplots(1, len(measures), figsize=(PAGE, 2.1), sharex=True)
    names = list(dict.fromkeys(table["system"]))
    looks = model_looks(names)
    for axis, measure in zip(axes, measures, strict=True):
        ends = []
        for place, name in enumerate(names):
            rows = table[table["system"] == name].sort_values("noise")
            value, low, high = (rows[f"{measure}{end}"] for end in ("", "_low", "_high"))
            title, colour = looks[name]
            look = {"color": colour, "marker": MARKERS[place % len(MARKERS)]}
            x = 100 * rows["noise"] + 0.5 * (place - (len(names) - 1) / 2)
            axis.errorbar(x, value, yerr=[value - low, high - value], ms=2.5, lw=0.8, elinewidth=0.6, **look)
            ends.append((value.iloc[-1], title, {"color": colour}))
        if measure in CHANCES:
            axis.axhline(CHANCES[measure], zorder=0, **CHANCE)
        axis.set_title(predictions.MEASURES[measure])
        axis.set_ylim(bottom=min(0.0, table[f"{measure}_low"].min()))
        axis.set(xticks=sorted(100 * table["noise"].unique()))
    end_labels(figure, axes[-1], ends)
    axes[len(measures) // 2].set_xlabel("decisions turned, % (dotted: chance)")
    return figure
