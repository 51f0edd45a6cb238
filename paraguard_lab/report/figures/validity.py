"""Figures of notebook 06.

They show measures where the truth is known, and how results change with weights, k and
other settings.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.analysis import proxies, sensitivity
from paraguard_lab.analysis.predictions import MEASURE_TITLES, USUAL_REFUSAL_RATE
from paraguard_lab.analysis.surrogate import LEVEL_TEXT
from paraguard_lab.report.figures.panels import SHADES, make_system_grid
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

_CHANCE_LEVELS = {"dr": 1.0, "excess": 0.0}
"""Measures of decisions that have nothing to do with prompts."""

_NOISE_MEASURES = ("dr", "ci", "cr60", "cd", "excess")
_K_MEASURES = {"cr60": "CR@0.60", "cd": "CD", "ci": "CI"}
_SETTING_MEASURES = {"ci": "CI", "excess": "excess"}
_PAPER_WEIGHTS = "0.4/0.1/0.5"

_Lines: TypeAlias = dict[str, tuple[Table, style.Look]]
"""By a line's name, its rows, whose index is x, and how it is drawn."""

_SAME: style.Look = {"color": style.INK, "linewidth": 0.6, "zorder": 0}
"""How it is marked where nothing changes."""

_DIVIDER: style.Look = {"color": style.GREY, "linewidth": 0.5}
"""How groups of rows are divided."""


def plot_known_truth(table: Table) -> Figure:
    """Draw each measure against how much meaning decides, a line per refusal rate.

    Bars hold 95 % of the simulations. The darker a line, the higher its rate; dashed:
    wording that follows perplexity. The lines of a good measure slope, and lie on one
    another. A page wide.

    Parameters
    ----------
    table : Table
        wording, frr, correlation, measure, mean, low, high.
    """
    wide = _spread_measures(table)
    rates = sorted(set(table["frr"]))
    shades = np.linspace(0.65, 0.05, len(rates))
    lines: _Lines = {}
    for rate, shade in zip(rates, shades, strict=True):
        colour = f"{shade:.2f}"
        lines[f"FRR {rate:g}"] = (wide.loc["chance", rate], {"color": colour})
        if rate == USUAL_REFUSAL_RATE:
            dashed: style.Look = {"color": colour, "linestyle": "--"}
            by_perplexity = (wide.loc["perplexity", rate], dashed)
    lines[f"FRR {USUAL_REFUSAL_RATE:g}, perplexity"] = by_perplexity
    figure, axes = style.subplots(3, 3, height=4.8, sharex=True)
    _draw_measures(axes.flat, lines, list(MEASURE_TITLES))
    style.name_lines(figure, axes[0, 0])
    label = "how much the meaning decides, 0: nothing"
    axes[-1, 1].set_xlabel(f"{label}\n(dotted: decisions unrelated to prompts)")
    return figure


def _spread_measures(table: Table) -> Table:
    """Put measures side by side, as the columns `x`, `x_low` and `x_high`.

    `table` has a row for each simulation and measure, with mean, low and high. The
    index of what is returned is wording, frr and correlation, in order.
    """
    wide = table.pivot(
        index=["wording", "frr", "correlation"],
        columns="measure",
        values=["mean", "low", "high"],
    )
    names = []
    for value, measure in wide.columns:
        names.append(f"{measure}_{value}".removesuffix("_mean"))
    return wide.set_axis(names, axis="columns")


def plot_noise_response(table: Table) -> Figure:
    """Draw systems' measures against the share of flipped decisions, with intervals.

    A page wide.

    Parameters
    ----------
    table : Table
        system, noise (share of flipped decisions) and the measures.
    """
    table = table.assign(percent=100 * table["noise"])
    lines: _Lines = {}
    colours = style.model_colours(table["system"])
    for title, name in zip(display_titles(colours), colours, strict=True):
        rows = table[table["system"] == name].set_index("percent").sort_index()
        lines[title] = (rows, {"color": colours[name]})
    figure, axes = style.subplots(1, len(_NOISE_MEASURES), height=2.1, sharex=True)
    _draw_measures(axes, lines, _NOISE_MEASURES)
    style.name_lines(figure, axes[0])
    figure.supxlabel("decisions reversed at random, % (dotted: unrelated to texts)")
    return figure


