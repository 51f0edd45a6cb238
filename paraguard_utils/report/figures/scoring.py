"""Figures of notebooks 03, 05 and 09 about targets: rates, CI and what it correlates with, CR."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from paraguard_utils.analysis.confusion import CI
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import TAUS
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS, ClusterBootstrap
from paraguard_utils.registry import titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures.style import (
    CHANCE,
    GREY,
    INK,
    PAGE,
    PALE,
    PAPER,
    PARTS,
    READINGS,
    SMALL,
    grid,
    interval_bars,
    subplots,
    target_panels,
)
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table

PAPER_R = "r.similarity"
"""The paper's correlation of CI with similarity, by its item in `data/paper_values.csv`."""


def _widest(values: pd.Series) -> int:
    """Return the place of the largest value; the first where none is known."""
    return int(np.argmax(np.nan_to_num(np.asarray(values, float), nan=-np.inf)))


def variance_parts(table: Table) -> Figure:
    """Draw where the variance of each target's decisions goes: a bar a target, its parts side by side.

    The bar of meaning carries its 95 % interval; most meaning stands first, targets with few refusals last. Answers
    drawn by chance stand below a line, with their dice. A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of `variance.parts` and of `variance.drawn_parts`.
    """
    order = {"by": ["few", "meaning"], "ascending": [True, False], "kind": "stable"}
    kinds = [table[table["decoding"] == decoding] for decoding in ("greedy", "drawn")]
    rows = pd.concat([kind.sort_values(**order) for kind in kinds], ignore_index=True)
    figure, axis = subplots(figsize=(PAGE, 0.5 + 0.24 * len(rows)))
    y = np.arange(len(rows), dtype=float)
    greedy = int((rows["decoding"] == "greedy").sum())
    y[greedy:] += 0.6  # a gap before the drawn ones
    left, starts = np.zeros(len(rows)), {}
    for part, colour in PARTS.items():
        width, starts[part] = rows[part].clip(lower=0).to_numpy(), left
        axis.barh(y, width, left=left, height=0.72, color=colour, label=part, lw=0)
        left = left + width
    value, low, high = (rows[f"meaning{end}"].clip(lower=0).to_numpy() for end in ("", "_low", "_high"))
    known = np.isfinite(low) & np.isfinite(high)
    spreads = [(value - low)[known], (high - value)[known]]
    axis.errorbar(value[known], y[known], xerr=spreads, fmt="none", color=INK, capsize=1.5)
    for place in y[rows["few"].to_numpy(bool)]:
        text = f"fewer than {disagreement.MIN_DECISIONS} rejections or acceptances"
        axis.text(0.99, place, text, ha="right", va="center", size=SMALL)
    look: dict[str, Any] = {"va": "center", "size": SMALL}
    # Each part is named once, where it has most room.
    clear = np.nan_to_num(np.fmin(low, value))
    axis.text(0.005, y[_widest(clear)], "meaning", **look)
    axis.text(0.99, y[_widest(clear)], "other wording", ha="right", **look)
    beyond = np.fmax(starts["wording"], high)
    free = _widest((rows["style"] - (beyond - starts["wording"]))[: greedy or None])
    axis.text(beyond[free] + 0.005, y[free], "\u2190 wording, as style explains it", **look)
    if greedy < len(rows):
        axis.text(0.99, y[greedy:][_widest(rows["dice"][greedy:])], "dice", ha="right", **look)
        axis.axhline(greedy - 0.2, color=GREY, linewidth=0.6)
    names = [
        title if decoding == "greedy" else f"{title}, drawn"
        for title, decoding in zip(titles(list(rows["target"])), rows["decoding"], strict=True)
    ]
    axis.set_yticks(y, names)
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(0, 1), ylim=(y[-1] + 0.6, -0.6))
    axis.set_xlabel("share of the variance of a decision (line: 95 % interval of meaning's)")
    return figure


