"""Figures of notebook 06.

They show measures where the truth is known, and how results change with weights, k and
other settings.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.analysis import proxies, sensitivity
from paraguard_lab.analysis.predictions import MEASURE_TITLES, USUAL_REFUSAL_RATE
from paraguard_lab.analysis.surrogate import LEVEL_TEXT
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

_CHANCE_LEVELS = {"dr": 1.0, "excess": 0.0}
"""Measures of decisions that have nothing to do with prompts."""

_NOISE_MEASURES = ("dr", "ci", "cr60", "cd", "excess")
_K_MEASURES = {
    "cr60": "CR@0.60",
    "cd": "CD",
    "ci": "CI",
}
_SETTING_MEASURES = {"ci": "CI", "excess": "excess"}
_PAPER_WEIGHTS = "0.4/0.1/0.5"


class _TruthLine(NamedTuple):
    """A line in each panel of `plot_known_truth`: a refusal rate and a wording."""

    wording: str
    rate: float
    name: str
    look: style.Look


def plot_known_truth(table: Table) -> Figure:
    """Draw each measure against how much meaning decides, a line per refusal rate.

    Bars hold 95 % of the simulations. The darker a line, the higher its rate; dashed:
    wording that follows perplexity. The lines of a good measure slope, and lie on one
    another. A page wide. `table` has wording, frr, correlation, measure, mean, low,
    high.
    """
    figure, axes = style.subplots(3, 3, height=4.8, sharex=True)
    lines = _list_truth_lines(sorted(set(table["frr"])))
    table = table.rename(columns={"low": "mean_low", "high": "mean_high"})
    correlations = sorted(set(table["correlation"]))
    step = np.ptp(table["correlation"]) / 80
    ends = []
    for axis, (measure, title) in zip(axes.flat, MEASURE_TITLES.items(), strict=True):
        rows = table[table["measure"] == measure].sort_values("correlation")
        ends.append(_draw_truth_lines(axis, rows, lines, step))
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
            title = f"{title} (dotted: chance)"
        axis.set_title(title)
        axis.set_ylim(bottom=min(0.0, rows["mean_low"].min()))
    for place in range(2, len(ends), 3):  # the panels on the right
        style.label_line_ends(figure, axes.flat[place], ends[place])
    for axis in axes[-1]:
        axis.set(xlabel="how much meaning decides", xticks=correlations)
    return figure


def _list_truth_lines(rates: list[float]) -> list[_TruthLine]:
    """Return a line for each refusal rate, and one for wording by perplexity."""
    lines = []
    shades = {}
    for rate, level in zip(rates, np.linspace(0.65, 0.05, len(rates)), strict=True):
        shades[rate] = f"{level:.2f}"
        look = {"color": shades[rate], "linestyle": "-"}
        lines.append(_TruthLine("chance", rate, f"FRR {rate:g}", look))
    rate = USUAL_REFUSAL_RATE
    look = {"color": shades[rate], "linestyle": "--"}
    lines.append(_TruthLine("perplexity", rate, f"FRR {rate:g}, perplexity", look))
    return lines


def _draw_truth_lines(
    axis: Axes, table: Table, lines: list[_TruthLine], step: float
) -> list[tuple[float, str, style.Look]]:
    """Draw one measure's lines, `step` beside each other; return their ends."""
    marks: style.Look = {
        "marker": "o",
        "ms": 2,
        "mfc": "white",
    }
    ends = []
    for place, line in enumerate(lines):
        is_line = (table["wording"] == line.wording) & (table["frr"] == line.rate)
        rows = table[is_line]
        x = rows["correlation"] + step * (place - (len(lines) - 1) / 2)
        look = {
            "fmt": "",
            "lw": 0.9,
            "elinewidth": 0.7,
            **marks,
            **line.look,
        }
        style.draw_interval_bars(
            axis,
            rows,
            "mean",
            x,
            "y",
            **look,
        )
        if len(rows):
            ends.append((rows["mean"].iloc[-1], line.name, line.look))
    return ends


