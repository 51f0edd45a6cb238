"""Figures beside notebooks 03 and 06 about systems.

They show parts of variance, floors of CI, what CI correlates with, and CR by threshold.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.analysis import covariates
from paraguard_lab.analysis.variance import HOT
from paraguard_utils.core.confusion import CR_THRESHOLDS
from paraguard_utils.core.disagreement import MIN_DECISIONS_EACH
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.scoring import make_measure_panels, write_shortages
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table

_PART_TITLES = {
    "meaning": "meaning",
    "style": "wording, as style explains it",
    "wording": "other wording",
    "chance": "chance (asking again)",
}
_DECODINGS = {
    "greedy": "",
    "drawn": ", drawn at 0.7",
    HOT: f", {HOT}",
}
"""What is added to a system's title, by how its answers were decoded."""

_FLOOR_PANELS = {
    "ci": ("CI", "mean score,\nring: matched floor"),
    "excess": ("Excess in clusters", "rejected minus\naccepted pairs"),
    "excess_matched": ("Excess over floor", "CI minus\nmatched floor"),
}
"""Title and label of each panel beside the floors, by measure."""


def plot_variance_parts(table: Table) -> Figure:
    """Draw where the variance of each system's decisions comes from, a bar per system.

    Systems with the largest share of meaning are on top, those with too few refusals
    last and hatched; below a line are those whose answers were drawn. A page wide.
    `table` has rows of `variance.split_variance` and `variance.split_sampled_variance`.
    """
    kinds = []
    for decoding in _DECODINGS:
        rows = table[table["decoding"] == decoding]
        kinds.append(
            rows.sort_values(
                ["too_few", "meaning"], ascending=[True, False], kind="stable"
            )
        )
    n_greedy = len(kinds[0])
    rows = pd.concat(kinds, ignore_index=True)
    figure, axis = style.subplots(height=0.7 + 0.15 * len(rows))
    y = np.arange(len(rows), dtype=float)
    y[n_greedy:] += 0.6  # a gap before the drawn ones
    _draw_parts(axis, rows, y)
    if n_greedy < len(rows):
        axis.axhline(n_greedy - 0.2, color=style.GREY, linewidth=0.6)
    decoded = rows["decoding"].map(_DECODINGS)
    axis.set_yticks(y, pd.Series(display_titles(rows["system"])) + decoded)
    axis.tick_params(axis="y", length=0)
    label = "share of the variance of a decision (line: 95 % interval of meaning's)"
    if rows["too_few"].any():
        label += f"\nhatched: fewer than {MIN_DECISIONS_EACH} refusals or answers"
    axis.set(
        xlim=(0, 1),
        ylim=(y[-1] + 0.6, -0.6),
        xlabel=label,
    )
    style.name_lines(figure, axis)
    return figure


def _draw_parts(axis: Axes, rows: Table, y: np.ndarray) -> None:
    """Draw the parts of each row side by side, and the interval of meaning's."""
    too_few = rows["too_few"].to_numpy(bool)
    left = np.zeros(len(rows))
    for part, colour in style.PART_COLOURS.items():
        width = rows[part].clip(lower=0).to_numpy()
        bars = axis.barh(
            y,
            width,
            left=left,
            label=_PART_TITLES[part],
            height=0.72,
            color=colour,
            lw=0,
        )
        for bar in np.array(bars.patches)[too_few]:
            bar.set(
                hatch="////",
                edgecolor="white",
                linewidth=0,
            )
        left = left + width
    meaning = rows[["meaning", "meaning_low", "meaning_high"]].clip(lower=0)
    is_known = meaning.notna().all(axis=1).to_numpy()
    style.draw_interval_bars(
        axis,
        meaning[is_known],
        "meaning",
        y[is_known],
        fmt="none",
        color=style.INK,
        capsize=1.5,
    )


