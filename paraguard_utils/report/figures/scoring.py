"""Figures of notebook 03.

They show rates and scores of systems, DR by shared wording, how many refusals a
rewording undoes, and CI by similarity (Fig. 3).
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
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.registry import display_titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table

_SYSTEM_PANELS = {
    "frr": ("FRR", "share of\nprompts"),
    "dr": ("DR", "0: meaning decides,\n1 (dotted): chance"),
    "ci": ("CI", "mean score"),
    "cr60": ("CR@0.60", "share of\nrefusals"),
    "cd": ("CD", "deviation\nof scores"),
}
"""Title and label of each panel of the overview, by measure."""


def plot_systems(table: Table) -> Figure:
    """Draw each system's rates and scores from Table 1, a panel per measure.

    Bars are 95 % intervals. A page wide.
    """
    rows = table[table["interpretation"] == "relative"].set_index("system")
    figure, axes = make_measure_panels(rows, _SYSTEM_PANELS)
    y = np.arange(len(rows))
    for axis, measure in zip(axes, _SYSTEM_PANELS, strict=True):
        style.draw_interval_bars(
            axis,
            rows,
            measure,
            y,
            ms=3,
            color=style.INK,
            clip_on=False,
        )
        axis.set_xlim(left=0)
        write_shortages(axis, rows, measure)
    dr_axis = axes[1]
    dr_axis.axvline(1, zorder=0, **style.CHANCE_LINE)
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
        # Only a guard's decisions can be noisy labels.
        noise = ", noisy" if row.get("noisy") == "yes" else ""
        names.append(f"{title}\n{refused}{noise}")
    style.name_rows(axes[0], names)
    return figure, list(axes)


def write_shortages(axis: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Write beside a system that a measure rests on few decisions, or is undefined.

    CI needs 30 rejections, DR 100 rejections and acceptances, and the excess 10 mixed
    clusters.
    """
    look: Look = {
        "of": "x",
        "va": "center",
        "color": style.GREY,
        "zorder": 1.5,
    }
    remarks = _shortages(rows, measure)
    for y, remark in remarks.items():
        frame = {"color": "white", "pad": 0.5}
        style.write_remark(
            axis,
            0.98,
            y - 0.33,
            remark,
            ha="right",
            bbox=frame,
            **look,
        )
    for y, value in enumerate(rows[measure]):
        if np.isnan(value):
            style.write_remark(
                axis,
                0.02,
                y,
                "undefined",
                **look,
            )


def _shortages(rows: pd.DataFrame, measure: str) -> dict[int, str]:
    """Return what to write of rows whose estimate rests on too little."""
    remarks = {}
    if measure == "excess":
        for y, n in enumerate(rows["n_mixed"]):
            if 1 <= n < MIN_MIXED:
                remarks[y] = f"only {n} clusters"
        return remarks
    needs = {
        "ci": ("too_few", MIN_REFUSALS),
        "dr": ("too_few_for_dr", MIN_DECISIONS_EACH),
    }
    flag, least = needs.get(measure, ("", 0))
    if flag in rows:
        is_short = rows[flag] & rows[measure].notna()
        for y in np.flatnonzero(is_short).tolist():
            remarks[y] = f"n < {least}"
    return remarks


def plot_rephrasing_odds(table: Table) -> Figure:
    """Draw how many refused requests are answered within three other phrasings.

    Filled marks are harmless requests, hollow ones their harmful twins; grey means too
    few refusals or mixed clusters. Bars are 95 % intervals. A page wide. `table` is
    from `rephrasing.rephrasing_table`.
    """
    figure, axis = style.subplots(height=0.7 + 0.2 * len(table))
    too_few = table["too_few"].to_numpy(bool)
    too_few_twins = too_few | table["too_few_twins"].to_numpy(bool)
    sides = [
        ("rephrased3", too_few, -0.13, "harmless requests"),
        ("rephrased3_twins", too_few_twins, 0.13, "harmful requests"),
    ]
    for measure, is_grey, shift, label in sides:
        for chosen, colour in ((~is_grey, style.INK), (is_grey, style.GREY)):
            y = np.flatnonzero(chosen) + shift
            style.draw_interval_bars(
                axis,
                table[chosen],
                measure,
                y,
                ms=3.5,
                color=colour,
                mfc=colour if measure == "rephrased3" else "white",
                label=label if colour == style.INK else None,
                clip_on=False,
            )
    style.name_rows(axis, display_titles(table["system"]))
    style.draw_row_rules(axis)
    axis.set(
        xlim=(0, 1),
        xlabel="share of refused requests answered within three other phrasings",
    )
    style.name_lines(figure, axis)
    return figure


def plot_shared_wording(table: Table, curves: Table) -> Figure:
    """Draw DR of near-copies and of free rewordings, and DR by shared words.

    On the left, hollow marks are near-copies and filled ones free rewordings; systems
    with fewer than 100 refusals or acceptances are grey, below the others and without a
    curve on the right. Bars are 95 % intervals. A page wide. Both frames are from
    `wording.wording_tables`.
    """
    rows = table[table["dr_free"].notna()]
    rows = rows.sort_values("too_few", kind="stable", ignore_index=True)
    rows["title"] = display_titles(rows["system"])
    height = max(0.8 + 0.19 * len(rows), 2.4)
    figure, (left, right) = style.subplots(1, 2, height=height, width_ratios=[1.3, 1])
    _draw_dr_by_kind(left, rows)
    right.set(
        xlim=(0, 1),
        ylim=(0, 1.3),
        xlabel="words in common (Jaccard)",
        ylabel="DR",
    )
    ends = _draw_dr_by_overlap(right, rows, curves)
    left.axvline(1, zorder=0, **style.CHANCE_LINE)
    right.axhline(1, zorder=0, **style.CHANCE_LINE)
    style.label_line_ends(figure, right, ends)
    return figure


