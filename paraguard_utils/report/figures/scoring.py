"""Figures of notebooks 03, 05 and 06 about targets: rates, CI and what it correlates with, CR."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from paraguard_utils.bootstrap import FEW, FEW_CLUSTERS
from paraguard_utils.registry import titles
from paraguard_utils.report.figures.style import GREY, PAGE, READING_COLOURS, subplots, target_panels
from paraguard_utils.schemas import Table
from paraguard_utils.scoring.confusion import CI


def target_overview(table: Table) -> Figure:
    """Draw how often and how sensibly each target refuses: estimates with 95 % intervals, one panel per measure.

    Rings are the floor of CI: the matched one where the table has it, else the CI of accepted prompts.
    """
    names = list(dict.fromkeys(table["target"]))
    matched = "floor_matched" in table
    floor_column, floor_name = ("floor_matched", "matched floor") if matched else ("floor", "unmatched floor")
    panels = (
        ("frr", "FRR", "share of\nprompts", ("relative",)),
        ("flip_rate", "Flip rate", "share of\nclusters", ("relative",)),
        ("ci", "CI", f"mean score,\nring: {floor_name}", ("relative", "clipped")),
        ("excess", "Excess in clusters", "rejected minus\naccepted pairs", ("relative", "clipped")),
        *(
            [("excess_matched", "Excess over floor", "CI minus\nmatched floor", ("relative", "clipped"))]
            if matched
            else []
        ),
    )
    counts = table.drop_duplicates("target").set_index("target").loc[names, ["n_reject", "n_scored"]]
    counted = [
        f"{title}\n{row.n_reject} of {row.n_scored} rejected"
        for title, row in zip(titles(names), counts.itertuples(), strict=True)
    ]
    figure, axes = subplots(1, len(panels), figsize=(PAGE, 0.8 + 0.32 * len(names)), sharey=True)
    for axis, (measure, title, label, readings) in zip(axes, panels, strict=True):
        both = len(readings) == 2
        for shift, reading in zip((-0.13, 0.13) if both else (0,), readings, strict=True):
            rows = table[table["reading"] == reading].set_index("target").loc[names]
            y = np.arange(len(names)) + shift
            value, low, high = (rows[f"{measure}{end}"].to_numpy() for end in ("", "_low", "_high"))
            colour = READING_COLOURS[reading] if both else "black"
            axis.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=3, capsize=0, color=colour)
            if measure == "ci":
                floor, low, high = (rows[f"{floor_column}{end}"].to_numpy() for end in ("", "_low", "_high"))
                axis.errorbar(floor, y, xerr=[floor - low, high - floor], fmt="o", ms=4.5, mfc="none", mew=0.7,
                              elinewidth=0.7, capsize=0, color=colour)  # fmt: skip
                up = 2 if reading == "relative" else 9
                axis.annotate(reading, (1, 1), xytext=(0, up), xycoords="axes fraction", textcoords="offset points",
                              ha="right", color=colour, weight="bold", size=6)  # fmt: skip
        axis.set(title=title, xlabel=label, yticks=range(len(names)), yticklabels=counted)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.locator_params(axis="x", nbins=3)
        if measure == "ci":
            axis.set_xlim(0, 1)
            for position in np.flatnonzero(rows["few"] & rows["ci"].notna()):
                axis.text(0.98, position, "n < 30", ha="right", va="center", size=5.5, color=GREY)
        elif measure == "excess_matched":
            axis.axvline(0, color="black", linewidth=0.6)
        elif measure == "excess":
            axis.axvline(0, color="black", linewidth=0.6)
            for position in np.flatnonzero(rows["n_mixed"].between(1, FEW_CLUSTERS - 1)):
                text = f"only {rows['n_mixed'].iloc[position]} clusters"
                axis.text(0.98, position - 0.33, text, transform=axis.get_yaxis_transform(), ha="right", va="center",
                          size=5.5, color=GREY, bbox={"color": "white", "pad": 0.5})  # fmt: skip
        else:
            axis.set_xlim(left=0)
        for position in np.flatnonzero(rows[measure].isna()):
            axis.text(
                0.02, position, "undefined", transform=axis.get_yaxis_transform(), va="center", size=5.5, color=GREY
            )
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def ci_against_similarity(scores: pd.DataFrame, correlations: Table) -> Figure:
    """Draw CI(r) against mean neighbour similarity, one panel per target, with r and its interval (Fig. 3).

    Parameters
    ----------
    scores : DataFrame
        Scored rejections of all targets: target, mean_similarity, ci, ci_clipped.
    correlations : DataFrame
        target, reading, r, r_low, r_high.
    """
    names = list(dict.fromkeys(correlations["target"]))
    lines = -(-len(names) // 3)
    figure, axes = subplots(
        lines, min(len(names), 3), figsize=(PAGE, 2.2 * lines), sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        own = scores[scores["target"] == name]
        for line, (reading, column) in enumerate(CI.items()):
            axis.scatter(own["mean_similarity"], own[column], s=7, color=READING_COLOURS[reading], alpha=0.7, lw=0)
            row = correlations[(correlations["target"] == name) & (correlations["reading"] == reading)].iloc[0]
            known = f"r = {row['r']:.2f} [{row['r_low']:.2f}, {row['r_high']:.2f}]"
            text = f"{reading}: {known if np.isfinite(row['r']) else 'r undefined'}"
            axis.text(0.02, 0.11 - 0.08 * line, text, color=READING_COLOURS[reading], transform=axis.transAxes,
                      fontsize=6, weight="bold")  # fmt: skip
        few = f", fewer than {FEW}" if len(own) < FEW else ""
        axis.set(title=f"{titles([name])[0]}\nn = {len(own)}{few}", ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("mean similarity to accepted neighbours")
    for axis in axes[:, 0]:
        axis.set_ylabel("CI of a rejection")
    return figure


def ci_correlates(table: Table, titled: dict[str, str], parts: dict[str, str], limit: float) -> Figure:
    """Draw what CI(r) correlates with: r with its interval, a row per covariate, a panel per target.

    Parameters
    ----------
    table : DataFrame
        From `covariates.correlations`.
    titled, parts : dict of str to str
        Titles of the covariates and of the signals, which are parts of CI.
    limit : float
        The paper's break condition on |r|, dashed.
    """
    names, rows = list(dict.fromkeys(table["target"])), [*titled, *parts]
    figure, axes = target_panels(names, [*titled.values(), *(f"{part} (part of CI)" for part in parts.values())], 3)
    for axis, name in zip(axes, names, strict=True):
        own = table[table["target"] == name]
        axis.axhspan(len(titled) - 0.5, len(rows) - 0.5, color="0.93", lw=0)
        for x, style in ((0, "-"), (-limit, "--"), (limit, "--")):
            axis.axvline(x, color=GREY if x else "black", linestyle=style, linewidth=0.6)
        for shift, (reading, colour) in zip((-0.15, 0.15), READING_COLOURS.items(), strict=True):
            found = own[own["reading"] == reading].set_index("covariate").loc[rows]
            value, low, high = (found[f"r{end}"].to_numpy() for end in ("", "_low", "_high"))
            y = np.arange(len(rows)) + shift
            axis.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=2.5, lw=0.9, color=colour)
            for position in np.flatnonzero(np.isnan(value)):
                axis.text(-0.97, y[position], "undefined", va="center", size=5, color=colour)
        few = " (few)" if own["few"].any() else ""
        axis.set_title(f"{axis.get_title('left')}, n = {own['n'].max()}{few}", fontsize=7)
    axes[0].set(xlim=(-1.03, 1.03), xticks=[-1, -0.5, 0, 0.5, 1], xticklabels=["−1", "−0.5", "0", "0.5", "1"])
    for x, (reading, colour) in zip((-36, -4), READING_COLOURS.items(), strict=True):
        axes[0].annotate(reading, (0, 1), xytext=(x, 3), xycoords="axes fraction", textcoords="offset points",
                         ha="right", color=colour, weight="bold", size=6)  # fmt: skip
    figure.supxlabel("r with CI of a rejection (dashed: the break condition)", size=7)
    return figure


def cr_curve(curve: Table) -> Figure:
    """Draw CR against tau beside what permuted labels give, a panel per target.

    Parameters
    ----------
    curve : DataFrame
        target, reading, tau, cr, null, null_low, null_high.
    """
    names = list(dict.fromkeys(curve["target"]))
    lines = -(-len(names) // 3)
    figure, axes = subplots(lines, 3, figsize=(PAGE, 1.9 * lines), sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name, title in zip(axes.flat, names, titles(names), strict=False):
        for reading, colour in READING_COLOURS.items():
            rows = curve[(curve["target"] == name) & (curve["reading"] == reading)]
            axis.fill_between(rows["tau"], rows["null_low"], rows["null_high"], color="0.75", lw=0)
            axis.plot(rows["tau"], rows["null"], color=GREY, linewidth=0.7)
            axis.plot(rows["tau"], rows["cr"], color=colour, marker="o", ms=1.8)
            half = rows.loc[(rows["cr"] >= 0.5), "tau"].max()
            if np.isfinite(half):
                side = -0.03 if reading == "relative" else 0.06
                axis.text(half + side, 0.5, reading, color=colour, size=6, ha="right" if side < 0 else "left")
        axis.set(title=title, xlim=(0, 1), ylim=(0, 1.02))
    for axis in axes[-1]:
        axis.set_xlabel("tau")
    for axis in axes[:, 0]:
        axis.set_ylabel("CR@tau")
    axes[0, 0].text(0.99, 0.78, "grey: 95 % of\npermutations", size=5.5, color=GREY, ha="right")
    return figure