def _draw_measures(
    axes: Iterable[Axes], lines: _Lines, measures: Sequence[str]
) -> None:
    """Draw the lines of each measure in a panel of its own, with 95 % intervals.

    The lines are slightly beside each other. A dotted line is where a measure is if
    decisions have nothing to do with prompts.

    Parameters
    ----------
    axes : iterable of Axes
        As many as there are measures.
    lines : dict of str to (Table, Look)
        By name: rows, whose index is x and whose columns are the measures with their
        intervals, and how the line is drawn.
    measures : sequence of str
        Keys of `MEASURE_TITLES`.
    """
    marks: style.Look = {"fmt": "", "marker": "o", "ms": 2, "mfc": "white"}
    middle = (len(lines) - 1) / 2
    for axis, measure in zip(axes, measures, strict=True):
        lowest = 0.0
        for place, (name, (rows, own)) in enumerate(lines.items()):
            look = marks | {"label": name, "elinewidth": 0.6} | own
            step = np.ptp(rows.index) / 80
            at = rows.index + step * (place - middle)
            style.draw_interval_bars(axis, rows, measure, at, "y", **look)
            lowest = min(lowest, rows[f"{measure}_low"].min())
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
        axis.set(title=MEASURE_TITLES[measure], xticks=sorted(set(rows.index)))
        axis.set_ylim(bottom=lowest)


def plot_weight_simplex(table: Table) -> Figure:
    """Draw each system's excess under every weighting of the three signals.

    Points are small if the interval reaches 0. A page wide.

    Parameters
    ----------
    table : Table
        The dimension `weights` of the sensitivity table, whose settings are
        "drift/prob_shift/ppl".
    """
    figure, panels = make_system_grid(table, 3, 2.1)
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    for axis, _, rows in panels:
        _draw_simplex(axis, rows, scale)
    shades = mpl.cm.ScalarMappable(scale, SHADES)
    bar = figure.colorbar(shades, ax=figure.axes, shrink=0.6, pad=0.01)
    bar.set_label("excess (small: its interval reaches 0; ringed: the paper's weights)")
    return figure


def _draw_simplex(axis: Axes, rows: Table, scale: mpl.colors.Normalize) -> None:
    """Draw one system's excess in a triangle of weights, the paper's ringed."""
    weights = rows["setting"].str.split("/", expand=True).astype(float)
    x = weights[2] + weights[1] / 2
    y = weights[1] * np.sqrt(3) / 2
    axis.scatter(
        x,
        y,
        np.where(rows["excess_low"] > 0, 36, 10),
        rows["excess"],
        cmap=SHADES,
        norm=scale,
        edgecolors=style.INK,
        linewidths=0.4,
    )
    is_paper = rows["setting"] == _PAPER_WEIGHTS
    axis.scatter(
        x[is_paper],
        y[is_paper],
        110,
        "none",
        edgecolors=style.INK,
        linewidths=0.8,
        linestyle=style.PAPER_LINE["linestyle"],
    )
    corners = {"Drift": (0, -0.15), "PPL": (1, -0.15), "ProbShift": (0.5, 0.95)}
    for name, place in corners.items():
        style.write_remark(axis, *place, name, ha="center")
    axis.set(xlim=(-0.12, 1.12), ylim=(-0.2, 1.0), aspect="equal")
    axis.set_title(axis.get_title("left"), y=1.02)
    axis.axis("off")


def plot_against_k(table: Table) -> Figure:
    """Draw CI, CR@0.60 and CD against k, a line and a 95 % band per system.

    A page wide.

    Parameters
    ----------
    table : Table
        The dimension `k` of the sensitivity table.
    """
    figure, axes = style.subplots(1, len(_K_MEASURES), height=2.9)
    table = table.assign(k=table["setting"].astype(int))
    names = list(dict.fromkeys(table["system"]))
    looks = style.system_looks(names)
    for axis, (measure, title) in zip(axes, _K_MEASURES.items(), strict=True):
        for name, label in zip(names, display_titles(names), strict=True):
            rows = table[table["system"] == name]
            low, high = rows[f"{measure}_low"], rows[f"{measure}_high"]
            colour, line, _ = looks[name]
            axis.plot(rows["k"], rows[measure], color=colour, ls=line, label=label)
            axis.fill_between(rows["k"], low, high, color=colour, alpha=0.12, lw=0)
        axis.axvline(N_NEIGHBOURS, zorder=0, **style.PAPER_LINE)
        axis.set(xlabel="k (dashed: the paper's)", title=title)
        axis.set(xlim=(1, 20), ylim=(0, None), xticks=[1, 5, 10, 15, 20])
    style.name_lines(figure, axis, across=2)
    return figure


def plot_settings(table: Table) -> Figure:
    """Draw by how much other settings change CI and the excess, with 95 % intervals.

    Systems with fewer than 30 refusals under a setting are left out there. A page wide.

    Parameters
    ----------
    table : Table
        Some dimensions of the sensitivity table.
    """
    changes = _subtract_defaults(table[table["n"] >= MIN_REFUSALS])
    keys = list(dict.fromkeys(changes.index))
    dimensions = [dimension for dimension, _ in keys]
    figure, axes = _draw_marks(changes, keys, list(_SETTING_MEASURES))
    for axis, (measure, label) in zip(axes, _SETTING_MEASURES.items(), strict=True):
        axis.axvline(0, **_SAME)
        axis.set_title(f"change of {label} from the default setting")
        for dimension in dict.fromkeys(dimensions):
            place = dimensions.index(dimension)
            if place:
                axis.axhline(place - 0.5, **_DIVIDER)
            if changes.loc[dimension, measure].isna().all():
                remark = f"{dimension} cannot change it"
                style.write_remark(
                    axis, 0.02, place, remark, of="x", color=style.GREY, va="center"
                )
    style.name_rows(axes[0], [": ".join(key) for key in keys])
    return figure