def plot_by_source(table: Table) -> Figure:
    """Draw FRR and DR of systems by source, with 95 % intervals.

    All systems have the same sources. A page wide. `table` is from
    `full_scale.estimate_by_source`.
    """
    names = list(dict.fromkeys(table["system"]))
    sources = list(dict.fromkeys(table["source"]))
    height = 0.35 + (0.35 + 0.17 * len(sources)) * len(names)
    figure, axes = style.subplots(
        len(names),
        2,
        height=height,
        sharex="col",
        sharey=True,
        squeeze=False,
    )
    y = np.arange(len(sources))
    for name, title, line in zip(names, display_titles(names), axes, strict=True):
        rows = table[table["system"] == name].set_index("source").loc[sources]
        for axis, measure in zip(line, ("frr", "dr"), strict=True):
            style.draw_interval_bars(
                axis,
                rows,
                measure,
                y,
                ms=3,
                color=style.INK,
            )
            style.draw_row_rules(axis)
            write_shortages(axis, rows, measure)
        line[0].set_title(title)
        line[1].axvline(1, zorder=0, **style.CHANCE_LINE)
    style.name_rows(axes[0, 0], sources)
    axes[-1, 0].set(xlabel="FRR", xlim=(0, None))
    axes[-1, 1].set(xlabel="DR (0: meaning decides, 1, dotted: chance)", xlim=(0, None))
    return figure


def plot_against_floors(table: Table) -> Figure:
    """Draw CI beside its matched floor (rings), and both kinds of excess.

    A panel per measure, a page wide. `table` is Table 1 with its floors.
    """
    by_interpretation = {}
    for name in style.INTERPRETATION_COLOURS:
        rows = table[table["interpretation"] == name]
        by_interpretation[name] = rows.set_index("system")
    figure, axes = make_measure_panels(by_interpretation["relative"], _FLOOR_PANELS)
    for axis, measure in zip(axes, _FLOOR_PANELS, strict=True):
        _draw_above_floor(axis, measure, by_interpretation["relative"], "relative")
        _draw_above_floor(axis, measure, by_interpretation["clipped"], "clipped")
        if measure == "ci":
            axis.set_xlim(0, 1)
        else:
            axis.axvline(0, zorder=0, **style.CHANCE_LINE)
        # What is undefined or rests on few is so in both interpretations.
        write_shortages(axis, by_interpretation["clipped"], measure)
    return figure


def _draw_above_floor(
    axis: Axes, measure: str, rows: Table, interpretation: str
) -> None:
    """Draw one measure in one interpretation; CI has its floor as a ring."""
    colour = style.INTERPRETATION_COLOURS[interpretation]
    is_relative = interpretation == "relative"
    y = np.arange(len(rows)) + (-0.13 if is_relative else 0.13)
    style.draw_interval_bars(
        axis,
        rows,
        measure,
        y,
        ms=3,
        color=colour,
    )
    if measure == "ci":
        style.draw_interval_bars(
            axis,
            rows,
            "floor_matched",
            y,
            color=colour,
            ms=4.5,
            mfc="none",
            mew=0.7,
            elinewidth=0.7,
        )
        _name_interpretation(axis, interpretation, (1, 1), (0, 2 if is_relative else 9))


def _name_interpretation(
    axis: Axes,
    interpretation: str,
    place: tuple[float, float],
    shift: tuple[float, float],
) -> None:
    """Write the name of an interpretation in its colour.

    It ends at a place in shares of the panel, moved by some points.
    """
    axis.annotate(
        interpretation,
        place,
        xytext=shift,
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        color=style.INTERPRETATION_COLOURS[interpretation],
        weight="bold",
        size=style.MIN_FONT_SIZE,
    )


