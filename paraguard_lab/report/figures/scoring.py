"""Figures beside notebooks 03 and 06 about systems.

They show parts of variance, floors of CI, what CI correlates with, and CR by threshold.
"""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paraguard_lab.analysis import covariates
from paraguard_lab.analysis.variance import HOT
from paraguard_lab.report.figures.panels import (
    PALE,
    PART_COLOURS,
    make_listed_panels,
    make_system_grid,
)
from paraguard_lab.report.figures.remarks import write_shortages
from paraguard_utils.core.confusion import CR_THRESHOLDS
from paraguard_utils.core.disagreement import MIN_DECISIONS_EACH
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.registry import display_titles
from paraguard_utils.report.figures import style
from paraguard_utils.report.figures.scoring import make_measure_panels
from paraguard_utils.report.paper import paper_value
from paraguard_utils.schemas import Table

_PART_TITLES = {
    "meaning": "meaning",
    "style": "wording that style explains",
    "wording": "other wording",
    "chance": "chance (the same words again)",
}
_KIND_TITLES = {"near": "near-copies", "free": "free rewordings"}
_DECODINGS = {
    "greedy": "",
    "drawn": ", drawn at 0.7",
    HOT: f", {HOT}",
}
"""What is added to a system's title, by how its answers were decoded."""

_FLOOR_PANELS = {
    "ci": ("CI", "mean score,\nring: matched floor"),
    "excess": ("Excess in clusters", "refused minus\naccepted pairs"),
    "excess_matched": ("Excess over floor", "CI minus\nmatched floor"),
}
"""Title and label of each panel beside the floors, by measure."""


def plot_variance_parts(table: Table) -> Figure:
    """Draw where the variance of each system's decisions comes from, a bar per system.

    Systems with the largest share of meaning are on top, those with too few refusals
    last and hatched; below a line are those whose answers were drawn. A page wide.

    Parameters
    ----------
    table : Table
        Rows of `variance.split_variance` and `variance.split_sampled_variance`: parts
        of the variance, as shares.
    """
    place = table["decoding"].map(list(_DECODINGS).index)
    rows = table.assign(place=place, other_parts=1 - table["meaning"])
    rows = rows.sort_values(["place", "too_few", "other_parts"], kind="stable")
    n_greedy = (rows["place"] == 0).sum()
    figure, axis = style.subplots(height=0.7 + 0.15 * len(rows))
    y = np.arange(len(rows), dtype=float)
    y[n_greedy:] += 0.6  # a gap before the drawn ones
    _draw_parts(axis, rows, y)
    if n_greedy < len(rows):
        axis.axhline(n_greedy - 0.2, color=style.GREY, linewidth=0.6)
    decoded = rows["decoding"].map(_DECODINGS)
    axis.set_yticks(y, display_titles(rows["system"]) + decoded)
    axis.tick_params(axis="y", length=0)
    label = "share of the variance of a decision (line: 95 % interval of meaning)"
    if rows["too_few"].any():
        label += f"\nhatched: fewer than {MIN_DECISIONS_EACH} refusals or answers"
    axis.set(xlim=(0, 1), ylim=(y[-1] + 0.6, -0.6), xlabel=label)
    style.name_lines(figure, axis)
    return figure