def _draw_dr_by_kind(axis: Axes, rows: Table) -> None:
    """Draw each system's DR of near-copies and of free rewordings."""
    too_few = rows["too_few"].to_numpy(bool)
    y = np.arange(len(rows), dtype=float)
    for chosen, colour in ((~too_few, style.INK), (too_few, style.GREY)):
        for measure, face, shift in (
            ("dr_near", "white", -0.13),
            ("dr_free", colour, 0.13),
        ):
            at = y[chosen] + shift
            style.draw_interval_bars(
                axis,
                rows[chosen],
                measure,
                at,
                ms=3.5,
                color=colour,
                mfc=face,
            )
    style.name_rows(axis, rows["title"])
    axis.set(
        xlim=(0, 1.3),
        ylim=(len(rows) - 0.5, -1.2),
        xlabel="DR (0: meaning decides; 1, dotted: it does not)",
    )
    for measure, text in (("dr_near", "near-copies"), ("dr_free", "free rewordings")):
        x = 0.5 if too_few.all() else rows.loc[~too_few, measure].median()
        style.write_remark(
            axis,
            x,
            -0.65,
            text,
            ha="center",
        )


def _draw_dr_by_overlap(
    axis: Axes, rows: Table, curves: Table
) -> list[tuple[float, str, Look]]:
    """Draw a curve for each system with enough decisions; return end, name and look."""
    looks = style.system_looks(rows["system"])
    curves = curves[~curves["too_few"].astype(bool)]
    ends = []
    for row in rows[~rows["too_few"].astype(bool)].to_dict("records"):
        curve = curves[curves["system"] == row["system"]]
        colour, line, _ = looks[row["system"]]
        look: Look = {"color": colour, "linestyle": line}
        at = curve["overlap"] + wording.OVERLAP_STEP / 2
        style.draw_interval_bars(
            axis,
            curve,
            "dr",
            at,
            "y",
            fmt="",
            marker="o",
            ms=2,
            elinewidth=0.4,
            **look,
        )
        if len(curve):
            end = float(curve["dr"].iloc[-1])
            ends.append((end, row["title"].replace(" instruction", ""), look))
    return ends


def plot_ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, a panel per system (Fig. 3).

    Rejections are counted in hexagons. Above them are the means of bins of equally many
    rejections, with 95 % intervals over resampled clusters, and, dashed, the slope that
    the paper's r would have. A page wide. `scores` has system, cluster_id,
    mean_similarity, ci and ci_clipped of scored rejections; `correlations` has system,
    interpretation, and r with its interval.
    """
    across = min(correlations["system"].nunique(), 3)
    xlabel = "mean similarity to accepted neighbours"
    figure, panels = style.make_system_grid(
        correlations,
        across,
        1.9,
        xlabel=xlabel,
        ylabel="CI of a refusal",
    )
    for axis, name, known in panels:
        rejected = scores[scores["system"] == name]
        rejected = rejected.dropna(subset=["mean_similarity", *CI_COLUMNS.values()])
        heights = {"relative": 0.11, "clipped": 0.03}
        for interpretation, column in CI_COLUMNS.items():
            colour = style.INTERPRETATION_COLOURS[interpretation]
            _draw_hexagons(axis, rejected, column, colour)
            _draw_trend(axis, rejected, column, colour)
            row = known[known["interpretation"] == interpretation].iloc[0]
            r = "r undefined"
            if np.isfinite(row["r"]):
                r = f"r = {tables.format_estimate(row, 'r', 2)}"
            remark = f"{interpretation}: {r}"
            style.write_remark(
                axis,
                0.02,
                heights[interpretation],
                remark,
                of="xy",
                color=colour,
                weight="bold",
            )
        n = len(rejected)
        too_few = f", fewer than {MIN_REFUSALS}" if n < MIN_REFUSALS else ""
        title = f"{axis.get_title('left')}\nn = {n}{too_few}"
        axis.set(
            title=title,
            xlim=(0, 1),
            ylim=(0, 1),
        )
    key = f"dashed: as the paper's r = {paper_value('r.similarity')}"
    first_axis = panels[0][0]
    style.write_remark(
        first_axis,
        0.02,
        0.98,
        key,
        va="top",
    )
    return figure


def _draw_hexagons(
    axis: Axes, rejected: pd.DataFrame, column: str, colour: str
) -> None:
    """Count rejections by similarity and CI in hexagons, the darker the more."""
    tints = LinearSegmentedColormap.from_list(
        column, [to_rgba(colour, 0.12), to_rgba(colour, 0.75)]
    )
    similarity = rejected["mean_similarity"]
    axis.hexbin(
        similarity,
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
    style.draw_interval_bars(
        axis,
        means,
        "mean",
        at,
        "y",
        fmt="o-",
        ms=2.5,
        capsize=1.5,
        color=colour,
    )