def target_overview(table: Table) -> Figure:
    """Draw how often and how sensibly each target refuses: estimates with 95 % intervals, one panel per measure.

    A page wide.
    """
    panels = {
        "frr": ("FRR", "share of\nprompts"),
        "dr": ("DR", "0: meaning decides,\n1 (dotted): chance"),
        "ci": ("CI", "mean score"),
        "cr60": ("CR@0.60", "share of\nrejections"),
        "cd": ("CD", "deviation\nof scores"),
    }
    names = list(dict.fromkeys(table["target"]))
    rows = table[table["reading"] == "relative"].set_index("target").loc[names]
    axes, figure = _panels(rows, panels)
    for axis, measure in zip(axes, panels, strict=True):
        interval_bars(axis, rows, measure, np.arange(len(names)), ms=3, color=INK, clip_on=False)
        axis.set_xlim(left=0)
        _remarks(axis, rows, measure)
    axes[1].axvline(1, zorder=0, **CHANCE)
    return figure


def by_source(table: Table) -> Figure:
    """Draw how often and how sensibly targets refuse the prompts of several benchmarks: a line each, 95 % intervals.

    A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of `full_scale.by_source`, of one or several targets with the same sources.
    """
    names, sources = (list(dict.fromkeys(table[column])) for column in ("target", "source"))
    size = (PAGE, 0.35 + (0.35 + 0.17 * len(sources)) * len(names))
    figure, axes = subplots(len(names), 2, figsize=size, sharex="col", sharey=True, squeeze=False)
    for name, (often, sensibly) in zip(names, axes, strict=True):
        rows = table[table["target"] == name].set_index("source").loc[sources]
        for axis, measure in ((often, "frr"), (sensibly, "dr")):
            interval_bars(axis, rows, measure, np.arange(len(rows)), ms=3, color=INK)
            axis.grid(axis="x", linewidth=0.3)
            axis.set_axisbelow(True)
            axis.tick_params(axis="y", length=0)
            _remarks(axis, rows, measure)
        often.set_title(titles([name])[0], loc="left")
        sensibly.axvline(1, zorder=0, **CHANCE)
    axes[0, 0].set_yticks(range(len(sources)), sources)
    axes[0, 0].set_ylim(len(sources) - 0.5, -0.5)
    axes[-1, 0].set(xlabel="FRR", xlim=(0, None))
    axes[-1, 1].set(xlabel="DR (0: meaning decides, 1, dotted: chance)", xlim=(0, None))
    return figure


def against_floors(table: Table) -> Figure:
    """Draw CI beside its matched floor (rings), and both kinds of excess, in both readings: a panel per measure.

    A page wide.
    """
    panels = {
        "ci": ("CI", "mean score,\nring: matched floor"),
        "excess": ("Excess in clusters", "rejected minus\naccepted pairs"),
        "excess_matched": ("Excess over floor", "CI minus\nmatched floor"),
    }
    names = list(dict.fromkeys(table["target"]))
    by_reading = {reading: table[table["reading"] == reading].set_index("target").loc[names] for reading in READINGS}
    axes, figure = _panels(by_reading["relative"], panels)
    for axis, measure in zip(axes, panels, strict=True):
        _both_readings(axis, by_reading, measure, "floor_matched")
        # What is undefined or rests on few is so in both readings.
        _remarks(axis, by_reading["clipped"], measure)
    return figure


def _panels(rows: pd.DataFrame, panels: dict[str, tuple[str, str]]) -> tuple[list[Axes], Figure]:
    """Make a panel a measure, targets with their counts on the left."""
    figure, axes = subplots(1, len(panels), figsize=(PAGE, 0.8 + 0.32 * len(rows)), sharey=True)
    for axis, (title, label) in zip(axes, panels.values(), strict=True):
        axis.set(title=title, xlabel=label)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=3)
    noisy = rows["noisy"].eq("yes") if "noisy" in rows else [False] * len(rows)  # a guard's decisions are no labels
    counted = [
        f"{title}\n{n} of {total} rejected{', noisy' if unsure else ''}"
        for title, n, total, unsure in zip(titles(rows.index), rows["n_reject"], rows["n_scored"], noisy, strict=True)
    ]
    axes[0].set_yticks(range(len(rows)), counted)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return list(axes), figure


