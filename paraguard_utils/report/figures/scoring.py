"""Figures of notebooks 03, 05 and 06 about targets: rates, CI and what it correlates with, CR."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.bootstrap import FEW, FEW_CLUSTERS
from paraguard_utils.registry import titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures.style import (
    GREY,
    PAGE,
    READING_COLOURS,
    grid,
    interval_bars,
    subplots,
    target_panels,
)
from paraguard_utils.schemas import Table
from paraguard_utils.scoring.confusion import CI


def target_overview(table: Table) -> Figure:
    """Draw how often and how sensibly each target refuses: estimates with 95 % intervals, one panel per measure.

    Rings are the floor of CI: the matched one where the table has it, else the CI of accepted prompts.
    """
    names = list(dict.fromkeys(table["target"]))
    floor, ring = ("floor_matched", "matched floor") if "floor_matched" in table else ("floor", "unmatched floor")
    panels = {
        "frr": ("FRR", "share of\nprompts"),
        "flip_rate": ("Flip rate", "share of\nclusters"),
        "ci": ("CI", f"mean score,\nring: {ring}"),
        "excess": ("Excess in clusters", "rejected minus\naccepted pairs"),
        "excess_matched": ("Excess over floor", "CI minus\nmatched floor"),
    }
    panels = {measure: words for measure, words in panels.items() if measure in table}
    by_reading = {
        reading: table[table["reading"] == reading].set_index("target").loc[names] for reading in READING_COLOURS
    }
    figure, axes = subplots(1, len(panels), figsize=(PAGE, 0.8 + 0.32 * len(names)), sharey=True)
    for axis, (measure, (title, label)) in zip(axes, panels.items(), strict=True):
        axis.set(title=title, xlabel=label)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=3)
        if measure in ("frr", "flip_rate"):  # the same in both readings
            interval_bars(axis, by_reading["relative"], measure, np.arange(len(names)), ms=3, color="black")
            axis.set_xlim(left=0)
        else:
            _both_readings(axis, by_reading, measure, floor)
        # What is undefined or rests on few is so in both readings.
        _remarks(axis, by_reading["clipped"], measure)
    rows = by_reading["relative"]
    noisy = rows["noisy"].eq("yes") if "noisy" in rows else [False] * len(rows)  # a guard's decisions are no labels
    counted = [
        f"{title}\n{n} of {total} rejected{', noisy' if unsure else ''}"
        for title, n, total, unsure in zip(titles(names), rows["n_reject"], rows["n_scored"], noisy, strict=True)
    ]
    axes[0].set_yticks(range(len(names)), counted)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _both_readings(axis: Axes, by_reading: dict[str, pd.DataFrame], measure: str, floor: str) -> None:
    """Draw a measure of each target in both readings, a little apart; with CI, its floor as rings."""
    for shift, (reading, rows) in zip((-0.13, 0.13), by_reading.items(), strict=True):
        y, colour = np.arange(len(rows)) + shift, READING_COLOURS[reading]
        interval_bars(axis, rows, measure, y, ms=3, color=colour)
        if measure == "ci":
            interval_bars(axis, rows, floor, y, ms=4.5, mfc="none", mew=0.7, elinewidth=0.7, color=colour)
            up = 2 if reading == "relative" else 9
            axis.annotate(reading, (1, 1), xytext=(0, up), xycoords="axes fraction", textcoords="offset points",
                          ha="right", color=colour, weight="bold", size=6)  # fmt: skip
    if measure == "ci":
        axis.set_xlim(0, 1)
    else:
        axis.axvline(0, color="black", linewidth=0.6)


def _remarks(axis: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Write beside a target that its CI rests on few rejections, its excess on few clusters, or that there is none."""
    look: dict[str, Any] = {"va": "center", "size": 5.5, "color": GREY, "transform": axis.get_yaxis_transform()}
    if measure == "ci":
        for y in np.flatnonzero(rows["few"] & rows["ci"].notna()).tolist():
            axis.text(0.98, y, f"n < {FEW}", ha="right", **look)
    if measure == "excess":
        for y in np.flatnonzero(rows["n_mixed"].between(1, FEW_CLUSTERS - 1)).tolist():
            text = f"only {rows['n_mixed'].iloc[y]} clusters"
            axis.text(0.98, y - 0.33, text, ha="right", bbox={"color": "white", "pad": 0.5}, **look)
    for y in np.flatnonzero(rows[measure].isna()).tolist():
        axis.text(0.02, y, "undefined", **look)


def ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, one panel per target, with r and its interval (Fig. 3).

    Parameters
    ----------
    scores : DataFrame
        Scored rejections of all targets: target, mean_similarity, ci, ci_clipped.
    correlations : DataFrame
        target, reading, r, r_low, r_high.
    """
    names = list(dict.fromkeys(correlations["target"]))
    figure, axes = grid(names, min(len(names), 3), 2.2, sharex=True, sharey=True)
    for axis, name in zip(axes.flat, names, strict=False):
        own = scores[scores["target"] == name]
        for line, (reading, column) in enumerate(CI.items()):
            axis.scatter(own["mean_similarity"], own[column], s=7, color=READING_COLOURS[reading], alpha=0.7, lw=0)
            row = correlations[(correlations["target"] == name) & (correlations["reading"] == reading)].iloc[0]
            known = f"r = {tables.estimate(row, 'r', 2)}" if np.isfinite(row["r"]) else "r undefined"
            axis.text(0.02, 0.11 - 0.08 * line, f"{reading}: {known}", color=READING_COLOURS[reading],
                      transform=axis.transAxes, fontsize=6, weight="bold")  # fmt: skip
        few = f", fewer than {FEW}" if len(own) < FEW else ""
        axis.set(title=f"{titles([name])[0]}\nn = {len(own)}{few}", ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("mean similarity to accepted neighbours")
    for axis in axes[:, 0]:
        axis.set_ylabel("CI of a rejection")
    return figure


def ci_correlates(table: Table, titled: dict[str, str], parts: dict[str, str], limit: float) -> Figure:
    """Draw what CI(r) correlates with: r with its interval, a row per covariate, a panel per target.

    Parameters
    ----------
    table : DataFrame
        From `covariates.correlations`.
    titled, parts : dict of str to str
        Titles of the covariates and of the signals, which are parts of CI.
    limit : float
        The paper's break condition on |r|, dashed.
    """
    names, rows = list(dict.fromkeys(table["target"])), [*titled, *parts]
    figure, axes = target_panels(names, [*titled.values(), *(f"{part} (part of CI)" for part in parts.values())], 3)
    for axis, name in zip(axes, names, strict=True):
        own = table[table["target"] == name]
        axis.axhspan(len(titled) - 0.5, len(rows) - 0.5, color="0.93", lw=0)
        for x, style in ((0, "-"), (-limit, "--"), (limit, "--")):
            axis.axvline(x, color=GREY if x else "black", linestyle=style, linewidth=0.6)
        for shift, (reading, colour) in zip((-0.15, 0.15), READING_COLOURS.items(), strict=True):
            found = own[own["reading"] == reading].set_index("covariate").loc[rows]
            y = np.arange(len(rows)) + shift
            interval_bars(axis, found, "r", y, ms=2.5, lw=0.9, color=colour)
            for height in y[found["r"].isna()]:
                axis.text(-0.97, height, "undefined", va="center", size=5, color=colour)
        few = " (few)" if own["few"].any() else ""
        axis.set_title(f"{axis.get_title('left')}, n = {own['n'].max()}{few}", fontsize=7)
    axes[0].set(xlim=(-1.03, 1.03), xticks=[-1, -0.5, 0, 0.5, 1], xticklabels=["−1", "−0.5", "0", "0.5", "1"])
    for x, (reading, colour) in zip((-36, -4), READING_COLOURS.items(), strict=True):
        axes[0].annotate(reading, (0, 1), xytext=(x, 3), xycoords="axes fraction", textcoords="offset points",
                         ha="right", color=colour, weight="bold", size=6)  # fmt: skip
    figure.supxlabel("r with CI of a rejection (dashed: the break condition)", size=7)
    return figure


def cr_curve(curve: Table) -> Figure:
    """Draw CR against tau beside what permuted labels give, a panel per target.

    Parameters
    ----------
    curve : DataFrame
        target, reading, tau, cr, null, null_low, null_high.
    """
    names = list(dict.fromkeys(curve["target"]))
    figure, axes = grid(names, 3, 1.9, sharex=True, sharey=True)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        for reading, colour in READING_COLOURS.items():
            rows = curve[(curve["target"] == name) & (curve["reading"] == reading)]
            axis.fill_between(rows["tau"], rows["null_low"], rows["null_high"], color="0.75", lw=0)
            axis.plot(rows["tau"], rows["null"], color=GREY, linewidth=0.7)
            axis.plot(rows["tau"], rows["cr"], color=colour, marker="o", ms=1.8)
            half = rows.loc[(rows["cr"] >= 0.5), "tau"].max()
            if np.isfinite(half):
                side = -0.03 if reading == "relative" else 0.06
                axis.text(half + side, 0.5, reading, color=colour, size=6, ha="right" if side < 0 else "left")
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1.02))
    for axis in axes[-1]:
        axis.set_xlabel("tau")
    for axis in axes[:, 0]:
        axis.set_ylabel("CR@tau")
    axes[0, 0].text(0.99, 0.78, "grey: 95 % of\npermutations", size=5.5, color=GREY, ha="right")
    return figure