def _subtract_defaults(table: Table) -> pd.DataFrame:
    """Return CI and the excess under each setting, minus those of the default.

    The index is dimension and setting; defaults themselves are left out.
    """
    keys = ["dimension", "system"]
    default = table["dimension"].map(sensitivity.DEFAULT_CHOICES)
    is_default = table["setting"] == default
    defaults = table[is_default].set_index(keys)
    changes = table[~is_default].set_index(keys)
    for measure in _SETTING_MEASURES:
        usual = defaults[measure].reindex(changes.index)
        for column in (measure, f"{measure}_low", f"{measure}_high"):
            changes[column] -= usual
    return changes.reset_index().set_index(["dimension", "setting"])


def plot_surrogate_levels(table: Table) -> Figure:
    """Draw how close CI at a level of disclosure is to CI with own signals.

    Each system has a mark with its 95 % interval: on the left the rank correlation of
    CI(r) over rejections, on the right the difference of CI. Of drawn answers there is
    only what they alone have, and `text` next to it. A page wide.

    Parameters
    ----------
    table : Table
        One interpretation of `proxies.surrogate_table`. Systems with too few refusals
        are left out.
    """
    table = table[table["too_few"].eq(False)]
    is_usual = table["prompts"] == proxies.ALL_PROMPTS
    settings = table.loc[is_usual, "setting"].unique().tolist()
    keys = [(proxies.ALL_PROMPTS, setting) for setting in settings]
    if proxies.DRAWN_PROMPTS in set(table["prompts"]):
        for setting, disclosure in proxies.DISCLOSURE_SETTINGS.items():
            if disclosure.level == LEVEL_TEXT:
                keys.append((proxies.DRAWN_PROMPTS, setting))
    rows = table.set_index(["prompts", "setting"])
    figure, axes = _draw_marks(rows, keys, ["rho", "ci_change"])
    for axis, same in zip(axes, (1, 0), strict=True):
        axis.axhline(len(settings) - 0.5, **_DIVIDER)
        axis.axvline(same, **_SAME)
    axes[0].set(
        title="CI of refusals: rank correlation with own signals",
        xlabel="1: the same order of refusals",
        xlim=(np.fmin(0.0, table["rho_low"].min()), 1.02),
    )
    axes[1].set(title="change of mean CI against own signals")
    style.name_rows(axes[0], [_describe_level(*key) for key in keys])
    return figure


def _describe_level(prompts: str, setting: str) -> str:
    """Return a level's name, and which signals come from another model."""
    if prompts != proxies.ALL_PROMPTS:
        return f"{setting}\nprompts with drawn answers"
    lent = {"full": "Drift borrowed", "text": "all three borrowed"}
    # A server that returns tokens of the answer lacks Drift and PPL.
    return f"{setting}\n{lent.get(setting, 'Drift and PPL borrowed')}"


def _draw_marks(
    table: Table, keys: Sequence[tuple[Hashable, ...]], measures: Sequence[str]
) -> tuple[Figure, Sequence[Axes]]:
    """Draw a panel for each measure with a row per key and a mark per system.

    Parameters
    ----------
    table : Table
        system and the measures with their intervals; its index are the keys.
    keys : sequence
        The rows, from top to bottom.
    measures : sequence of str

    Returns
    -------
    Figure
    sequence of Axes
        The panels, in the order of the measures.
    """
    names = table["system"].unique()
    height = 1.0 + max(0.17, 0.04 * len(names)) * max(4, len(keys))
    figure, axes = style.subplots(1, len(measures), height=height, sharey=True)
    looks = style.system_looks(names)
    for place, title in enumerate(display_titles(names)):
        colour, _, marker = looks[names[place]]
        rows = table[table["system"] == names[place]].reindex(keys)
        at = np.arange(len(keys)) + 0.8 * ((place + 0.5) / len(names) - 0.5)
        for axis, measure in zip(axes, measures, strict=True):
            style.draw_interval_bars(
                axis,
                rows,
                measure,
                at,
                fmt=marker,
                color=colour,
                ms=2,
                elinewidth=0.7,
                label=title,
            )
            style.draw_row_rules(axis)
    style.name_lines(figure, axes[0], across=2)
    return figure, axes
