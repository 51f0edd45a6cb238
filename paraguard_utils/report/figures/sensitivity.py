"""Figures of notebook 06: how results move with weights, k and other settings."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_utils.analysis import surrogate
from paraguard_utils.core.confusion import K
from paraguard_utils.labels import follow_ups
from paraguard_utils.models.prompting import model_of
from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import (
    GREY,
    INK,
    PAGE,
    PAPER,
    SHADES,
    SMALL,
    end_labels,
    grid,
    interval_bars,
    model_looks,
    subplots,
    wrapper_look,
)
from paraguard_utils.schemas import Table


def weight_simplex(table: Table) -> Figure:
    """Draw each target's excess under every weighting of the three signals, small where its interval reaches 0.

    A page wide.

    Parameters
    ----------
    table : DataFrame
        The dimension `weights` of the sensitivity table: target, setting ("drift/prob_shift/ppl"), excess, excess_low.
    """
    names = list(dict.fromkeys(table["target"]))
    figure, axes = grid(names, 3, 2.1)
    parts = table["setting"].str.split("/", expand=True).astype(float).to_numpy()
    x, y = parts[:, 2] + parts[:, 1] / 2, parts[:, 1] * np.sqrt(3) / 2
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        mine = (table["target"] == name).to_numpy()
        above = (table["excess_low"] > 0).to_numpy()
        for chosen, size in ((mine & above, 36), (mine & ~above, 10)):
            axis.scatter(x[chosen], y[chosen], s=size, c=table.loc[chosen, "excess"], norm=scale, cmap=SHADES,
                         edgecolors=INK, linewidths=0.4)  # fmt: skip
        paper = mine & (table["setting"] == "0.4/0.1/0.5").to_numpy()
        axis.scatter(
            x[paper], y[paper], s=110, facecolors="none", edgecolors=INK, linewidths=0.8, linestyle=PAPER["linestyle"]
        )
        for text, place, up in (
            ("Drift", (0, -0.1), "top"),
            ("PPL", (1, -0.1), "top"),
            ("ProbShift", (0.5, 0.95), "bottom"),
        ):
            axis.text(*place, text, ha="center", va=up, size=SMALL)
        axis.set(xlim=(-0.12, 1.12), ylim=(-0.2, 1.0), aspect="equal")
        axis.set_title(title, y=1.02)
        axis.axis("off")
    bar = figure.colorbar(mpl.cm.ScalarMappable(scale, SHADES), ax=axes, shrink=0.6, pad=0.01)
    bar.set_label("excess (small: its interval reaches 0; ringed: the paper's weights)")
    return figure


def against_k(table: Table) -> Figure:
    """Draw CI, CR@0.60 and CD against the number of neighbours, a line and its 95 % band per target. A page wide.

    Parameters
    ----------
    table : DataFrame
        The dimension `k` of the sensitivity table.
    """
    figure, axes = subplots(1, 3, figsize=(PAGE, 2.1))
    names = list(dict.fromkeys(table["target"]))
    looks = model_looks(map(model_of, names))
    deepest = table["setting"].astype(int).max() if len(table) else K
    ends = []
    for axis, (measure, label) in zip(axes, (("cr60", "CR@0.60"), ("cd", "CD"), ("ci", "CI")), strict=True):
        for name in names:
            rows = table[table["target"] == name]
            k = rows["setting"].astype(int)
            look = {"color": looks[model_of(name)][1], "linestyle": wrapper_look(name)[0]}
            axis.plot(k, rows[measure], **look)
            axis.fill_between(k, rows[f"{measure}_low"], rows[f"{measure}_high"], color=look["color"], alpha=0.12, lw=0)
            if axis is axes[-1] and np.isfinite(rows[measure].iloc[-1]):
                ends.append((rows[measure].iloc[-1], titles([name])[0], look))
        axis.axvline(K, zorder=0, **PAPER)
        axis.set(xlabel="k (dashed: the paper's)", title=label, xlim=(1, deepest), ylim=(0, None))
        axis.set_xticks([1, 5, 10, 15, 20])
    end_labels(figure, axes[-1], ends)
    return figure


def settings_overview(table: Table, default: dict[str, str]) -> Figure:
    """Draw by how much CI and excess differ from those of the default setting: a mark a target, 0 is the default.

    The lines are the 95 % intervals of the settings' own estimates, less the estimate of the default. A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of the sensitivity table; a setting without an excess cannot move it.
    default : dict of str to str
        The usual setting of each dimension.
    """
    names, measures = list(dict.fromkeys(table["target"])), ("ci", "excess")
    moved = moves(table, default, measures)
    keys = list(dict.fromkeys(zip(moved["dimension"], moved["setting"], strict=True)))
    height = max(0.17, 0.04 * len(names))
    figure, axes = subplots(1, 3, figsize=(PAGE, 0.6 + height * max(4, len(keys))), sharey=True,
                            width_ratios=(3, 2, 1.2))  # fmt: skip
    looks = model_looks(map(model_of, names))
    shifts = dict(zip(names, 0.8 * (np.arange(len(names)) + 0.5) / max(1, len(names)) - 0.4, strict=True))
    for axis, measure, label in zip(axes, measures, ("CI", "excess"), strict=False):
        for name in names:
            rows = moved[moved["target"] == name].set_index(["dimension", "setting"]).reindex(keys)
            look = {"color": looks[model_of(name)][1], "fmt": wrapper_look(name)[1]}
            interval_bars(axis, rows, measure, np.arange(len(keys)) + shifts[name], ms=2, elinewidth=0.7, **look)
        axis.axvline(0, color=INK, linewidth=0.6, zorder=0)
        axis.set(title=f"{label} less that at the default", xlabel="0: as at the default")
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        for place, (dimension, _) in enumerate(keys):
            first = not place or dimension != keys[place - 1][0]
            if first and place:
                axis.axhline(place - 0.5, color=GREY, linewidth=0.5)
            if first and moved.loc[moved["dimension"] == dimension, measure].isna().all():
                axis.text(0.02, place, f"{dimension} cannot move it", size=SMALL, color=GREY, va="center",
                          transform=axis.get_yaxis_transform())  # fmt: skip
    axes[0].set_yticks(range(len(keys)), [f"{dimension}: {setting}" for dimension, setting in keys])
    axes[0].set_ylim(max(len(keys), 1) - 0.5, -0.5)
    _named(axes[2], names, height * max(4, len(keys)))
    return figure


LENT = {
    "full": "Drift lent",
    "answer tokens, 20": "Drift and PPL lent",
    "answer tokens, 5": "Drift and PPL lent",
    "text": "all three lent",
}
"""What a surrogate lends at each setting."""


def levels_overview(table: Table) -> Figure:
    """Draw how far CI at a level is CI with the target's own signals: a mark a target, with its 95 % interval.

    Left the rank correlation of CI(r) over rejections, right the difference of CI. A page wide.

    Parameters
    ----------
    table : DataFrame
        Rows of one reading of `surrogate.table`; targets with few rejections are left out. Of the prompts that were
        answered several times, what only they have is drawn, and `text` beside it.
    """
    table = table[table["few"].eq(False)]
    names = list(dict.fromkeys(table["target"]))
    usual, drawn = (table[table["prompts"] == prompts] for prompts in (surrogate.ALL, surrogate.DRAWN))
    lines = [(surrogate.ALL, setting) for setting in dict.fromkeys(usual["setting"])]
    lines += [
        (surrogate.DRAWN, name) for name, of in surrogate.SETTINGS.items() if len(drawn) and of.level == surrogate.TEXT
    ]
    height = 0.05 * max(8, len(names))
    figure, axes = subplots(1, 3, figsize=(PAGE, 0.6 + height * max(4, len(lines))), sharey=True,
                            width_ratios=(3, 3, 1.6))  # fmt: skip
    looks = model_looks(map(model_of, names))
    shifts = 0.7 * (np.arange(len(names)) + 0.5) / max(1, len(names)) - 0.35
    for axis, measure in zip(axes, ("rho", "ci_change"), strict=False):
        for name, shift in zip(names, shifts, strict=True):
            rows = table[table["target"] == name].set_index(["prompts", "setting"]).reindex(lines)
            look = {"color": looks[model_of(name)][1], "fmt": wrapper_look(name)[1]}
            interval_bars(axis, rows, measure, np.arange(len(lines)) + shift, ms=2.5, elinewidth=0.8, **look)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=5)
        if len(drawn):
            axis.axhline(usual["setting"].nunique() - 0.5, color=GREY, linewidth=0.5)
    axes[0].set(title="CI(r): rank correlation with own signals", xlabel="1: the same order of rejections")
    axes[1].set(title="CI less that with own signals", xlabel="0: the same CI")
    axes[0].axvline(1, color=INK, linewidth=0.6, zorder=0)
    axes[1].axvline(0, color=INK, linewidth=0.6, zorder=0)
    axes[0].set_xlim(np.fmin(0.0, table["rho_low"].min()), 1.02)
    part = f"on {follow_ups.SAMPLED_CLUSTERS} clusters"
    axes[0].set_yticks(
        range(len(lines)), [f"{name}\n{LENT[name] if of == surrogate.ALL else part}" for of, name in lines]
    )
    axes[0].set_ylim(max(len(lines), 1) - 0.5, -0.5)
    _named(axes[2], names, height * max(4, len(lines)))
    return figure


def _named(axis: Axes, names: Sequence[str], height: float) -> None:
    """Name targets beside their marks in an empty panel of some inches."""
    axis.axis("off")
    looks = model_looks(map(model_of, names))
    for place, (name, title) in enumerate(zip(names, titles(names), strict=True)):
        y, mark, colour = 1 - (place + 0.5) * 0.13 / height, wrapper_look(name)[1], looks[model_of(name)][1]
        axis.plot(0, y, mark, ms=3, color=colour, transform=axis.transAxes, clip_on=False)
        axis.text(0.06, y, title, va="center", size=SMALL, transform=axis.transAxes)


def moves(table: Table, default: dict[str, str], measures: tuple[str, ...]) -> pd.DataFrame:
    """Take each measure and the ends of its interval less the measure at its dimension's default setting.

    Returns
    -------
    DataFrame
        dimension, setting, target, and each measure with _low and _high; without the rows of the defaults.
    """
    usual = table["setting"] == table["dimension"].map(default)
    base = table.loc[usual, ["dimension", "target", *measures]]
    joined = table[~usual].merge(base, on=["dimension", "target"], how="left", suffixes=("", "_usual"))
    for measure in measures:
        ends = [f"{measure}{end}" for end in ("", "_low", "_high")]
        joined[ends] = joined[ends].sub(joined[f"{measure}_usual"], axis=0)
    return joined
