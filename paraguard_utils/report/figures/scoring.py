"""Figures of notebooks 03 to 06 about systems: rates, shared wording, CI and what it
correlates with, CR.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from paraguard_lab.analysis import validity
from paraguard_lab.analysis.variance import HOT
from paraguard_utils.analysis import confusion, wording
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import CR_THRESHOLDS
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS, ClusterBootstrap
from paraguard_utils.registry import display_titles
from paraguard_utils.report import tables
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.style import Look
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table


def plot_variance_parts(table: Table) -> Figure:
    """Draw where the variance of each system's decisions goes: a bar a system, its
    parts side by side.

    Most meaning stands first, systems with too few refusals last and hatched; below a
    line stand those that were asked again by chance. A page wide. `table` has rows of
    `variance.split_variance` and `variance.split_sampled_variance`.
    """
    order = {"by": ["too_few", "meaning"], "ascending": [True, False], "kind": "stable"}
    kinds = [
        table[table["decoding"] == decoding].sort_values(**order)
        for decoding in ("greedy", "drawn", HOT)
    ]
    rows, greedy = pd.concat(kinds, ignore_index=True), len(kinds[0])
    figure, axis = style.subplots(height=0.7 + 0.15 * len(rows))
    y = np.arange(len(rows), dtype=float)
    y[greedy:] += 0.6  # a gap before the drawn ones
    too_few, left = rows["too_few"].to_numpy(bool), np.zeros(len(rows))
    titles = (
        "meaning",
        "wording, as style explains it",
        "other wording",
        "chance (asking again)",
    )
    for (part, colour), title in zip(style.PART_COLOURS.items(), titles, strict=True):
        width = rows[part].clip(lower=0).to_numpy()
        drawn = axis.barh(
            y, width, left=left, height=0.72, color=colour, label=title, lw=0
        )
        for bar in np.array(drawn.patches)[too_few]:
            bar.set(hatch="////", edgecolor="white", linewidth=0)
        left = left + width
    whole = rows[["meaning", "meaning_low", "meaning_high"]].clip(lower=0)
    known = whole.notna().all(axis=1).to_numpy()
    style.draw_interval_bars(
        axis,
        whole[known],
        "meaning",
        y[known],
        fmt="none",
        color=style.INK,
        capsize=1.5,
    )
    if greedy < len(rows):
        axis.axhline(greedy - 0.2, color=style.GREY, linewidth=0.6)
    again = rows["decoding"].map(
        {"greedy": "", "drawn": ", drawn at 0.7", HOT: f", {HOT}"}
    )
    axis.set_yticks(y, pd.Series(display_titles(rows["system"])) + again)
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(0, 1), ylim=(y[-1] + 0.6, -0.6))
    hatched = (
        f"\nhatched: fewer than {disagreement.MIN_DECISIONS_EACH} refusals or answers"
        if too_few.any()
        else ""
    )
    axis.set_xlabel(
        "share of the variance of a decision (line: 95 % interval of"
        f" meaning's){hatched}"
    )
    style.name_lines(figure, axis)
    return figure


def plot_rephrasing_odds(table: Table) -> Figure:
    """Draw the share of refused requests that is answered within three other phrasings,
    harmless and harmful.

    Filled: harmless requests; open: their harmful twins; grey: too few refusals or
    mixed clusters. Bars are 95 % intervals. A page wide. `table` is from
    `rephrasing.rephrasing_table`.
    """
    figure, axis = style.subplots(height=0.7 + 0.2 * len(table))
    twins = ("rephrased3_twins", "too_few_twins", 0.13, "harmful requests")
    for measure, flag, shift, label in (
        ("rephrased3", "too_few", -0.13, "harmless requests"),
        twins,
    ):
        too_few = table["too_few"].to_numpy(bool) | table[flag].to_numpy(bool)
        for chosen, colour, name in (
            (~too_few, style.INK, label),
            (too_few, style.GREY, None),
        ):
            face = colour if measure == "rephrased3" else "white"
            look: Look = {
                "ms": 3.5,
                "color": colour,
                "mfc": face,
                "label": name,
                "clip_on": False,
            }
            style.draw_interval_bars(
                axis, table[chosen], measure, np.flatnonzero(chosen) + shift, **look
            )
    style.name_rows(axis, display_titles(table["system"]))
    style.draw_row_rules(axis)
    axis.set(
        xlim=(0, 1),
        xlabel="share of refused requests answered within three other phrasings",
    )
    style.name_lines(figure, axis)
    return figure


def plot_systems(table: Table) -> Figure:
    """Draw each system's rates and scores from Table 1 with intervals, a panel per
    measure. A page wide.
    """
    panels = {
        "frr": ("FRR", "share of\nprompts"),
        "dr": ("DR", "0: meaning decides,\n1 (dotted): chance"),
        "ci": ("CI", "mean score"),
        "cr60": ("CR@0.60", "share of\nrefusals"),
        "cd": ("CD", "deviation\nof scores"),
    }
    rows = table[table["interpretation"] == "relative"].set_index("system")
    figure, axes = _measure_panels(rows, panels)
    for axis, measure in zip(axes, panels, strict=True):
        style.draw_interval_bars(
            axis,
            rows,
            measure,
            np.arange(len(rows)),
            ms=3,
            color=style.INK,
            clip_on=False,
        )
        axis.set_xlim(left=0)
        _add_remarks(axis, rows, measure)
    axes[1].axvline(1, zorder=0, **style.CHANCE_LINE)
    return figure


def plot_by_source(table: Table) -> Figure:
    """Draw `full_scale.estimate_by_source` of systems with the same sources, with
    intervals. A page wide.
    """
    names, sources = (
        list(dict.fromkeys(table[column])) for column in ("system", "source")
    )
    height = 0.35 + (0.35 + 0.17 * len(sources)) * len(names)
    figure, axes = style.subplots(
        len(names), 2, height=height, sharex="col", sharey=True, squeeze=False
    )
    for name, title, line in zip(names, display_titles(names), axes, strict=True):
        rows = table[table["system"] == name].set_index("source").loc[sources]
        for axis, measure in zip(line, ("frr", "dr"), strict=True):
            style.draw_interval_bars(
                axis, rows, measure, np.arange(len(rows)), ms=3, color=style.INK
            )
            style.draw_row_rules(axis)
            _add_remarks(axis, rows, measure)
        line[0].set_title(title)
        line[1].axvline(1, zorder=0, **style.CHANCE_LINE)
    style.name_rows(axes[0, 0], sources)
    axes[-1, 0].set(xlabel="FRR", xlim=(0, None))
    axes[-1, 1].set(xlabel="DR (0: meaning decides, 1, dotted: chance)", xlim=(0, None))
    return figure


def plot_shared_wording(table: Table, curves: Table) -> Figure:
    """Draw DR of near-copies and of free rewordings for each system, and DR by how many
    words two phrasings share.

    Open: near-copies; filled: free rewordings; grey, below and without a curve: fewer
    than 100 refusals or acceptances. Bars are 95 % intervals. A page wide. Both frames
    are from `wording.wording_tables`.
    """
    rows = table[table["dr_free"].notna()].sort_values(
        "too_few", kind="stable", ignore_index=True
    )
    rows["title"] = display_titles(rows["system"])
    too_few = rows["too_few"].to_numpy(bool)
    figure, (left, right) = style.subplots(
        1, 2, height=max(0.8 + 0.19 * len(rows), 2.4), width_ratios=[1.3, 1]
    )
    y = np.arange(len(rows), dtype=float)
    for chosen, colour in ((~too_few, style.INK), (too_few, style.GREY)):
        for measure, face, shift in (
            ("dr_near", "white", -0.13),
            ("dr_free", colour, 0.13),
        ):
            style.draw_interval_bars(
                left,
                rows[chosen],
                measure,
                y[chosen] + shift,
                ms=3.5,
                color=colour,
                mfc=face,
            )
    style.name_rows(left, rows["title"])
    left.set(
        xlim=(0, 1.3),
        ylim=(len(rows) - 0.5, -1.2),
        xlabel="DR (0: meaning decides; 1, dotted: it does not)",
    )
    for measure, text in (("dr_near", "near-copies"), ("dr_free", "free rewordings")):
        style.write_remark(
            left,
            rows.loc[~too_few, measure].median() if not too_few.all() else 0.5,
            -0.65,
            text,
            ha="center",
        )
    right.set(
        xlim=(0, 1), ylim=(0, 1.3), xlabel="words in common (Jaccard)", ylabel="DR"
    )
    looks, ends = style.system_looks(rows["system"]), []
    for system, title in rows.loc[~too_few, ["system", "title"]].itertuples(
        index=False
    ):
        own = curves[(curves["system"] == system) & ~curves["too_few"].astype(bool)]
        look = {"color": looks[system][0], "linestyle": looks[system][1]}
        at = own["overlap"] + wording.OVERLAP_STEP / 2
        style.draw_interval_bars(
            right, own, "dr", at, "y", fmt="", marker="o", ms=2, elinewidth=0.4, **look
        )
        if len(own):
            ends.append(
                (float(own["dr"].iloc[-1]), title.replace(" instruction", ""), look)
            )
    left.axvline(1, zorder=0, **style.CHANCE_LINE)
    right.axhline(1, zorder=0, **style.CHANCE_LINE)
    style.label_line_ends(figure, right, ends)
    return figure


def plot_against_floors(table: Table) -> Figure:
    """Draw CI beside its matched floor (rings), and both kinds of excess, a panel per
    measure. A page wide.
    """
    panels = {
        "ci": ("CI", "mean score,\nring: matched floor"),
        "excess": ("Excess in clusters", "rejected minus\naccepted pairs"),
        "excess_matched": ("Excess over floor", "CI minus\nmatched floor"),
    }
    by_interpretation = {
        name: table[table["interpretation"] == name].set_index("system")
        for name in style.INTERPRETATION_COLOURS
    }
    figure, axes = _measure_panels(by_interpretation["relative"], panels)
    for axis, measure in zip(axes, panels, strict=True):
        for shift, up, (interpretation, rows) in zip(
            (-0.13, 0.13), (2, 9), by_interpretation.items(), strict=True
        ):
            y, colour = (
                np.arange(len(rows)) + shift,
                style.INTERPRETATION_COLOURS[interpretation],
            )
            style.draw_interval_bars(axis, rows, measure, y, ms=3, color=colour)
            if measure == "ci":
                rings: Look = {
                    "ms": 4.5,
                    "mfc": "none",
                    "mew": 0.7,
                    "elinewidth": 0.7,
                    "color": colour,
                }
                style.draw_interval_bars(axis, rows, "floor_matched", y, **rings)
                _name_interpretation(axis, interpretation, (1, 1), (0, up))
        if measure == "ci":
            axis.set_xlim(0, 1)
        else:
            axis.axvline(0, zorder=0, **style.CHANCE_LINE)
        # What is undefined or rests on few is so in both interpretations.
        _add_remarks(axis, by_interpretation["clipped"], measure)
    return figure


def _name_interpretation(
    axis: Axes,
    interpretation: str,
    place: tuple[float, float],
    shift: tuple[float, float],
) -> None:
    """Write a reading's name in its colour, left of a place in a panel that is moved by
    some points.
    """
    look: Look = {
        "ha": "right",
        "color": style.INTERPRETATION_COLOURS[interpretation],
        "weight": "bold",
        "size": style.MIN_FONT_SIZE,
    }
    axis.annotate(
        interpretation,
        place,
        xytext=shift,
        xycoords="axes fraction",
        textcoords="offset points",
        **look,
    )


def _measure_panels(
    rows: pd.DataFrame, panels: dict[str, tuple[str, str]]
) -> tuple[Figure, list[Axes]]:
    """Make a panel a measure, systems with their counts on the left."""
    figure, axes = style.subplots(
        1, len(panels), height=0.8 + 0.32 * len(rows), sharey=True
    )
    for axis, (title, label) in zip(axes, panels.values(), strict=True):
        axis.set(title=title, xlabel=label)
        style.draw_row_rules(axis)
        axis.locator_params(axis="x", nbins=3)
    noisy = (
        rows["noisy"].eq("yes") if "noisy" in rows else [False] * len(rows)
    )  # a guard's decisions are no labels
    counts = zip(
        display_titles(rows.index),
        rows["n_reject"],
        rows["n_scored"],
        noisy,
        strict=True,
    )
    names = [
        f"{name}\n{n} of {total} refused{', noisy' if unsure else ''}"
        for name, n, total, unsure in counts
    ]
    style.name_rows(axes[0], names)
    return figure, list(axes)


def _add_remarks(axis: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Write beside a system that its CI rests on few rejections, its excess on few
    clusters, or that there is none.
    """
    look: Look = {"of": "x", "va": "center", "color": style.GREY, "zorder": 1.5}
    remarks = {}
    for flag, of, least in (
        ("too_few", "ci", MIN_REFUSALS),
        ("too_few_for_dr", "dr", disagreement.MIN_DECISIONS_EACH),
    ):
        if measure == of and flag in rows:
            remarks = dict.fromkeys(
                np.flatnonzero(rows[flag] & rows[of].notna()).tolist(), f"n < {least}"
            )
    if measure == "excess":
        remarks = {
            y: f"only {n} clusters"
            for y, n in enumerate(rows["n_mixed"])
            if 1 <= n < MIN_MIXED
        }
    for y, text in remarks.items():
        style.write_remark(
            axis,
            0.98,
            y - 0.33,
            text,
            ha="right",
            bbox={"color": "white", "pad": 0.5},
            **look,
        )
    for y in np.flatnonzero(rows[measure].isna()).tolist():
        style.write_remark(axis, 0.02, y, "undefined", **look)