def _both_readings(axis: Axes, by_reading: dict[str, pd.DataFrame], measure: str, floor: str) -> None:
    """Draw a measure of each target in both readings, a little apart; with CI, its floor as rings."""
    for shift, (reading, rows) in zip((-0.13, 0.13), by_reading.items(), strict=True):
        y, colour = np.arange(len(rows)) + shift, READINGS[reading]
        interval_bars(axis, rows, measure, y, ms=3, color=colour)
        if measure == "ci":
            interval_bars(axis, rows, floor, y, ms=4.5, mfc="none", mew=0.7, elinewidth=0.7, color=colour)
            up = 2 if reading == "relative" else 9
            axis.annotate(reading, (1, 1), xytext=(0, up), xycoords="axes fraction", textcoords="offset points",
                          ha="right", color=colour, weight="bold", size=SMALL)  # fmt: skip
    if measure == "ci":
        axis.set_xlim(0, 1)
    else:
        axis.axvline(0, zorder=0, **CHANCE)


def _remarks(axis: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Write beside a target that its CI rests on few rejections, its excess on few clusters, or that there is none."""
    look: dict[str, Any] = {"va": "center", "size": SMALL, "color": GREY, "transform": axis.get_yaxis_transform()}
    back = {"color": "white", "pad": 0.5}
    for flag, of, least in (("few", "ci", MIN_REFUSALS), ("few_dr", "dr", disagreement.MIN_DECISIONS)):
        if measure == of and flag in rows:
            for y in np.flatnonzero(rows[flag] & rows[of].notna()).tolist():
                axis.text(0.98, y - 0.33, f"n < {least}", ha="right", bbox=back, **look)
    if measure == "excess":
        for y in np.flatnonzero(rows["n_mixed"].between(1, MIN_MIXED - 1)).tolist():
            text = f"only {rows['n_mixed'].iloc[y]} clusters"
            axis.text(0.98, y - 0.33, text, ha="right", bbox=back, **look)
    for y in np.flatnonzero(rows[measure].isna()).tolist():
        axis.text(0.02, y, "undefined", **look)


def variogram(table: Table) -> Figure:
    """Draw how often prompts are decided differently by how similar they are, a panel a target.

    Dots with 95 % intervals are pairs of one cluster, rings pairs of two; 1 is what unrelated prompts give.

    A page wide.

    Parameters
    ----------
    table : DataFrame
        From `validity.by_similarity`, with a column target.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, min(len(names), 3), 1.5, margin=0.3, sharex=True, sharey=True)
    scopes: dict[str, dict[str, Any]] = {
        "two clusters": {"color": GREY, "mfc": "white"},
        "one cluster": {"color": INK},
    }
    ends = {}
    for axis, name in zip(axes.flat, names, strict=False):
        axis.axhline(1, zorder=0, **CHANCE)
        for scope, look in scopes.items():
            own = table[(table["target"] == name) & (table["scope"] == scope) & (table["pairs"] >= MIN_REFUSALS)]
            x = (own["low_edge"].clip(lower=0) + own["high_edge"].clip(upper=1)) / 2
            spread = [own["ratio"] - own["ratio_low"], own["ratio_high"] - own["ratio"]]
            axis.errorbar(x, own["ratio"], yerr=np.nan_to_num(spread), fmt="o-", ms=3, lw=0.8, **look)
            ends[scope] = list(zip(x, own["ratio"], strict=True))
        axis.set(title=titles([name])[0], xlim=(0, 1), ylim=(0, 2))
    # The last panel's points are named.
    axis = axes.flat[len(names) - 1]
    named = {"two clusters": (0, (0, 5), "left"), "one cluster": (-1, (-6, -2), "right")}
    for scope, (end, shift, side) in named.items():
        if ends[scope]:
            axis.annotate(scope, ends[scope][end], xytext=shift, textcoords="offset points", ha=side,
                          size=SMALL, color=scopes[scope]["color"])  # fmt: skip
    axis.text(0.99, 1.03, "chance", ha="right", va="bottom", size=SMALL, color=GREY)
    for axis in axes[-1]:
        axis.set_xlabel("cosine of the two prompts")
    figure.supylabel("decided differently, against unrelated prompts", size=7)
    return figure


def ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, one panel per target, with r and its interval (Fig. 3).

    Rejections are counted in hexagons; above them stand the mean of each bin of equally many rejections, with its 95 %
    interval over resampled clusters, and, dashed, the slope that the paper's r would have. A page wide.

    Parameters
    ----------
    scores : DataFrame
        Scored rejections of all targets: target, cluster_id, mean_similarity, ci, ci_clipped.
    correlations : DataFrame
        target, reading, r, r_low, r_high.
    """
    names = list(dict.fromkeys(correlations["target"]))
    figure, axes = grid(names, min(len(names), 3), 1.9, sharex=True, sharey=True)
    for axis, name in zip(axes.flat, names, strict=False):
        own = scores[scores["target"] == name].dropna(subset=["mean_similarity", *CI.values()])
        for line, (reading, column) in enumerate(CI.items()):
            colour = READINGS[reading]
            tint = LinearSegmentedColormap.from_list(reading, [to_rgba(colour, 0.12), to_rgba(colour, 0.75)])
            axis.hexbin(own["mean_similarity"], own[column], gridsize=(40, 18), extent=(0, 1, 0, 1), mincnt=1,
                        cmap=tint, linewidths=0)  # fmt: skip
            _trend(axis, own, column, colour)
            row = correlations[(correlations["target"] == name) & (correlations["reading"] == reading)].iloc[0]
            known = f"r = {tables.estimate(row, 'r', 2)}" if np.isfinite(row["r"]) else "r undefined"
            axis.text(0.02, 0.11 - 0.08 * line, f"{reading}: {known}", color=colour, transform=axis.transAxes,
                      size=SMALL, weight="bold")  # fmt: skip
        few = f", fewer than {MIN_REFUSALS}" if len(own) < MIN_REFUSALS else ""
        axis.set(title=f"{titles([name])[0]}\nn = {len(own)}{few}", xlim=(0, 1), ylim=(0, 1))
    axes[0, 0].text(0.02, 0.98, f"dashed: as the paper's r = {paper_value(PAPER_R)}", va="top", size=SMALL)
    for axis in axes[-1]:
        axis.set_xlabel("mean similarity to accepted neighbours")
    for axis in axes[:, 0]:
        axis.set_ylabel("CI of a rejection")
    return figure


BINS = 8
"""Bins of Fig. 3, at most."""


def trend(own: pd.DataFrame, column: str) -> pd.DataFrame:
    """Average a reading's CI in up to `BINS` bins of equally many rejections, none of fewer than half of `FEW`.

    Parameters
    ----------
    own : DataFrame
        One target's rejections: cluster_id, mean_similarity, and `column`.
    column : str

    Returns
    -------
    DataFrame, a row per bin
        mean_similarity and mean, low, high of CI, over resampled clusters.
    """
    if len(own) < MIN_REFUSALS:
        return pd.DataFrame(columns=["mean_similarity", "mean", "low", "high"], dtype=float)
    bins = pd.qcut(own["mean_similarity"], min(BINS, 2 * len(own) // MIN_REFUSALS), labels=False, duplicates="drop")
    clusters = ClusterBootstrap(own["cluster_id"])
    rows = []
    for _, part in own.groupby(bins):
        mean, low, high = clusters.mean(part["cluster_id"].to_numpy(), part[column])
        rows.append({"mean_similarity": part["mean_similarity"].mean(), "mean": mean, "low": low, "high": high})
    # Processors differ in the last digits.
    return pd.DataFrame(rows).round(9)


def _trend(axis: Axes, own: pd.DataFrame, column: str, colour: str) -> None:
    """Draw the means of `trend` with their intervals, and the slope of the paper's r through the mean of all."""
    x, y = own["mean_similarity"], own[column]
    if len(own) > 1 and x.std() > 0:
        ends = np.array([x.min(), x.max()])
        axis.plot(ends, y.mean() + paper_value(PAPER_R) * y.std() / x.std() * (ends - x.mean()), **PAPER)
    means = trend(own, column)
    spread = [means["mean"] - means["low"], means["high"] - means["mean"]]
    axis.errorbar(means["mean_similarity"], means["mean"], yerr=np.nan_to_num(spread), fmt="o-", ms=2.5, capsize=1.5,
                  color=colour)  # fmt: skip


