"""Figures of notebook 03.

They show rates and scores of systems, DR by shared wording, and CI by similarity
(Fig. 3).
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from paraguard_utils.analysis import wording
from paraguard_utils.analysis.similarity import average_ci_by_similarity
from paraguard_utils.analysis.system import CI_COLUMNS
from paraguard_utils.core.disagreement import MIN_DECISIONS_EACH
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.registry import display_titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table

_SYSTEM_PANELS = {
    "frr": ("FRR", "share of\nprompts"),
    "dr": ("DR", "0: phrasings agree,\n1 (dotted): unrelated"),
    "ci": ("CI", "mean score"),
    "cr60": ("CR@0.60", "share of\nrefusals"),
    "cd": ("CD", "spread of\nscores"),
}
"""Title and label of each panel of the overview, by measure."""

_SHIFT = 0.13  # of a mark from the middle of its row

_DOTTED: Look = style.CHANCE_LINE | {"color": style.INK}
"""Where DR is if the meaning decides nothing; grey marks are something else."""


def plot_systems(table: Table) -> Figure:
    """Draw each system's rates and scores from Table 1, a panel per measure.

    Bars are 95 % intervals. DR that rests on too few decisions is left out; other
    scores are grey then. A page wide.
    """
    rows = table[table["interpretation"] == "relative"].set_index("system")
    figure, axes = make_measure_panels(rows, _SYSTEM_PANELS)
    y = np.arange(len(rows))
    for axis, measure in zip(axes, _SYSTEM_PANELS, strict=True):
        too_few = rows["too_few"].to_numpy(bool) & (measure != "frr")
        shown = rows
        if measure == "dr":
            too_few = np.zeros(len(rows), bool)
            shown = rows.assign(dr=rows["dr"].mask(rows["too_few_for_dr"]))
        look: Look = {"ms": 3, "clip_on": False}
        style.draw_judged_bars(axis, shown, measure, y, too_few, **look)
        axis.set_xlim(left=0)
    axes[1].axvline(1, zorder=0, **_DOTTED)
    axes[1].set_xlim(right=max(1.05, axes[1].get_xlim()[1]))
    least = f"fewer than {MIN_DECISIONS_EACH} refusals or answers"
    figure.supxlabel(f"grey: fewer than {MIN_REFUSALS} refusals; no DR: {least}")
    return figure


def make_measure_panels(
    rows: pd.DataFrame, panels: dict[str, tuple[str, str]]
) -> tuple[Figure, list[Axes]]:
    """Make a panel for each measure, with the systems and their counts on the left.

    `panels` has a title and a label by measure; `rows` have the systems as index.
    """
    height = 0.8 + 0.32 * len(rows)
    figure, axes = style.subplots(1, len(panels), height=height, sharey=True)
    for axis, (title, label) in zip(axes, panels.values(), strict=True):
        axis.set(title=title, xlabel=label)
        style.draw_row_rules(axis)
        axis.locator_params(axis="x", nbins=3)
    names = []
    titles = display_titles(rows.index)
    for title, row in zip(titles, rows.to_dict("records"), strict=True):
        refused = f"{row['n_reject']} of {row['n_scored']} refused"
        # A guard decides itself: only what was read from answers can be noisy.
        noise = ", noisy" if row.get("noisy") == "yes" else ""
        names.append(f"{title}\n{refused}{noise}")
    style.name_rows(axes[0], names)
    return figure, list(axes)


def plot_shared_wording(table: Table, curves: Table) -> Figure:
    """Draw DR of near-copies and of free rewordings, and DR by shared words.

    On the left, hollow marks are near-copies and filled ones free rewordings; systems
    with fewer than 100 refusals or acceptances are grey, below the others and without a
    curve on the right. One without an interval is left out. Bars are 95 % intervals. A
    page wide. Both frames are from `wording.wording_tables`.
    """
    ends = ["dr_near_low", "dr_near_high", "dr_free_low", "dr_free_high"]
    rows = table.dropna(subset=ends).sort_values("too_few", kind="stable")
    height = max(1.0 + 0.19 * len(rows), 2.4)
    figure, (left, right) = style.subplots(1, 2, height=height, width_ratios=[1, 1.1])
    y = np.arange(len(rows))
    few = rows["too_few"].to_numpy(bool)
    look: Look = {"ms": 3.5, "mfc": "white", "label": "near-copies"}
    style.draw_judged_bars(left, rows, "dr_near", y - _SHIFT, few, **look)
    look = {"ms": 3.5, "label": "free rewordings"}
    style.draw_judged_bars(left, rows, "dr_free", y + _SHIFT, few, **look)
    style.name_rows(left, display_titles(rows["system"]))
    left.set(
        xlim=(0, 1.3), xlabel="DR (0: phrasings agree,\n1, dotted: as unrelated ones)"
    )
    left.axvline(1, zorder=0, **_DOTTED)
    style.name_lines(figure, left)
    _draw_dr_by_overlap(right, rows[~few], curves)
    right.set(xlim=(0, 1), ylim=(0, 1.3), ylabel="DR")
    right.set_xlabel("share of words in common (Jaccard)")
    right.axhline(1, zorder=0, **_DOTTED)
    return figure


def _draw_dr_by_overlap(axis: Axes, rows: Table, curves: Table) -> None:
    """Draw a curve for each system with enough decisions, and name it."""
    looks = style.system_looks(rows["system"])
    curves = curves[~curves["too_few"].astype(bool)]
    for name, title in zip(looks, display_titles(looks), strict=True):
        curve = curves[curves["system"] == name]
        colour, line, _ = looks[name]
        label = title.replace(" instruction", "")
        look: Look = {"color": colour, "linestyle": line, "label": label}
        at = curve["overlap"] + wording.OVERLAP_STEP / 2
        look |= {"fmt": "", "marker": "o", "ms": 2, "elinewidth": 0.4}
        style.draw_interval_bars(axis, curve, "dr", at, "y", **look)
    if looks:
        look = {"loc": "lower left", "fontsize": style.MIN_FONT_SIZE}
        axis.legend(handlelength=1.2, handletextpad=0.5, frameon=False, **look)


def plot_ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, a panel per system (Fig. 3).

    Rejections are counted in hexagons. Above them are the means of bins of equally many
    rejections, with 95 % intervals over resampled clusters, and, dashed, the slope that
    the paper's r would have. A page wide. `scores` has system, cluster_id,
    mean_similarity, ci and ci_clipped of scored rejections; `correlations` has system,
    interpretation, and r with its interval.
    """
    names = correlations["system"].unique()
    figure, axes = style.make_grid(names, min(len(names), 3), 1.9)
    figure.supxlabel("mean similarity to accepted neighbours")
    figure.supylabel("CI of a refusal")
    heights = {"relative": 0.11, "clipped": 0.03}
    for axis, name in zip(axes, names, strict=True):
        known = correlations[correlations["system"] == name]
        rejected = scores[scores["system"] == name]
        rejected = rejected.dropna(subset=["mean_similarity", *CI_COLUMNS.values()])
        for row in known.to_dict("records"):
            interpretation = row["interpretation"]
            colour = style.INTERPRETATION_COLOURS[interpretation]
            column = CI_COLUMNS[interpretation]
            _draw_hexagons(axis, rejected, column, colour)
            _draw_trend(axis, rejected, column, colour)
            remark = f"{interpretation}: r = {tables.format_estimate(row, 'r', 2)}"
            look = {"of": "xy", "color": colour, "weight": "bold"}
            style.write_remark(axis, 0.02, heights[interpretation], remark, **look)
        n = len(rejected)
        too_few = f", fewer than {MIN_REFUSALS}" if n < MIN_REFUSALS else ""
        axis.set_title(f"{axis.get_title('left')}\nn = {n}{too_few}")
        axis.set(xlim=(0, 1), ylim=(0, 1))
    key = f"dashed: as the paper's r = {paper_value('r.similarity')}"
    style.write_remark(axes[0], 0.02, 0.98, key, va="top")
    return figure