def plot_chance_by_kind(table: Table) -> Figure:
    """Draw how chance, wording and meaning decide near-copies and free rewordings.

    A bar per kind of pair, two for each system, near-copies first; a page wide.

    Parameters
    ----------
    table : Table
        From `drawn_pairs.tabulate_chance`, of one decoding.
    """
    rows = table[table["pairs"].isin(list(_KIND_TITLES))].reset_index(drop=True)
    figure, axis = style.subplots(height=0.75 + 0.17 * len(rows))
    y = np.arange(len(rows)) + 0.5 * (np.arange(len(rows)) // 2)
    _draw_parts(axis, rows.assign(style=0.0), y)
    titles = []
    for system, kind in zip(display_titles(rows["system"]), rows["pairs"], strict=True):
        titles.append(f"{system.partition(',')[0]}, {_KIND_TITLES[kind]}")
    axis.set_yticks(y, titles)
    axis.tick_params(axis="y", length=0)
    label = "share of the variance of a decision (line: 95 % interval of meaning)"
    axis.set(xlim=(0, 1), ylim=(y[-1] + 0.6, -0.6), xlabel=label)
    style.name_lines(figure, axis)
    return figure


def _draw_parts(axis: Axes, rows: Table, y: np.ndarray) -> None:
    """Draw the parts of each row side by side, and the interval of meaning's."""
    hatches = rows["too_few"].map({True: "////", False: ""}).tolist()
    left = np.zeros(len(rows))
    for part, colour in PART_COLOURS.items():
        width = rows[part].clip(lower=0).to_numpy()
        axis.barh(
            y,
            width,
            0.72,
            left,
            label=_PART_TITLES[part] if width.any() else None,
            color=colour,
            hatch=hatches,
            edgecolor="white",
            linewidth=0,
        )
        left = left + width
    meaning = rows[["meaning", "meaning_low", "meaning_high"]].clip(lower=0)
    style.draw_interval_bars(
        axis, meaning, "meaning", y, fmt="none", color=style.INK, capsize=1.5
    )


def plot_by_source(table: Table) -> Figure:
    """Draw FRR and DR of systems by source, with 95 % intervals.

    DR that rests on too few decisions is grey. A line of two panels per system, a page
    wide.

    Parameters
    ----------
    table : Table
        From `full_scale.estimate_by_source`, with system. All systems have the same
        sources.
    """
    names = list(dict.fromkeys(table["system"]))
    sources = list(dict.fromkeys(table["source"]))
    height = 0.35 + (0.35 + 0.17 * len(sources)) * len(names)
    figure, axes = style.subplots(
        len(names), 2, height=height, sharex="col", sharey=True, squeeze=False
    )
    y = np.arange(len(sources))
    for name, title, line in zip(names, display_titles(names), axes, strict=True):
        rows = table[table["system"] == name].set_index("source").loc[sources]
        few = rows["too_few_for_dr"].to_numpy(bool)
        style.draw_interval_bars(line[0], rows, "frr", y, ms=3, color=style.INK)
        style.draw_judged_bars(line[1], rows, "dr", y, few, ms=3)
        for axis in line:
            style.draw_row_rules(axis)
        line[0].set_title(title)
        line[1].axvline(1, zorder=0, **(style.CHANCE_LINE | {"color": style.INK}))
    style.name_rows(axes[0, 0], sources)
    axes[-1, 0].set(xlabel="FRR", xlim=(0, None))
    label = "DR (0: phrasings agree, 1, dotted: as unrelated ones)"
    axes[-1, 1].set(xlabel=label, xlim=(0, None))
    return figure


def _split_interpretations(table: Table) -> Iterator[tuple[Table, style.Look, float]]:
    """Yield each interpretation's rows, how they are drawn, and their shift.

    The shift is how far their marks are beside the middle of a row.
    """
    shifts = {"relative": -0.14, "clipped": 0.14}
    for interpretation, colour in style.INTERPRETATION_COLOURS.items():
        rows = table[table["interpretation"] == interpretation]
        look: style.Look = {"color": colour, "label": interpretation}
        yield rows, look, shifts[interpretation]


def plot_against_floors(table: Table) -> Figure:
    """Draw CI beside its matched floor (rings), and both kinds of excess.

    A panel per measure, a page wide.

    Parameters
    ----------
    table : Table
        Table 1 with its floors, in both interpretations.
    """
    relative = table[table["interpretation"] == "relative"].set_index("system")
    figure, axes = make_measure_panels(relative, _FLOOR_PANELS)
    for rows, look, shift in _split_interpretations(table):
        y = np.arange(len(rows)) + shift
        for axis, measure in zip(axes, _FLOOR_PANELS, strict=True):
            style.draw_interval_bars(axis, rows, measure, y, ms=3, **look)
        style.draw_interval_bars(
            axes[0],
            rows,
            "floor_matched",
            y,
            ms=4.5,
            mfc="none",
            elinewidth=0.7,
            color=look["color"],
        )
    axes[0].set_xlim(0, 1)
    for axis in axes[1:]:
        axis.axvline(0, zorder=0, **style.CHANCE_LINE)
    # What is undefined or rests on few is so in both interpretations.
    too_few = relative["too_few"]
    few_mixed = relative["n_mixed"].between(1, MIN_MIXED - 1)
    write_shortages(axes[0], relative["ci"], too_few, f"n < {MIN_REFUSALS}")
    write_shortages(axes[1], relative["excess"], few_mixed, f"< {MIN_MIXED} clusters")
    write_shortages(axes[2], relative["excess_matched"], too_few & False, "")
    style.name_lines(figure, axes[1])
    return figure


def plot_ci_correlates(table: Table) -> Figure:
    """Draw r of CI(r) with covariates and signals, a panel per system.

    What is part of CI is on a grey ground. A page wide.

    Parameters
    ----------
    table : Table
        From `covariates.correlate_covariates`, in both interpretations.
    """
    names = dict(covariates.COVARIATE_TITLES)
    for signal, title in covariates.SIGNAL_TITLES.items():
        names[signal] = f"{title} (part of CI)"
    signals = (len(covariates.COVARIATE_TITLES) - 0.5, len(names) - 0.5)
    figure, panels = make_listed_panels(table, list(names.values()), 3)
    known = paper_value("r.similarity")
    place = list(names).index("similarity")
    for axis, _, correlations in panels:
        axis.axhspan(*signals, color=PALE, lw=0, zorder=-1)
        axis.axvline(0, zorder=0, **style.CHANCE_LINE)
        for side in (-1, 1):
            limit = side * covariates.CORRELATION_LIMIT
            axis.axvline(limit, zorder=0, **style.PAPER_LINE)
        axis.plot(known, place, "D", ms=3.5, mfc="none", mec=style.INK, mew=0.7)
        for rows, look, shift in _split_interpretations(correlations):
            rows = rows.set_index("covariate").loc[list(names)]
            y = np.arange(len(rows)) + shift
            style.draw_interval_bars(axis, rows, "r", y, ms=2.5, **look)
            for height in y[rows["r"].isna()]:
                colour = look["color"]
                style.write_remark(
                    axis, -0.97, height, "undefined", va="center", color=colour
                )
        too_few = " (too few)" if correlations["too_few"].any() else ""
        n = correlations["n"].max()
        axis.set_title(f"{axis.get_title('left')}, n = {n}{too_few}")
    axis.set(xlim=(-1.03, 1.03), xticks=[-1, 0, 1])
    figure.supxlabel(
        f"r with CI of a refusal (diamond: the paper's r = {known}; dashed: its"
        " limit, 0.7; dotted: no correlation)"
    )
    style.name_lines(figure, axis)
    return figure


def plot_cr_curve(curve: Table) -> Figure:
    """Draw CR, and CR of permuted decisions, against tau, a panel per system.

    A page wide.

    Parameters
    ----------
    curve : Table
        From `chance.compare_with_chance`, in both interpretations.
    """
    figure, panels = make_system_grid(curve, 3, 1.7)
    figure.supylabel("CR@tau")
    for axis, _, of_system in panels:
        axis.axvline(CR_THRESHOLDS[0], zorder=0, **style.PAPER_LINE)
        for rows, look, _ in _split_interpretations(of_system):
            tau = rows["tau"]
            low, high = rows["null_low"], rows["null_high"]
            axis.fill_between(tau, low, high, color="0.8", lw=0)
            axis.plot(tau, rows["null"], **style.CHANCE_LINE)
            axis.plot(tau, rows["cr"], marker="o", ms=1.8, **look)
        axis.set(xlim=(0, 1), ylim=(0, 1.02))
    style.name_lines(figure, axis)
    known = f"dashed: the paper's, {CR_THRESHOLDS[0]:.2f}"
    figure.supxlabel(
        f"tau ({known}; dotted and grey: chance, and 95 % of its permutations)"
    )
    return figure


def plot_record_chance(table: Table) -> Figure:
    """Draw how often recorded systems refuse against how often they waver.

    One mark per system: five models at temperature 0.7, the twenty systems of matched
    triples, and ours, which are open. Bars are 95 % intervals. A page wide.

    Parameters
    ----------
    table : Table
        From `public_records.measures.tabulate_record_chance`, systems with enough
        decisions.
    """
    at_07 = table[~table["source"].eq("stability") | table["temperature"].eq(0.7)]
    rows = at_07.drop_duplicates(["source", "system"])
    figure, axis = style.subplots(height=3.6)
    for source, (colour, marker, title) in _SOURCE_LOOKS.items():
        own = rows[rows["source"] == source]
        axis.errorbar(
            own["rate"],
            own["chance"],
            xerr=_distances(own, "rate"),
            yerr=_distances(own, "chance"),
            fmt=marker,
            ms=4,
            lw=0.6,
            color=colour,
            mfc="white" if source == "ours" else colour,
            label=title,
        )
    _name_marks(axis, rows)
    axis.set(xlim=(0, 1), ylim=(0, 1.15), xlabel="share of answers that refuse")
    axis.set_ylabel(
        "chance: the same words, asked again\n(1, dotted: as unrelated prompts)"
    )
    axis.axhline(1, zorder=0, **style.CHANCE_LINE)
    style.name_lines(figure, axis)
    return figure


_SOURCE_LOOKS = {
    "triples": ("#0072B2", "o", "systems of 2026, matched triples"),
    "stability": ("#D55E00", "s", "7 to 12 billion, requests for harm"),
    "ours": ("#222222", "D", "ours"),
}


_NAMED_ON_THE_LEFT = 0.7  # from which rate on a mark has no room on its right


def _distances(rows: Table, name: str) -> np.ndarray:
    """Return how far the ends of intervals are from estimates, shape (2, n)."""
    low = rows[name] - rows[f"{name}_low"]
    high = rows[f"{name}_high"] - rows[name]
    return np.stack([low, high]).clip(min=0)


def _name_marks(axis: Axes, rows: Table) -> None:
    """Write the names of systems beside their marks."""
    for row in rows.to_dict("records"):
        name = str(row["system"]).rpartition("/")[2]
        if row["source"] == "ours":
            name = display_titles([name])[0].partition(",")[0]
        is_right = row["rate"] > _NAMED_ON_THE_LEFT and row["source"] == "triples"
        axis.annotate(
            name.partition("--")[0],
            (row["rate"], row["chance"]),
            xytext=(-3 if is_right else 3, 3),
            ha="right" if is_right else "left",
            textcoords="offset points",
            fontsize=style.MIN_FONT_SIZE,
            color=style.INK,
        )