def ci_correlates(table: Table, titled: dict[str, str], parts: dict[str, str], limit: float) -> Figure:
    """Draw what CI(r) correlates with: r with its interval, a row per covariate, a panel per target.

    A page wide.

    Parameters
    ----------
    table : DataFrame
        From `validity.correlations`.
    titled, parts : dict of str to str
        Titles of the covariates and of the signals, which are parts of CI.
    limit : float
        The paper's break condition on |r|, dashed.
    """
    names, rows = list(dict.fromkeys(table["target"])), [*titled, *parts]
    figure, axes = target_panels(names, [*titled.values(), *(f"{part} (part of CI)" for part in parts.values())], 3)
    for axis, name in zip(axes, names, strict=True):
        own = table[table["target"] == name]
        axis.axhspan(len(titled) - 0.5, len(rows) - 0.5, color=PALE, lw=0, zorder=-1)
        axis.axvline(0, zorder=0, **CHANCE)
        for x in (-limit, limit):
            axis.axvline(x, zorder=0, **PAPER)
        if "similarity" in rows:
            axis.plot(paper_value(PAPER_R), rows.index("similarity"), "D", ms=3.5, mfc="none", mec=INK, mew=0.7)
        for shift, (reading, colour) in zip((-0.15, 0.15), READINGS.items(), strict=True):
            found = own[own["reading"] == reading].set_index("covariate").loc[rows]
            y = np.arange(len(rows)) + shift
            interval_bars(axis, found, "r", y, ms=2.5, lw=0.9, color=colour)
            for height in y[found["r"].isna()]:
                axis.text(-0.97, height, "undefined", va="center", size=SMALL, color=colour)
        few = " (few)" if own["few"].any() else ""
        axis.set_title(f"{axis.get_title('left')}, n = {own['n'].max()}{few}")
    axes[0].set(xlim=(-1.03, 1.03), xticks=[-1, -0.5, 0, 0.5, 1], xticklabels=["\u22121", "\u22120.5", "0", "0.5", "1"])
    for x, (reading, colour) in zip((-36, -4), READINGS.items(), strict=True):
        axes[0].annotate(reading, (0, 1), xytext=(x, 3), xycoords="axes fraction", textcoords="offset points",
                         ha="right", color=colour, weight="bold", size=SMALL)  # fmt: skip
    known = f"diamond, r = {paper_value(PAPER_R)}"
    figure.supxlabel(f"r with CI of a rejection (the paper's: {known}; dashed, its break condition; dotted: chance)")
    return figure


def cr_curve(curve: Table) -> Figure:
    """Draw CR against tau beside what permuted labels give, a panel per target. A page wide.

    Parameters
    ----------
    curve : DataFrame
        target, reading, tau, cr, null, null_low, null_high.
    """
    names = list(dict.fromkeys(curve["target"]))
    figure, axes = grid(names, 3, 1.7, sharex=True, sharey=True)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        axis.axvline(TAUS[0], zorder=0, **PAPER)
        for reading, colour in READINGS.items():
            rows = curve[(curve["target"] == name) & (curve["reading"] == reading)]
            axis.fill_between(rows["tau"], rows["null_low"], rows["null_high"], color="0.8", lw=0)
            axis.plot(rows["tau"], rows["null"], **CHANCE)
            axis.plot(rows["tau"], rows["cr"], color=colour, marker="o", ms=1.8)
            halves = [rows.loc[rows[column] >= 0.5, "tau"].max() for column in ("cr", "null_low")]
            if np.isfinite(halves).any():
                left = reading == "relative"
                place = np.nanmin(halves) - 0.02 if left else np.nanmax(halves) + 0.07
                axis.text(place, 0.5, reading, color=colour, size=SMALL, ha="right" if left else "left")
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1.02))
    for axis in axes[:, 0]:
        axis.set_ylabel("CR@tau")
    figure.supxlabel(f"tau (dashed: the paper's, {TAUS[0]:.2f}; dotted and grey: chance, and 95 % of its permutations)")
    return figure