def _draw_hexagons(
    axis: Axes, rejected: pd.DataFrame, column: str, colour: str
) -> None:
    """Count rejections by similarity and CI in hexagons, the darker the more."""
    tints = LinearSegmentedColormap.from_list(
        column, [to_rgba(colour, 0.12), to_rgba(colour, 0.75)]
    )
    axis.hexbin(
        rejected["mean_similarity"],
        rejected[column],
        cmap=tints,
        linewidths=0,
        gridsize=(40, 18),
        extent=(0, 1, 0, 1),
        mincnt=1,
    )


def _draw_trend(axis: Axes, rejected: pd.DataFrame, column: str, colour: str) -> None:
    """Draw the mean CI by similarity, and the slope that the paper's r would have.

    The slope goes through the mean of all rejections.
    """
    x = rejected["mean_similarity"]
    y = rejected[column]
    if len(rejected) > 1 and x.std() > 0:
        ends = np.array([x.min(), x.max()])
        slope = paper_value("r.similarity") * y.std() / x.std()
        axis.plot(ends, y.mean() + slope * (ends - x.mean()), **style.PAPER_LINE)
    means = average_ci_by_similarity(rejected, column)
    at = means["mean_similarity"]
    look: Look = {"fmt": "o-", "ms": 2.5, "capsize": 1.5, "color": colour}
    style.draw_interval_bars(axis, means, "mean", at, "y", **look)
