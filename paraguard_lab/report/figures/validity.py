"""Figures of notebook 06: measures where the truth is known, and how results move with
weights, k and the like.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.analysis import predictions, sensitivity, surrogate
from paraguard_utils.core import confusion, estimates
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.schemas import Table

_CHANCE_LEVELS = {
    "dr": 1.0,
    "excess": 0.0,
}  # where decisions have nothing to do with prompts


def plot_known_truth(table: Table) -> Figure:
    """Draw each measure against how much meaning decides, one line per refusal rate.

    Bars hold 95 % of the worlds.

    The darker a line, the higher its rate; dashed: wording that follows perplexity. The
    lines of a good measure slope, and lie on one another. A page wide. `table` has
    wording, frr, correlation, measure, mean, low, high.
    """
    figure, axes = style.subplots(3, 3, height=4.8, sharex=True)
    rates, usual = sorted(set(table["frr"])), predictions.USUAL_REFUSAL_RATE
    shades = {
        rate: f"{level:.2f}"
        for rate, level in zip(rates, np.linspace(0.65, 0.05, len(rates)), strict=True)
    }
    lines = [
        ("chance", rate, f"FRR {rate:g}", {"color": shade, "linestyle": "-"})
        for rate, shade in shades.items()
    ]
    lines.append(
        (
            "perplexity",
            usual,
            f"FRR {usual:g}, perplexity",
            {"color": shades[usual], "linestyle": "--"},
        )
    )
    ends: dict[str, list[tuple[float, str, style.Look]]] = {
        measure: [] for measure in predictions.MEASURE_TITLES
    }
    step = np.ptp(table["correlation"]) / 80
    for axis, (measure, label) in zip(
        axes.flat, predictions.MEASURE_TITLES.items(), strict=True
    ):
        own = table[table["measure"] == measure].sort_values("correlation")
        own = own.rename(columns={"low": "mean_low", "high": "mean_high"})
        for place, (wording, rate, name, look) in enumerate(lines):
            rows = own[(own["wording"] == wording) & (own["frr"] == rate)]
            x = rows["correlation"] + step * (place - (len(lines) - 1) / 2)
            marks = {
                "marker": "o",
                "ms": 2,
                "mfc": "white",
                "lw": 0.9,
                "elinewidth": 0.7,
            }
            style.draw_interval_bars(
                axis, rows, "mean", x, "y", fmt="", **marks, **look
            )
            if len(rows):
                ends[measure].append((rows["mean"].iloc[-1], name, look))
        if measure in _CHANCE_LEVELS:
            axis.axhline(_CHANCE_LEVELS[measure], zorder=0, **style.CHANCE_LINE)
        axis.set_title(
            f"{label} (dotted: chance)" if measure in _CHANCE_LEVELS else label
        )
        axis.set_ylim(bottom=min(0.0, own["mean_low"].min()))
    for axis, named in zip(axes[:, -1], list(ends.values())[2::3], strict=True):
        style.label_line_ends(figure, axis, named)
    for axis in axes[-1]:
        axis.set(
            xlabel="how much meaning decides", xticks=sorted(set(table["correlation"]))
        )
    return figure


def plot_noise_response(table: Table) -> Figure:
    """Draw systems' measures (system, noise) against the share of turned decisions,
    with intervals. A page wide.
    """
    measures = ("dr", "ci", "cr60", "cd", "excess")
    figure, axes = style.subplots(1, len(measures), height=2.1, sharex=True)
    looks = style.model_looks(table["system"])
    for axis, measure in zip(axes, measures, strict=True):
        ends = []
        for place, (name, (title, colour)) in enumerate(looks.items()):
            rows = table[table["system"] == name].sort_values("noise")
            look: style.Look = {
                "color": colour,
                "marker": "ovPX*"[place % 5],
                "ms": 2.5,
                "lw": 0.8,
                "elinewidth": 0.6,
            }
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


def plot_weight_simplex(table: Table) -> Figure:
    """Draw each system's excess under every weighting of the three signals, small where
    its interval reaches 0.

    A page wide. `table` is the dimension `weights` of the sensitivity table, whose
    settings are "drift/prob_shift/ppl".
    """
    figure, panels = style.make_system_grid(table, 3, 2.1)
    scale = mpl.colors.Normalize(min(0.0, table["excess"].min()), table["excess"].max())
    look: style.Look = {
        "norm": scale,
        "cmap": style.SHADES,
        "edgecolors": style.INK,
        "linewidths": 0.4,
    }
    ring: style.Look = {
        "linewidths": 0.8,
        "linestyle": style.PAPER_LINE["linestyle"],
        "edgecolors": style.INK,
    }
    for axis, _, rows in panels:
        parts = rows["setting"].str.split("/", expand=True).astype(float)
        x, y, above = (
            parts[2] + parts[1] / 2,
            parts[1] * np.sqrt(3) / 2,
            rows["excess_low"] > 0,
        )
        for chosen, size in ((above, 36), (~above, 10)):
            axis.scatter(x[chosen], y[chosen], size, rows.loc[chosen, "excess"], **look)
        paper = rows["setting"] == "0.4/0.1/0.5"
        axis.scatter(x[paper], y[paper], 110, "none", **ring)
        corners = {
            "Drift": (0, -0.1, "top"),
            "PPL": (1, -0.1, "top"),
            "ProbShift": (0.5, 0.95, "bottom"),
        }
        for text, (at_x, at_y, up) in corners.items():
            style.write_remark(axis, at_x, at_y, text, ha="center", va=up)
        axis.set(xlim=(-0.12, 1.12), ylim=(-0.2, 1.0), aspect="equal")
        axis.set_title(axis.get_title("left"), y=1.02)
        axis.axis("off")
    bar = figure.colorbar(
        mpl.cm.ScalarMappable(scale, style.SHADES), ax=figure.axes, shrink=0.6, pad=0.01
    )
    bar.set_label("excess (small: its interval reaches 0; ringed: the paper's weights)")
    return figure


def plot_against_k(table: Table) -> Figure:
    """Draw CI, CR@0.60 and CD against k (sensitivity table), a line and a 95 % band per
    system. A page wide.
    """
    figure, axes = style.subplots(1, 3, height=2.1)
    deepest = (
        table["setting"].astype(int).max() if len(table) else confusion.N_NEIGHBOURS
    )
    looks, ends = style.system_looks(dict.fromkeys(table["system"])), []
    for axis, (measure, label) in zip(
        axes, (("cr60", "CR@0.60"), ("cd", "CD"), ("ci", "CI")), strict=True
    ):
        for name, (colour, line, _) in looks.items():
            rows = table[table["system"] == name]
            k = rows["setting"].astype(int)
            axis.plot(k, rows[measure], color=colour, linestyle=line)
            axis.fill_between(
                k,
                rows[f"{measure}_low"],
                rows[f"{measure}_high"],
                color=colour,
                alpha=0.12,
                lw=0,
            )
            if axis is axes[-1] and np.isfinite(rows[measure].iloc[-1]):
                ends.append(
                    (
                        rows[measure].iloc[-1],
                        display_titles([name])[0],
                        {"color": colour, "linestyle": line},
                    )
                )
        axis.axvline(confusion.N_NEIGHBOURS, zorder=0, **style.PAPER_LINE)
        axis.set(
            xlabel="k (dashed: the paper's)",
            title=label,
            xlim=(1, deepest),
            ylim=(0, None),
        )
        axis.set_xticks([1, 5, 10, 15, 20])
    style.label_line_ends(figure, axes[-1], ends)
    return figure


def plot_settings(table: Table) -> Figure:
    """Draw by how much other settings change CI and excess of the sensitivity table,
    with their 95 % intervals.

    Systems with fewer than 30 refusals under a setting are left out there. A page wide.
    """
    table, measures = table[table["n"] >= estimates.MIN_REFUSALS], ("ci", "excess")
    usual = table["setting"] == table["dimension"].map(sensitivity.DEFAULT_CHOICES)
    base = table.loc[usual, ["dimension", "system", *measures]]
    moved = table[~usual].merge(
        base, on=["dimension", "system"], how="left", suffixes=("", "_usual")
    )
    for measure in measures:
        ends = [f"{measure}{end}" for end in ("", "_low", "_high")]
        moved[ends] = moved[ends].sub(moved[f"{measure}_usual"], axis=0)
    moved = moved.set_index(["dimension", "setting"])
    keys = list(dict.fromkeys(moved.index))
    height = max(0.17, 0.04 * moved["system"].nunique())
    figure, axes = _marks(
        moved, keys, measures, height, 0.8, (3, 2, 1.2), ms=2, elinewidth=0.7
    )
    for axis, measure, label in zip(axes, measures, ("CI", "excess"), strict=True):
        axis.axvline(0, color=style.INK, linewidth=0.6, zorder=0)
        axis.set(title=f"change of {label} from the default setting")
        for place, (dimension, _) in enumerate(keys):
            first = not place or dimension != keys[place - 1][0]
            if first and place:
                axis.axhline(place - 0.5, color=style.GREY, linewidth=0.5)
            if first and moved.loc[dimension, measure].isna().all():
                remark = f"{dimension} cannot move it"
                style.write_remark(
                    axis, 0.02, place, remark, of="x", color=style.GREY, va="center"
                )
    style.name_rows(axes[0], [f"{dimension}: {setting}" for dimension, setting in keys])
    return figure


def plot_surrogate_levels(table: Table) -> Figure:
    """Draw how far CI at a level is CI with the system's own signals: a mark a system,
    with its 95 % interval.

    Left the rank correlation of CI(r) over rejections, right the difference of CI; of
    drawn answers what only they have, and `text` beside it. A page wide. `table` is one
    reading of `surrogate.surrogate_table`; few are left out.
    """
    table = table[table["too_few"].eq(False)]
    usual = (
        table.loc[table["prompts"] == surrogate.ALL_PROMPTS, "setting"]
        .unique()
        .tolist()
    )
    lines = [(surrogate.ALL_PROMPTS, setting) for setting in usual]
    if drawn := surrogate.DRAWN_PROMPTS in set(table["prompts"]):
        own = [
            name
            for name, (level, *_) in surrogate.DISCLOSURE_SETTINGS.items()
            if level == surrogate.LEVEL_TEXT
        ]
        lines += [(surrogate.DRAWN_PROMPTS, name) for name in own]
    rows, height = (
        table.set_index(["prompts", "setting"]),
        0.05 * max(8, table["system"].nunique()),
    )
    figure, axes = _marks(
        rows,
        lines,
        ("rho", "ci_change"),
        height,
        0.7,
        (3, 3, 1.6),
        ms=2.5,
        elinewidth=0.8,
    )
    for axis, same in zip(axes, (1, 0), strict=True):
        axis.locator_params(axis="x", nbins=5)
        if drawn:
            axis.axhline(len(usual) - 0.5, color=style.GREY, linewidth=0.5)
        axis.axvline(same, color=style.INK, linewidth=0.6, zorder=0)
    axes[0].set(
        title="CI(r): rank correlation with own signals",
        xlabel="1: the same order of rejections",
    )
    axes[1].set(title="change of CI from that with own signals")
    axes[0].set_xlim(np.fmin(0.0, table["rho_low"].min()), 1.02)
    part = "on what was asked again"
    lent = {
        "full": "Drift lent",
        "text": "all three lent",
    }  # else Drift and PPL, of answer tokens
    said = [
        lent.get(name, "Drift and PPL lent") if of == surrogate.ALL_PROMPTS else part
        for of, name in lines
    ]
    style.name_rows(
        axes[0],
        [f"{name}\n{words}" for (_, name), words in zip(lines, said, strict=True)],
    )
    return figure


def _marks(
    table: Table,
    keys: list[tuple],
    measures: Sequence[str],
    height: float,
    room: float,
    widths: tuple,
    **look: Any,
) -> tuple[Figure, Sequence[Axes]]:
    """Draw two measures by key, `height` inches apart, systems over the share `room`.

    Name them in a third panel.
    """
    names, inches = table["system"].unique(), height * max(4, len(keys))
    figure, axes = style.subplots(
        1, 3, height=0.6 + inches, sharey=True, width_ratios=widths
    )
    shifts = room * (np.arange(len(names)) + 0.5) / max(1, len(names)) - room / 2
    looks = style.system_looks(names)
    for place, (name, title) in enumerate(
        zip(names, display_titles(names), strict=True)
    ):
        colour, _, mark = looks[name]
        rows = table[table["system"] == name].reindex(keys)
        for axis, measure in zip(axes[:2], measures, strict=True):
            at = np.arange(len(keys)) + shifts[place]
            style.draw_interval_bars(
                axis, rows, measure, at, color=colour, fmt=mark, **look
            )
        y = 1 - (place + 0.5) * 0.13 / inches
        axes[2].plot(
            0, y, mark, ms=3, color=colour, transform=axes[2].transAxes, clip_on=False
        )
        style.write_remark(axes[2], 0.06, y, title, of="xy", va="center")
    for axis in axes[:2]:
        style.draw_row_rules(axis)
    axes[2].axis("off")
    return figure, axes[:2]