def plot_noise_response(table: Table) -> Figure:
    """Draw systems' measures against the share of flipped decisions, with intervals.

    A page wide. `table` has system, noise and the measures.
    """
    figure, axes = style.subplots(1, len(_NOISE_MEASURES), height=2.1, sharex=True)
    looks = style.model_looks(table["system"])
    for axis, measure in zip(axes, _NOISE_MEASURES, strict=True):
        ends = []
        for place, (name, (title, colour)) in enumerate(looks.items()):
            rows = table[table["system"] == name].sort_values("noise")
            shift = 0.5 * (place - (len(looks) - 1) / 2)
            x = 100 * rows["noise"] + shift
            style.draw_interval_bars(
                axis,
                rows,
                measure,
                x,
                "y",
                fmt="",
                color=colour,
                marker="ovPX*"[place % 5],
                ms=2.5,
                lw=0.8,
                elinewidth=0.6,
            )
            ends.append((rows[measure].iloc[-1], title, {"color": colour}))
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
        axis.set_title(MEASURE_TITLES[measure])
        axis.set_ylim(bottom=min(0.0, table[f"{measure}_low"].min()))
        axis.set(xticks=sorted(100 * table["noise"].unique()))
    style.label_line_ends(figure, axes[-1], ends)
    middle = axes[len(_NOISE_MEASURES) // 2]
    middle.set_xlabel("decisions turned, % (dotted: chance)")
    return figure


def plot_weight_simplex(table: Table) -> Figure:
    """Draw each system's excess under every weighting of the three signals.

    Points are small if the interval reaches 0. A page wide. `table` is the dimension
    `weights` of the sensitivity table, whose settings are "drift/prob_shift/ppl".
    """
    figure, panels = style.make_system_grid(table, 3, 2.1)
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    for axis, _, rows in panels:
        _draw_simplex(axis, rows, scale)
    shades = mpl.cm.ScalarMappable(scale, style.SHADES)
    bar = figure.colorbar(
        shades,
        ax=figure.axes,
        shrink=0.6,
        pad=0.01,
    )
    bar.set_label("excess (small: its interval reaches 0; ringed: the paper's weights)")
    return figure


def _draw_simplex(axis: Axes, rows: Table, scale: mpl.colors.Normalize) -> None:
    """Draw one system's excess in a triangle of weights, the paper's ringed."""
    weights = rows["setting"].str.split("/", expand=True).astype(float)
    prob_shift = weights[1]
    ppl = weights[2]
    x = ppl + prob_shift / 2
    y = prob_shift * np.sqrt(3) / 2
    is_above = rows["excess_low"] > 0
    for chosen, size in ((is_above, 36), (~is_above, 10)):
        excess = rows.loc[chosen, "excess"]
        axis.scatter(
            x[chosen],
            y[chosen],
            size,
            excess,
            linewidths=0.4,
            norm=scale,
            cmap=style.SHADES,
            edgecolors=style.INK,
        )
    is_paper = rows["setting"] == _PAPER_WEIGHTS
    axis.scatter(
        x[is_paper],
        y[is_paper],
        110,
        "none",
        linewidths=0.8,
        linestyle=style.PAPER_LINE["linestyle"],
        edgecolors=style.INK,
    )
    style.write_remark(
        axis,
        0,
        -0.1,
        "Drift",
        ha="center",
        va="top",
    )
    style.write_remark(
        axis,
        1,
        -0.1,
        "PPL",
        ha="center",
        va="top",
    )
    style.write_remark(
        axis,
        0.5,
        0.95,
        "ProbShift",
        ha="center",
        va="bottom",
    )
    axis.set(
        xlim=(-0.12, 1.12),
        ylim=(-0.2, 1.0),
        aspect="equal",
    )
    axis.set_title(axis.get_title("left"), y=1.02)
    axis.axis("off")


def plot_against_k(table: Table) -> Figure:
    """Draw CI, CR@0.60 and CD against k, a line and a 95 % band per system.

    A page wide. `table` is the dimension `k` of the sensitivity table.
    """
    figure, axes = style.subplots(1, len(_K_MEASURES), height=2.1)
    table = table.assign(k=table["setting"].astype(int))
    deepest = table["k"].max() if len(table) else N_NEIGHBOURS
    looks = style.system_looks(dict.fromkeys(table["system"]))
    for axis, (measure, title) in zip(axes, _K_MEASURES.items(), strict=True):
        ends = []
        for name, (colour, line, _) in looks.items():
            rows = table[table["system"] == name]
            look: style.Look = {"color": colour, "linestyle": line}
            axis.plot(rows["k"], rows[measure], **look)
            low = rows[f"{measure}_low"]
            high = rows[f"{measure}_high"]
            axis.fill_between(
                rows["k"],
                low,
                high,
                color=colour,
                alpha=0.12,
                lw=0,
            )
            end = rows[measure].iloc[-1]
            if np.isfinite(end):
                ends.append((end, display_titles([name])[0], look))
        axis.axvline(N_NEIGHBOURS, zorder=0, **style.PAPER_LINE)
        axis.set(
            xlabel="k (dashed: the paper's)",
            title=title,
            xlim=(1, deepest),
            ylim=(0, None),
        )
        axis.set_xticks([1, 5, 10, 15, 20])
    style.label_line_ends(figure, axis, ends)
    return figure


def plot_settings(table: Table) -> Figure:
    """Draw by how much other settings change CI and the excess, with 95 % intervals.

    Systems with fewer than 30 refusals under a setting are left out there. A page wide.
    `table` is a sensitivity table.
    """
    changes = _subtract_defaults(table[table["n"] >= MIN_REFUSALS])
    changes = changes.set_index(["dimension", "setting"])
    keys = list(dict.fromkeys(changes.index))
    height = max(0.17, 0.04 * changes["system"].nunique())
    figure, axes = _make_mark_panels(len(keys), height, (3, 2, 1.2))
    marks = _Marks(keys, height, room=0.8, look={"ms": 2, "elinewidth": 0.7})
    _draw_marks(axes, changes, tuple(_SETTING_MEASURES), marks)
    for axis, (measure, label) in zip(axes, _SETTING_MEASURES.items(), strict=False):
        axis.axvline(
            0,
            color=style.INK,
            linewidth=0.6,
            zorder=0,
        )
        axis.set(title=f"change of {label} from the default setting")
        before = None
        for place, (dimension, _) in enumerate(keys):
            if dimension == before:
                continue
            if before is not None:
                axis.axhline(place - 0.5, color=style.GREY, linewidth=0.5)
            if changes.loc[dimension, measure].isna().all():
                remark = f"{dimension} cannot move it"
                style.write_remark(
                    axis,
                    0.02,
                    place,
                    remark,
                    of="x",
                    color=style.GREY,
                    va="center",
                )
            before = dimension
    names = [f"{dimension}: {setting}" for dimension, setting in keys]
    style.name_rows(axes[0], names)
    return figure


def _subtract_defaults(table: Table) -> pd.DataFrame:
    """Return settings that are not the default, with CI and excess minus its own."""
    defaults = table["dimension"].map(sensitivity.DEFAULT_CHOICES)
    is_default = table["setting"] == defaults
    columns = ["dimension", "system", *_SETTING_MEASURES]
    changes = table[~is_default].merge(
        table.loc[is_default, columns],
        on=["dimension", "system"],
        how="left",
        suffixes=("", "_default"),
    )
    for measure in _SETTING_MEASURES:
        for column in (measure, f"{measure}_low", f"{measure}_high"):
            changes[column] = changes[column] - changes[f"{measure}_default"]
    return changes


def plot_surrogate_levels(table: Table) -> Figure:
    """Draw how close CI at a level of disclosure is to CI with own signals.

    Each system has a mark with its 95 % interval: on the left the rank correlation of
    CI(r) over rejections, on the right the difference of CI. Of drawn answers there is
    only what they alone have, and `text` next to it. A page wide. `table` is one
    interpretation of `proxies.surrogate_table`; systems with too few refusals are
    left out.
    """
    table = table[table["too_few"].eq(False)]
    is_usual = table["prompts"] == proxies.ALL_PROMPTS
    settings = table.loc[is_usual, "setting"].unique().tolist()
    keys = [(proxies.ALL_PROMPTS, setting) for setting in settings]
    n_usual = len(keys)
    if proxies.DRAWN_PROMPTS in set(table["prompts"]):
        for setting, (level, *_) in proxies.DISCLOSURE_SETTINGS.items():
            if level == LEVEL_TEXT:
                keys.append((proxies.DRAWN_PROMPTS, setting))
    height = 0.05 * max(8, table["system"].nunique())
    figure, axes = _make_mark_panels(len(keys), height, (3, 3, 1.6))
    marks = _Marks(keys, height, room=0.7, look={"ms": 2.5, "elinewidth": 0.8})
    rows = table.set_index(["prompts", "setting"])
    _draw_marks(axes, rows, ("rho", "ci_change"), marks)
    for axis, same in zip(axes[:2], (1, 0), strict=True):
        axis.locator_params(axis="x", nbins=5)
        if n_usual < len(keys):
            axis.axhline(n_usual - 0.5, color=style.GREY, linewidth=0.5)
        axis.axvline(
            same,
            color=style.INK,
            linewidth=0.6,
            zorder=0,
        )
    axes[0].set(
        title="CI(r): rank correlation with own signals",
        xlabel="1: the same order of rejections",
        xlim=(np.fmin(0.0, table["rho_low"].min()), 1.02),
    )
    axes[1].set(title="change of CI from that with own signals")
    names = [_describe_level(prompts, setting) for prompts, setting in keys]
    style.name_rows(axes[0], names)
    return figure


def _describe_level(prompts: str, setting: str) -> str:
    """Return a level's name, and which signals another model lends it."""
    if prompts != proxies.ALL_PROMPTS:
        return f"{setting}\non what was asked again"
    lent = {"full": "Drift lent", "text": "all three lent"}
    # Of tokens of the answer, Drift and PPL are lent.
    return f"{setting}\n{lent.get(setting, 'Drift and PPL lent')}"


class _Marks(NamedTuple):
    """Marks of systems in rows: the rows' keys and height, and how marks look.

    Systems share the part `room` of a row.
    """

    keys: Sequence[tuple[Hashable, ...]]
    height: float
    room: float
    look: style.Look


def _make_mark_panels(
    n_rows: int, height: float, widths: tuple[float, ...]
) -> tuple[Figure, Sequence[Axes]]:
    """Make two panels with rows `height` inches high, and one for systems' names."""
    inches = 0.6 + height * max(4, n_rows)
    return style.subplots(
        1,
        3,
        height=inches,
        sharey=True,
        width_ratios=widths,
    )


def _draw_marks(
    axes: Sequence[Axes], table: Table, measures: tuple[str, ...], marks: _Marks
) -> None:
    """Draw two measures by key, and name the systems in the third panel.

    `table` has the keys as its index.
    """
    names = table["system"].unique()
    looks: Mapping[str, tuple[str, str, str]] = style.system_looks(names)
    inches = marks.height * max(4, len(marks.keys))
    key_axis = axes[2]
    for place, title in enumerate(display_titles(names)):
        name = names[place]
        colour, _, marker = looks[name]
        rows = table[table["system"] == name].reindex(marks.keys)
        shift = marks.room * (place + 0.5) / len(names) - marks.room / 2
        at = np.arange(len(marks.keys)) + shift
        for axis, measure in zip(axes, measures, strict=False):
            look = {
                "color": colour,
                "fmt": marker,
                **marks.look,
            }
            style.draw_interval_bars(
                axis,
                rows,
                measure,
                at,
                **look,
            )
        y = 1 - (place + 0.5) * 0.13 / inches
        key_axis.plot(
            0,
            y,
            marker,
            transform=key_axis.transAxes,
            ms=3,
            color=colour,
            clip_on=False,
        )
        style.write_remark(
            key_axis,
            0.06,
            y,
            title,
            of="xy",
            va="center",
        )
    for axis in axes[:2]:
        style.draw_row_rules(axis)
    key_axis.axis("off")