def plot_ci_correlates(table: Table) -> Figure:
    """Draw r of CI(r) with covariates and signals, a panel per system.

    A page wide. `table` is from `covariates.correlate_covariates`.
    """
    n_covariates = len(covariates.COVARIATE_TITLES)
    rows = [*covariates.COVARIATE_TITLES, *covariates.SIGNAL_TITLES]
    names = list(covariates.COVARIATE_TITLES.values())
    names += [f"{title} (part of CI)" for title in covariates.SIGNAL_TITLES.values()]
    figure, panels = style.make_listed_panels(table, names, 3)
    known = paper_value("r.similarity")
    for axis, _, correlations in panels:
        axis.axhspan(
            n_covariates - 0.5,
            len(rows) - 0.5,
            color=style.PALE,
            lw=0,
            zorder=-1,
        )
        axis.axvline(0, zorder=0, **style.CHANCE_LINE)
        for x in (-covariates.CORRELATION_LIMIT, covariates.CORRELATION_LIMIT):
            axis.axvline(x, zorder=0, **style.PAPER_LINE)
        axis.plot(
            known,
            rows.index("similarity"),
            "D",
            ms=3.5,
            mfc="none",
            mec=style.INK,
            mew=0.7,
        )
        for interpretation in style.INTERPRETATION_COLOURS:
            chosen = correlations[correlations["interpretation"] == interpretation]
            by_row = chosen.set_index("covariate").loc[rows]
            _draw_correlations(axis, by_row, interpretation)
        too_few = " (few)" if correlations["too_few"].any() else ""
        n = correlations["n"].max()
        axis.set_title(f"{axis.get_title('left')}, n = {n}{too_few}")
    ticks = {
        -1: "\u22121",
        -0.5: "\u22120.5",
        0: "0",
        0.5: "0.5",
        1: "1",
    }
    axis.set(
        xlim=(-1.03, 1.03),
        xticks=list(ticks),
        xticklabels=list(ticks.values()),
    )
    first_axis = panels[0][0]
    _name_interpretation(first_axis, "relative", (0, 1), (-36, 3))
    _name_interpretation(first_axis, "clipped", (0, 1), (-4, 3))
    figure.supxlabel(
        f"r with CI of a rejection (the paper's: diamond, r = {known}; dashed, its"
        " break condition; dotted: chance)"
    )
    return figure


def _draw_correlations(axis: Axes, rows: Table, interpretation: str) -> None:
    """Draw the correlations in one interpretation, and say which are undefined."""
    colour = style.INTERPRETATION_COLOURS[interpretation]
    shift = -0.15 if interpretation == "relative" else 0.15
    y = np.arange(len(rows)) + shift
    style.draw_interval_bars(
        axis,
        rows,
        "r",
        y,
        ms=2.5,
        lw=0.9,
        color=colour,
    )
    for height in y[rows["r"].isna()]:
        style.write_remark(
            axis,
            -0.97,
            height,
            "undefined",
            va="center",
            color=colour,
        )


def plot_cr_curve(curve: Table) -> Figure:
    """Draw CR, and CR of permuted decisions, against tau, a panel per system.

    A page wide. `curve` is from `chance.compare_with_chance`.
    """
    figure, panels = style.make_system_grid(curve, 3, 1.7, ylabel="CR@tau")
    for axis, _, rows in panels:
        axis.axvline(CR_THRESHOLDS[0], zorder=0, **style.PAPER_LINE)
        for interpretation in style.INTERPRETATION_COLOURS:
            chosen = rows[rows["interpretation"] == interpretation]
            _draw_cr(axis, chosen, interpretation)
        axis.set(xlim=(0, 1), ylim=(0, 1.02))
    known = f"dashed: the paper's, {CR_THRESHOLDS[0]:.2f}"
    figure.supxlabel(
        f"tau ({known}; dotted and grey: chance, and 95 % of its permutations)"
    )
    return figure


def _draw_cr(axis: Axes, rows: Table, interpretation: str) -> None:
    """Draw CR in one interpretation with its chance, and name it at half of its height.

    The names are outside the two curves: left of the relative interpretation's, and
    right of the clipped one's.
    """
    colour = style.INTERPRETATION_COLOURS[interpretation]
    tau = rows["tau"]
    axis.fill_between(
        tau,
        rows["null_low"],
        rows["null_high"],
        color="0.8",
        lw=0,
    )
    axis.plot(tau, rows["null"], **style.CHANCE_LINE)
    axis.plot(
        tau,
        rows["cr"],
        color=colour,
        marker="o",
        ms=1.8,
    )
    half_of_cr = tau[rows["cr"] >= 0.5].max()
    half_of_chance = tau[rows["null_low"] >= 0.5].max()
    halves = [half_of_cr, half_of_chance]
    if not np.isfinite(halves).any():
        return
    if interpretation == "relative":
        place = np.nanmin(halves) - 0.02
        alignment = "right"
    else:
        place = np.nanmax(halves) + 0.07
        alignment = "left"
    style.write_remark(
        axis,
        place,
        0.5,
        interpretation,
        color=colour,
        ha=alignment,
    )
