"""Figures of notebook 06: how results move with weights, k and other settings."""

import textwrap

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from paraguard_utils.models.prompting import model_of
from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import BLUE, GREEN, GREY, ORANGE, PAGE, grid, interval_bars, subplots
from paraguard_utils.schemas import Table
from paraguard_utils.scoring import signals

WIDE = 6
"""Panels side by side above which titles are wrapped and ticks small."""

STYLES = {"none": ":", "safety": "-", "strict": "--"}


def weight_simplex(table: Table) -> Figure:
    """Draw each target's excess under every weighting of the three signals; filled where its interval lies above 0.

    Parameters
    ----------
    table : DataFrame
        The dimension `weights` of the sensitivity table: target, setting ("drift/prob_shift/ppl"), excess, excess_low.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 2.25)
    parts = table["setting"].str.split("/", expand=True).astype(float).to_numpy()
    x, y = parts[:, 2] + parts[:, 1] / 2, parts[:, 1] * np.sqrt(3) / 2
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    colours = mpl.colormaps["cividis"]
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        mine = (table["target"] == name).to_numpy()
        shade = colours(scale(table.loc[mine, "excess"]))
        above = (table.loc[mine, "excess_low"] > 0).to_numpy()
        face = np.where(above[:, None], shade, (1, 1, 1, 1))
        axis.scatter(x[mine], y[mine], s=34, c=face, edgecolors=shade, linewidths=1.1)
        paper = mine & (table["setting"] == "0.4/0.1/0.5").to_numpy()
        axis.scatter(x[paper], y[paper], s=90, facecolors="none", edgecolors="black", linewidths=0.9)
        for text, place, up in (
            ("Drift", (0, -0.1), "top"),
            ("PPL", (1, -0.1), "top"),
            ("ProbShift", (0.5, 0.95), "bottom"),
        ):
            axis.text(*place, text, ha="center", va=up, size=6.5)
        axis.set(xlim=(-0.12, 1.12), ylim=(-0.2, 1.0), aspect="equal")
        axis.set_title(title, y=1.02)
        axis.axis("off")
    bar = figure.colorbar(mpl.cm.ScalarMappable(scale, colours), ax=axes, shrink=0.6, pad=0.01)
    bar.set_label("excess (ring: the paper's weights; hollow: interval reaches 0)", size=6)
    return figure


def against_k(table: Table) -> Figure:
    """Draw CI, CR@0.60 and CD against the number of neighbours, a line and its 95 % band per target.

    Parameters
    ----------
    table : DataFrame
        The dimension `k` of the sensitivity table.
    """
    figure, axes = subplots(1, 3, figsize=(PAGE, 2.3))
    names = list(dict.fromkeys(table["target"]))
    families = list(dict.fromkeys(model_of(name) for name in names))
    deepest = table["setting"].astype(int).max() if len(table) else signals.K
    ends = {}
    for axis, (measure, label) in zip(axes, (("cr60", "CR@0.60"), ("cd", "CD"), ("ci", "CI")), strict=True):
        for name in names:
            rows = table[table["target"] == name]
            k = rows["setting"].astype(int)
            family, _, wrapper = name.rpartition("--")
            colour = (BLUE, ORANGE, GREEN)[families.index(family) % 3]
            axis.plot(k, rows[measure], color=colour, linestyle=STYLES.get(wrapper, "-."))
            axis.fill_between(k, rows[f"{measure}_low"], rows[f"{measure}_high"], color=colour, alpha=0.1, lw=0)
            if np.isfinite(rows[measure].iloc[-1]):
                ends[name] = (rows[measure].iloc[-1], colour, STYLES.get(wrapper, "-."))
        axis.axvline(signals.K, color=GREY, linewidth=0.6)
        axis.set(xlabel="k (grey line: the paper's)", ylabel=label, xlim=(1, deepest), ylim=(0, None))
        axis.set_xticks([1, 5, 10, 15, 20])
    step = axes[-1].get_ylim()[1] * 0.07
    blocks = [sorted((name for name in ends if model_of(name) == one), key=ends.__getitem__) for one in families]
    top = -np.inf
    for own in sorted(filter(None, blocks), key=lambda own: ends[own[0]]):
        middle = np.mean([ends[name][0] for name in own])
        bottom = max(middle - step * (len(own) - 1) / 2, top + step)
        for number, name in enumerate(own):
            top = bottom + number * step
            _, colour, style = ends[name]
            sample = (deepest * 1.03, deepest * 1.19)
            axes[-1].plot(sample, (top, top), color=colour, linestyle=style, linewidth=1.1, clip_on=False)
            axes[-1].annotate(titles([name])[0], (deepest * 1.22, top), size=5.5, color=colour, va="center",
                              annotation_clip=False)  # fmt: skip
    return figure


def settings_overview(table: Table, default: dict[str, str]) -> Figure:
    """Draw CI and excess under the settings of several dimensions, a column per target, intervals drawn.

    Parameters
    ----------
    table : DataFrame
        Rows of the sensitivity table; those without an excess are left out of its panels.
    default : dict of str to str
        The usual setting of each dimension, drawn in black.
    """
    names = list(dict.fromkeys(table["target"]))
    moving = table[table["excess"].notna()]
    heights = [max(1, len(part.groupby(["dimension", "setting"]))) for part in (table, moving)]
    figure, axes = subplots(2, len(names), figsize=(PAGE, 0.15 * sum(heights) + 1.5), sharey="row", sharex="row",
                             squeeze=False, height_ratios=heights)  # fmt: skip
    for line, part, (measure, label) in zip(axes, (table, moving), (("ci", "CI"), ("excess", "excess")), strict=True):
        keys = list(dict.fromkeys(zip(part["dimension"], part["setting"], strict=True)))
        for axis, name, title in zip(line, names, titles(names), strict=True):
            rows = part[part["target"] == name].set_index(["dimension", "setting"]).reindex(keys)
            usual = np.array([default[dimension] == setting for dimension, setting in keys], bool)
            for which, colour in ((usual, "black"), (~usual, BLUE)):
                interval_bars(axis, rows[which], measure, np.flatnonzero(which), ms=2.2, elinewidth=0.7, color=colour)
            for place in range(1, len(keys)):
                if keys[place][0] != keys[place - 1][0]:
                    axis.axhline(place - 0.5, color="0.8", linewidth=0.5)
            axis.set(xlabel=label, ylim=(max(len(keys), 1) - 0.5, -0.5), yticks=range(len(keys)))
            axis.set_yticklabels([f"{dimension}: {setting}" for dimension, setting in keys], size=5.5)
            axis.grid(axis="x", linewidth=0.3)
            axis.locator_params(axis="x", nbins=3)
            if len(names) > WIDE:
                axis.tick_params(axis="x", labelsize=4.5)
            if measure == "excess":
                axis.axvline(0, color="black", linewidth=0.6)
            else:
                lines = title.split(", ") if len(names) <= WIDE else textwrap.wrap(title, 11)
                axis.set_title("\n".join(lines), size=6)
    return figure