def plot_ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, one panel per system, with r and
    its interval (Fig. 3).

    Rejections are counted in hexagons; above them stand the mean of each bin of equally
    many rejections, with its 95 % interval over resampled clusters, and, dashed, the
    slope that the paper's r would have. A page wide. `scores` has system, cluster_id,
    mean_similarity, ci, ci_clipped of scored rejections; `correlations` has system,
    reading and r.
    """
    labels = ("mean similarity to accepted neighbours", "CI of a refusal")
    figure, panels = style.make_system_grid(
        correlations, min(correlations["system"].nunique(), 3), 1.9, 0.0, *labels
    )
    for axis, name, known in panels:
        own = scores[scores["system"] == name].dropna(
            subset=["mean_similarity", *confusion.CI_COLUMNS.values()]
        )
        for line, (interpretation, column) in enumerate(confusion.CI_COLUMNS.items()):
            colour = style.INTERPRETATION_COLOURS[interpretation]
            tint = LinearSegmentedColormap.from_list(
                interpretation, [to_rgba(colour, 0.12), to_rgba(colour, 0.75)]
            )
            bins: Look = {"gridsize": (40, 18), "extent": (0, 1, 0, 1), "mincnt": 1}
            axis.hexbin(
                own["mean_similarity"], own[column], cmap=tint, linewidths=0, **bins
            )
            _draw_trend(axis, own, column, colour)
            row = known[known["interpretation"] == interpretation].iloc[0]
            r = (
                f"r = {tables.format_estimate(row, 'r', 2)}"
                if np.isfinite(row["r"])
                else "r undefined"
            )
            style.write_remark(
                axis,
                0.02,
                0.11 - 0.08 * line,
                f"{interpretation}: {r}",
                of="xy",
                color=colour,
                weight="bold",
            )
        too_few = f", fewer than {MIN_REFUSALS}" if len(own) < MIN_REFUSALS else ""
        axis.set(
            title=f"{axis.get_title('left')}\nn = {len(own)}{too_few}",
            xlim=(0, 1),
            ylim=(0, 1),
        )
    style.write_remark(
        panels[0][0],
        0.02,
        0.98,
        f"dashed: as the paper's r = {paper_value('r.similarity')}",
        va="top",
    )
    return figure


def average_ci_by_similarity(own: pd.DataFrame, column: str) -> pd.DataFrame:
    """Average a system's CI, `column`, in up to 8 bins of equally many rejections by
    similarity, each of at least 15.

    Returns each bin's mean_similarity and mean of CI with its interval over clusters;
    nothing below 30 rejections.
    """
    columns = ["mean_similarity", "mean", "mean_low", "mean_high"]
    if len(own) < MIN_REFUSALS:
        return pd.DataFrame(columns=columns, dtype=float)
    bins = pd.qcut(
        own["mean_similarity"],
        min(8, 2 * len(own) // MIN_REFUSALS),
        labels=False,
        duplicates="drop",
    )
    clusters, parts = (
        ClusterBootstrap(own["cluster_id"]),
        [part for _, part in own.groupby(bins)],
    )
    means = [
        clusters.mean(part["cluster_id"].to_numpy(), part[column]) for part in parts
    ]
    rows = [
        (part["mean_similarity"].mean(), *mean)
        for part, mean in zip(parts, means, strict=True)
    ]
    # Processors differ in the last digits.
    return pd.DataFrame(rows, columns=columns).round(9)


def _draw_trend(axis: Axes, own: pd.DataFrame, column: str, colour: str) -> None:
    """Draw `average_ci_by_similarity` with its intervals, and the slope of the paper's
    r through the mean of all.
    """
    x, y = own["mean_similarity"], own[column]
    if len(own) > 1 and x.std() > 0:
        ends = np.array([x.min(), x.max()])
        line = y.mean() + paper_value("r.similarity") * y.std() / x.std() * (
            ends - x.mean()
        )
        axis.plot(ends, line, **style.PAPER_LINE)
    means, look = (
        average_ci_by_similarity(own, column),
        {
            "fmt": "o-",
            "ms": 2.5,
            "capsize": 1.5,
            "color": colour,
        },
    )
    style.draw_interval_bars(axis, means, "mean", means["mean_similarity"], "y", **look)


def plot_ci_correlates(table: Table) -> Figure:
    """Draw r of CI(r) with covariates and signals (`validity.correlate_ci`), a panel
    per system. A page wide.
    """
    titled, limit = validity.COVARIATE_TITLES, validity.CORRELATION_LIMIT
    rows = [*titled, *validity.SIGNAL_TITLES]
    names = [
        *titled.values(),
        *(f"{part} (part of CI)" for part in validity.SIGNAL_TITLES.values()),
    ]
    figure, panels = style.make_listed_panels(table, names, 3)
    for axis, _, own in panels:
        axis.axhspan(
            len(titled) - 0.5, len(rows) - 0.5, color=style.PALE, lw=0, zorder=-1
        )
        axis.axvline(0, zorder=0, **style.CHANCE_LINE)
        for x in (-limit, limit):
            axis.axvline(x, zorder=0, **style.PAPER_LINE)
        look: Look = {"ms": 3.5, "mfc": "none", "mec": style.INK, "mew": 0.7}
        axis.plot(paper_value("r.similarity"), rows.index("similarity"), "D", **look)
        for shift, (interpretation, colour) in zip(
            (-0.15, 0.15), style.INTERPRETATION_COLOURS.items(), strict=True
        ):
            found = (
                own[own["interpretation"] == interpretation]
                .set_index("covariate")
                .loc[rows]
            )
            y = np.arange(len(rows)) + shift
            style.draw_interval_bars(axis, found, "r", y, ms=2.5, lw=0.9, color=colour)
            for height in y[found["r"].isna()]:
                style.write_remark(
                    axis, -0.97, height, "undefined", va="center", color=colour
                )
        too_few = " (few)" if own["too_few"].any() else ""
        axis.set_title(f"{axis.get_title('left')}, n = {own['n'].max()}{too_few}")
    axis.set(
        xlim=(-1.03, 1.03),
        xticks=[-1, -0.5, 0, 0.5, 1],
        xticklabels=["\u22121", "\u22120.5", "0", "0.5", "1"],
    )
    for x, interpretation in zip((-36, -4), style.INTERPRETATION_COLOURS, strict=True):
        _name_interpretation(panels[0][0], interpretation, (0, 1), (x, 3))
    known = f"diamond, r = {paper_value('r.similarity')}"
    figure.supxlabel(
        f"r with CI of a rejection (the paper's: {known}; dashed, its break condition;"
        " dotted: chance)"
    )
    return figure


def plot_cr_curve(curve: Table) -> Figure:
    """Draw CR and the permutations' (`chance.compare_with_chance`) against tau, a panel
    per system. A page wide.
    """
    figure, panels = style.make_system_grid(curve, 3, 1.7, ylabel="CR@tau")
    for axis, _, own in panels:
        axis.axvline(CR_THRESHOLDS[0], zorder=0, **style.PAPER_LINE)
        for interpretation, colour in style.INTERPRETATION_COLOURS.items():
            rows = own[own["interpretation"] == interpretation]
            axis.fill_between(
                rows["tau"], rows["null_low"], rows["null_high"], color="0.8", lw=0
            )
            axis.plot(rows["tau"], rows["null"], **style.CHANCE_LINE)
            axis.plot(rows["tau"], rows["cr"], color=colour, marker="o", ms=1.8)
            halves = [
                rows.loc[rows[column] >= 0.5, "tau"].max()
                for column in ("cr", "null_low")
            ]
            if np.isfinite(halves).any():
                left = interpretation == "relative"
                place = np.nanmin(halves) - 0.02 if left else np.nanmax(halves) + 0.07
                style.write_remark(
                    axis,
                    place,
                    0.5,
                    interpretation,
                    color=colour,
                    ha="right" if left else "left",
                )
        axis.set(xlim=(0, 1), ylim=(0, 1.02))
    known = f"dashed: the paper's, {CR_THRESHOLDS[0]:.2f}"
    figure.supxlabel(
        f"tau ({known}; dotted and grey: chance, and 95 % of its permutations)"
    )
    return figure
